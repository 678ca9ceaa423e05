"""What a header declares is held against what is there: whole recordings decode to their end, cut ones fail."""

import struct
from typing import Any

import numpy as np
import pytest
import soundfile as sf

from pipeline.containers import identify
from pipeline.reading import Window
from tests.pipeline.recordings import RATE, decode, kind_of, num_samples, sound, wav, with_av, with_soundfile

N = 30_001
JUNK = np.random.default_rng(7).bytes(3001)
ID3V2 = b"ID3\3\0\0\0\0\1\0" + bytes(128)
ID3V1 = b"TAG" + bytes(125)
APE_FIELDS = struct.pack("<IIII", 2000, 532, 1, 0x80000000) + bytes(8)
APE = b"APETAGEX" + APE_FIELDS + bytes(500) + b"APETAGEX" + APE_FIELDS


def chunk(name: bytes, body: bytes) -> bytes:
    return name + struct.pack("<I", len(body)) + body


def patched(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


# ---------------------------------------------------------------- WAV


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0xFFFFFFFF - 36, 0x7FFFF000, 0x80000000, 0])
@pytest.mark.parametrize("riff", [0, 36, 0xFFFFFFFF])
def test_wav_of_unknown_length_is_read_to_its_end(size, riff):
    assert num_samples(wav(sound(N), riff=riff, data=size)) == N


@pytest.mark.parametrize("wrong", [10, 2 * N - 200, 2 * N + 36, 2 * N + 44])
def test_wav_whose_outer_size_fits_the_file_is_whole_whatever_the_inner_says(wrong):
    assert num_samples(wav(sound(N), data=wrong)) == N


@pytest.mark.parametrize("lost", [1, 2, 8, 100, 2 * N - 2, 2 * N])
def test_wav_cut_by_any_number_of_bytes_is_truncated(lost):
    data = wav(sound(N))
    assert kind_of(data[:-lost]) == "truncated"
    kept = (2 * N - lost) // 2
    if kept:
        assert np.array_equal(decode(data[:-lost], allow_truncated=True), decode(data)[:kept])
    else:
        assert kind_of(data[:-lost], allow_truncated=True) == "empty"


@pytest.mark.parametrize("size", [8, 16, 30, 40])
def test_wav_cut_within_its_header_is_truncated(size):
    data = wav(sound(N))[:size]
    assert kind_of(data) == ("truncated" if size > 8 else "unreadable")
    assert kind_of(data, allow_truncated=True) == "unreadable"


def test_what_follows_the_samples_of_a_wav_is_no_sound():
    data = wav(sound(N))
    for tail in (chunk(b"LIST", b"INFO"), chunk(b"LIST", b"INFO")[:-2], ID3V1, JUNK, bytes(500)):
        assert num_samples(data + tail) == N
    whole = wav(sound(N), riff=36 + 2 * N + 12) + chunk(b"LIST", b"INFO")
    assert num_samples(whole) == N
    assert kind_of(wav(sound(0)) + chunk(b"LIST", b"INFO")) == "empty"


def test_wav_data_need_be_no_multiple_of_a_sample_nor_padded():
    data = with_soundfile(sound(N), RATE, "WAV", "PCM_U8")
    at = data.index(b"data") + 8
    assert num_samples(data[: at + N]) == N
    stereo = wav(np.stack([sound(N)] * 2, 1), data=4 * N + 3)
    assert num_samples(stereo) == N


@pytest.mark.parametrize("subtype", ["PCM_24", "FLOAT", "DOUBLE", "ULAW", "ALAW", "IMA_ADPCM", "MS_ADPCM", "GSM610"])
def test_wav_of_every_coding_is_found_cut(subtype):
    data = with_soundfile(sound(N), 8_000, "WAV", subtype)
    assert N <= num_samples(data) < N + 2100  # ADPCM and GSM fill their last block
    assert kind_of(data[: len(data) // 2]) == "truncated"
    assert kind_of(data[: len(data) // 2], allow_truncated=True) == "codes"


def test_wav_beyond_4_gib_is_read_to_its_end(tmp_path):
    size = (4 << 30) + 8_000_000
    with open(tmp_path / "x.wav", "wb") as file:  # sparse
        fmt = struct.pack("<HHIIHH", 1, 256, 1_000_000, 512_000_000, 512, 16)
        sizes = [struct.pack("<I", (size + more) % 2**32) for more in (36, 0)]
        file.write(b"RIFF%bWAVEfmt \x10\0\0\0%bdata%b" % (sizes[0], fmt, sizes[1]))
        file.truncate(44 + size)
    with open(tmp_path / "x.wav", "rb") as file:
        layout = identify(Window(file, 0, 44 + size))
        window: Any = Window(file, layout.start, layout.stop, layout.patch, layout.head)
        with sf.SoundFile(window) as decoder:
            assert layout.missing is None and decoder.frames == size // 512
            assert len(decoder.read(100)) == 100


def test_wav_that_holds_another_codec_is_decoded():
    assert num_samples(with_av(sound(N), 44_100, "wav", "libmp3lame")) >= N
    assert num_samples(with_av(sound(N), 44_100, "wav", "pcm_s64le")) == N
    assert kind_of(with_av(sound(N), 44_100, "wav", "libmp3lame")[:-3000]) == "truncated"


def test_big_endian_wav_is_decoded_and_found_cut():
    body = np.round(sound(N) * 32767).astype(">i2").tobytes()
    head = struct.pack(
        ">4sI4s4sIHHIIHH4sI", b"RIFX", 36 + 2 * N, b"WAVE", b"fmt ", 16, 1, 1, RATE, 48000, 2, 16, b"data", 2 * N
    )
    assert np.array_equal(decode(head + body), decode(wav(sound(N))))
    assert kind_of((head + body)[:-10]) == "truncated"


# ---------------------------------------------------------------- its relatives


@pytest.mark.parametrize("format", ["RF64", "W64", "AIFF", "AU", "CAF", "NIST", "VOC", "SVX", "WAVEX"])
def test_declared_byte_counts_tell_a_cut(format):
    data = with_soundfile(sound(N), RATE, format, "PCM_16")
    assert num_samples(data) == N
    for cut in (len(data) * 6 // 10, len(data) - 5):
        assert kind_of(data[:cut]) == "truncated"
        kept = decode(data[:cut], allow_truncated=True)
        assert np.array_equal(kept, decode(data)[: len(kept)])


@pytest.mark.parametrize("format", ["wav", "w64", "au", "aiff", "caf"])
def test_what_was_written_to_a_pipe_is_read_to_its_end(format):
    codec = "pcm_s16le" if format in ("wav", "w64") else "pcm_s16be"
    data = with_av(sound(N), 16_000, format, codec, pipe=True)
    assert num_samples(data) == N


def test_unknown_lengths_of_other_headers_are_found_by_reading():
    au = with_soundfile(sound(N), RATE, "AU", "PCM_16")
    for size in (b"\xff" * 4, bytes(4), b"\0\0\1\0"):
        assert num_samples(patched(au, 8, size)) == N
    rf64 = with_soundfile(sound(N), RATE, "RF64", "PCM_16")
    for size in (b"\xff" * 8, bytes(8)):
        assert num_samples(patched(rf64, rf64.index(b"ds64") + 16, size)) == N
    caf = with_soundfile(sound(N), RATE, "CAF", "PCM_16")
    assert num_samples(patched(caf, caf.index(b"data") + 4, b"\xff" * 8)) == N
    aiff = with_soundfile(sound(N), RATE, "AIFF", "PCM_16")
    for size in (b"\xff" * 4, bytes(4)):
        streamed = patched(aiff, aiff.index(b"SSND") + 4, size)
        assert num_samples(patched(streamed, streamed.index(b"COMM") + 10, bytes(4))) == N


# ---------------------------------------------------------------- FLAC and Ogg


def flac(total: int | None = None) -> bytes:
    data = with_soundfile(sound(N), RATE, "FLAC", "PCM_16")
    if total is None:
        return data
    return patched(data, 21, bytes([data[21] & 0xF0 | total >> 32]) + struct.pack(">I", total & 0xFFFFFFFF))


def test_flac_total_may_be_unknown_or_too_small_but_not_too_large():
    for total in (0, 1, 4096, N - 1):
        assert num_samples(flac(total)) == N
    for total in (N + 1, 2**36 - 1):
        assert kind_of(flac(total)) == "truncated"
        assert num_samples(flac(total), allow_truncated=True) == N


@pytest.mark.parametrize("total", [None, 0])
def test_flac_cut_or_damaged_midway_is_truncated_and_keeps_what_came_before(total):
    data = flac(total)
    half = len(data) // 2
    for bad in (data[:half], data[:half] + bytes(500) + data[half + 500 :], data[:half] + data[half + 9000 :]):
        assert kind_of(bad) == "truncated"
        kept = decode(bad, allow_truncated=True)
        assert len(kept) >= 8192 and len(kept) % 4096 == 0
        assert np.array_equal(kept, decode(data)[: len(kept)])


def test_tags_around_flac_are_no_sound():
    for data in (flac(), flac(0)):
        assert num_samples(ID3V2 + data + ID3V1) == N


def ogg_pages(data: bytes) -> list[int]:
    offsets = [0]
    while offsets[-1] < len(data):
        at = offsets[-1]
        offsets.append(at + 27 + data[at + 26] + sum(data[at + 27 : at + 27 + data[at + 26]]))
    return offsets


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_chained_ogg_is_decoded_to_the_end_of_its_last_link(subtype):
    links = [with_soundfile(sound(n, n), RATE, "OGG", subtype) for n in (N, 9_000, 12_000)]
    assert np.array_equal(decode(b"".join(links)), np.concatenate([decode(link) for link in links]))
    assert num_samples(links[0] + JUNK + links[1]) == N + 9_000


def test_chained_ogg_that_changes_its_rate_fails():
    data = with_soundfile(sound(N), RATE, "OGG", "VORBIS") + with_soundfile(sound(N), 48_000, "OGG", "VORBIS")
    assert kind_of(data) == "truncated"
    assert num_samples(data, allow_truncated=True) == N


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_ogg_without_its_last_pages_decodes_to_its_end_but_one_lost_midway_is_missed(subtype):
    data = with_soundfile(sound(200_000), RATE, "OGG", subtype)
    pages = ogg_pages(data)
    middle = len(pages) // 2
    granule = int.from_bytes(data[pages[middle - 1] + 6 : pages[middle - 1] + 14], "little")
    assert 0 < num_samples(data[: pages[middle]]) <= granule
    assert kind_of(data[: pages[middle]] + data[pages[middle + 1] :]) == "truncated"
    assert kind_of(data[: pages[middle] + 40]) == "truncated"  # a page says how long it is
    joined_late = data[: pages[2]] + data[pages[middle] :]
    assert 0 < num_samples(joined_late) < 150_000


def test_flac_in_ogg_is_decoded():
    assert num_samples(with_av(sound(N), RATE, "ogg", "flac")) == N


# ---------------------------------------------------------------- MPEG audio


@pytest.fixture(scope="module")
def mp3() -> bytes:
    return with_av(sound(N), 44_100, "mp3", "libmp3lame", options={"id3v2_version": "0"})


def test_mp3_has_the_exact_length_that_its_header_declares(mp3):
    assert num_samples(mp3) == N


@pytest.mark.parametrize("before", [b"", ID3V2, ID3V2 * 2, bytes(5000), JUNK, ID3V2 + bytes(700)])
@pytest.mark.parametrize(
    "after", [b"", ID3V1, APE, APE + ID3V1, bytes(3000), JUNK, b"LYRICSBEGIN" + bytes(9) + b"000020LYRICS200"]
)
def test_tags_and_junk_around_mp3_change_no_sample(mp3, before, after):
    assert np.array_equal(decode(before + mp3 + after), decode(mp3))


def test_mp3_shorter_than_its_header_says_is_truncated(mp3):
    for cut in (len(mp3) // 2, len(mp3) - 200, len(mp3) - 1):
        assert kind_of(mp3[:cut]) == "truncated"
        assert kind_of(mp3[:cut] + APE) == "truncated"
        assert 0 < num_samples(mp3[:cut], allow_truncated=True) <= N + 1152


def test_joined_mp3s_are_decoded_to_the_end_of_the_last(mp3):
    assert num_samples(mp3 + mp3) >= 2 * N
    assert num_samples(mp3 + ID3V2 + mp3) >= 2 * N


def test_mp3_with_junk_midway_is_truncated(mp3):
    half = len(mp3) // 2
    assert kind_of(mp3[:half] + JUNK + mp3[half:]) == "truncated"


def test_mp3_without_a_header_decodes_to_its_end_whatever_follows(mp3):
    first = mp3.index(b"\xff\xfb", 10)
    bare = mp3[first:]
    whole = num_samples(bare)
    assert whole % 1152 == 0 and whole >= N
    for tail in (bytes(3000), JUNK, APE, ID3V1):
        assert num_samples(bare + tail) == whole
    assert kind_of(bare[: len(bare) // 2] + JUNK + bare[len(bare) // 2 :]) == "truncated"


def test_cut_within_an_id3_picture_is_truncated():
    assert kind_of(b"ID3\3\0\0\0\1\0\0" + bytes(500)) == "truncated"


def test_other_layers_and_aac_without_a_container_are_decoded():
    assert num_samples(with_av(sound(N), 48_000, "mp2", "mp2")) >= N
    aac = with_av(sound(N), 48_000, "adts", "aac")
    assert num_samples(aac) == num_samples(ID3V2 + aac) == num_samples(JUNK + aac) >= N
    assert kind_of(aac[: len(aac) // 2]) == "truncated"


# ---------------------------------------------------------------- containers


FAST = {"movflags": "+faststart"}
CONTAINERS = [
    ("ipod", "aac", 44_100, None, False),
    ("ipod", "alac", 44_100, None, False),
    ("mp4", "libopus", 48_000, None, False),
    ("mp4", "aac", 48_000, {"movflags": "frag_keyframe+empty_moov", "frag_duration": "200000"}, False),
    ("mov", "pcm_s16le", 44_100, None, False),
    ("3gp", "libopencore_amrnb", 8_000, None, False),
    ("webm", "libopus", 48_000, None, False),
    ("webm", "libopus", 48_000, None, True),
    ("matroska", "flac", 44_100, None, False),
    ("avi", "pcm_s16le", 44_100, None, False),
    ("flv", "aac", 44_100, None, False),
    ("mpegts", "aac", 44_100, None, False),
    ("amr", "libopencore_amrnb", 8_000, None, False),
    ("wv", "wavpack", 44_100, None, False),
    ("caf", "alac", 44_100, None, False),
]


@pytest.mark.parametrize(("format", "codec", "rate", "options", "pipe"), CONTAINERS)
def test_other_containers_are_decoded_and_found_cut(format, codec, rate, options, pipe):
    data = with_av(sound(N), rate, format, codec, options=options, pipe=pipe)
    assert abs(num_samples(data) - N) <= 3072  # codecs fill their last block
    assert kind_of(data[: len(data) * 6 // 10]) == "truncated"


@pytest.mark.parametrize("lost", [20, 2000])
def test_an_mp4_index_at_the_front_tells_what_is_lost(lost):
    # The encoder's muxer needs a real file to move the index, so the boxes are swapped by hand: mdat goes to the end of
    # the file as a box without a size, after which nothing but the index tells how much there should be.
    data = with_av(sound(N), 48_000, "mp4", "aac", options={"movflags": "frag_keyframe+empty_moov"})
    at = data.index(b"mdat") - 4
    size = int.from_bytes(data[at : at + 4], "big")
    endless = data[:at] + bytes(4) + data[at + 4 : at + size]
    assert abs(num_samples(endless) - N) <= 3072
    assert kind_of(endless[:-lost]) == "truncated"


def test_an_mp4_index_of_more_samples_than_bytes_is_refused():
    data = with_av(sound(N), 48_000, "mp4", "aac")
    at = data.index(b"stsz") + 12
    assert kind_of(patched(data, at, b"\x7f\xff\xff\xff"), allow_truncated=True) == "truncated"
