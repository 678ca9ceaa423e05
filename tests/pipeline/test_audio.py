"""Recordings become mono blocks at 24 kHz; what can't says why."""

import functools
import http.server
import io
import os
import threading

import numpy as np
import pytest
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.audio import open_audio
from pipeline.errors import AudioError, SourceError
from pipeline.records import Audio
from tests.pipeline.recordings import RATE, decode, film, kind_of, num_samples, sound, wav, with_av, with_soundfile


def through_int16(x: np.ndarray) -> np.ndarray:
    return (np.round(x * 32767) / 32768).astype(np.float32)


# ---------------------------------------------------------------- samples


def test_samples_at_24_khz_are_unchanged():
    x = sound(50_001)
    assert np.array_equal(decode(wav(x)), through_int16(x))
    loud = 5 * x  # nothing is clipped
    assert np.array_equal(decode(with_soundfile(loud, RATE, "WAV", "FLOAT")), loud)


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 22_050, 32_000, 44_100, 44_101, 48_000, 96_000, 192_000])
def test_resampling_in_blocks_equals_the_whole(rate):
    x = sound(2 * rate + 777)
    assert np.array_equal(decode(wav(x, rate)), soxr.resample(through_int16(x), rate, RATE, quality="HQ"))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5000), st.sampled_from([8_000, 16_000, 44_100, 48_000]))
def test_length_is_the_exact_one_rounded(n, rate):
    samples = len(decode(wav(sound(n), rate)))
    assert samples == int(np.floor(n * RATE / rate + 0.5))


@pytest.mark.parametrize(("n", "rate"), [(1280, 16_000), (3528, 44_100), (3840, 48_000)])
def test_one_frame_of_sound_is_one_frame_at_any_rate(n, rate):
    assert len(decode(wav(sound(n), rate))) == 1920


def test_blocks_are_bounded_and_never_empty():
    with open_audio(Audio(wav(sound(10 * 44_100), 44_100), None), channel="mix") as stream:
        lengths = [len(block) for block in stream]
    assert min(lengths) > 0 and max(lengths) <= 2 * RATE and len(lengths) >= 10


def test_source_is_described_and_counted():
    x = np.stack([sound(30_000)] * 2, 1)
    with open_audio(Audio(wav(x, 16_000), None), channel="mix") as stream:
        assert (stream.sample_rate, stream.num_channels, stream.samples) == (16_000, 2, 0)
        first = next(stream)
        assert first.dtype == np.float32 and 0 < stream.samples < 30_000
        for _ in stream:
            pass
        assert stream.samples == 30_000


# ---------------------------------------------------------------- channels


def test_channels_are_mixed_or_taken_alone():
    x = np.stack([sound(30_000, seed) for seed in range(3)], 1)
    data = with_soundfile(x, RATE, "WAV", "FLOAT")
    assert np.array_equal(decode(data), x.mean(1, dtype=np.float64).astype(np.float32))
    for channel in range(3):
        assert np.array_equal(decode(data, channel=channel), x[:, channel])


def test_opposed_channels_mix_to_silence():
    x = sound(5_000)
    assert not decode(wav(np.stack([x, -x], 1))).any()


def test_a_channel_that_is_not_there_is_refused():
    assert kind_of(wav(sound(100)), channel=1) == "unreadable"


def test_mean_of_huge_samples_is_finite():
    x = np.full((100, 2), 3e38, np.float32)
    assert np.array_equal(decode(with_soundfile(x, RATE, "WAV", "FLOAT")), x[:, 0])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_fails_where_it_is_used(value):
    x = np.stack([sound(48_000)] * 2, 1)
    x[36_000, 1] = value
    data = with_soundfile(x, RATE, "WAV", "FLOAT")
    with pytest.raises(AudioError, match=r"at 1\.500 s") as caught:
        decode(data)
    assert caught.value.kind == "not_finite"
    assert kind_of(data, channel=1) == "not_finite"
    assert kind_of(data, channel=0) == "codes"


# ---------------------------------------------------------------- nothing to decode


def test_no_samples_is_empty():
    assert kind_of(wav(sound(0))) == "empty"
    for format in ("AIFF", "W64", "CAF", "AU", "OGG"):
        assert kind_of(with_soundfile(sound(0), RATE, format)) == "empty"
    assert kind_of(wav(sound(1), 192_000)) == "empty"  # less than one sample at 24 kHz


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "no bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "git-lfs"),
        (b"<!DOCTYPE html>\n<html></html>", "HTML"),
        (b"#EXTM3U\n#EXTINF:1\nfile:///etc/passwd\n", "playlist"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", "playlist"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "picture"),
        (b'{"error": "not found"}', "JSON"),
        (b"PK\x03\x04" + bytes(100), "zip"),
        (b"just words", "text"),
        (bytes(5000), "zero bytes"),
        (np.random.default_rng(0).bytes(200_000), "begins with"),
        (np.round(sound(48_000) * 32767).astype("<i2").tobytes(), "begins with"),
        (b"RIFF\x24\0\0\0WAVE", "WAV"),
        (b"ID3\x03\0\0\0\0\0\x0a" + bytes(10), "ID3"),
    ],
)
def test_what_is_no_recording_is_unreadable_and_named(data, word):
    with pytest.raises(AudioError, match=word) as caught:
        decode(data, allow_truncated=True)
    assert caught.value.kind == "unreadable"


def test_a_film_without_sound_is_unreadable():
    with pytest.raises(AudioError, match="without sound") as caught:
        decode(film())
    assert caught.value.kind == "unreadable"


@pytest.mark.parametrize(("rate", "channels"), [(0, 1), (999, 1), (2**31, 1), (RATE, 0), (RATE, 300), (RATE, 65535)])
def test_absurd_rates_and_channels_are_refused(rate, channels):
    data = bytearray(wav(sound(1000)))
    data[22:24], data[24:28] = channels.to_bytes(2, "little"), rate.to_bytes(4, "little")
    assert kind_of(bytes(data)) == "unreadable"


# ---------------------------------------------------------------- where it comes from


def test_bytes_win_over_a_path_and_names_mean_nothing(tmp_path):
    x = sound(2_000)
    assert np.array_equal(decode(wav(x), "/nowhere/x.mp3"), through_int16(x))
    for name in ("x.raw", "x.mp3", "x"):
        (tmp_path / name).write_bytes(wav(x))
        assert np.array_equal(decode(None, str(tmp_path / name)), through_int16(x))
        assert np.array_equal(decode(None, f"file://{tmp_path / name}"), through_int16(x))


def test_paths_that_lead_to_no_file_are_unreadable_at_once(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    paths = [tmp_path / "gone.wav", tmp_path, tmp_path / "fifo", tmp_path / "loop", tmp_path / ("x" * 300), "/dev/zero"]
    for path in [*map(str, paths), "~/x.wav", "x\0y", "nope://x/y.wav"]:
        assert kind_of(None, path) == "unreadable", path
    assert kind_of(None, None) == "unreadable"
    assert kind_of(None, "") == "unreadable"


def test_remote_files_are_read_through_the_opener():
    data = with_av(sound(24_000), RATE, "mp3", "libmp3lame")
    asked = []

    def open_file(url: str) -> io.BytesIO:
        asked.append(url)
        return io.BytesIO(data)

    remote = decode(None, "s3://bucket/x.mp3", open_file=open_file)
    assert asked == ["s3://bucket/x.mp3"]
    assert np.array_equal(remote, decode(data))


class Failing(io.BytesIO):
    """Bytes of which only the first can be read."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() >= 20_000:
            raise ConnectionResetError("the peer has gone")
        return super().read(size)

    def readinto(self, buffer) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


@pytest.mark.parametrize("format", ["wav", "mp3", "ogg"])
def test_a_lost_connection_is_no_fault_of_the_recording(format):
    x = sound(200_000)
    data = {
        "wav": lambda: wav(x),
        "mp3": lambda: with_av(x, RATE, "mp3", "libmp3lame"),
        "ogg": lambda: with_soundfile(x, RATE, "OGG", "VORBIS"),
    }[format]()
    with pytest.raises(SourceError, match="the peer has gone"):
        decode(None, "s3://bucket/x", open_file=lambda _: Failing(data), allow_truncated=True)


def refuse(error: Exception):
    def open_file(_: str):
        raise error

    return open_file


def test_errors_of_opening_are_the_paths_or_may_pass():
    for error in (FileNotFoundError("404"), PermissionError("403"), IsADirectoryError("x")):
        assert kind_of(None, "s3://bucket/x", open_file=refuse(error)) == "unreadable"
    for error in (TimeoutError("slow"), ConnectionError("reset"), RuntimeError("a client's own")):
        with pytest.raises(SourceError):
            decode(None, "s3://bucket/x", open_file=refuse(error))


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # aiohttp's, at fsspec's exit
def test_a_server_without_byte_ranges_will_do(tmp_path):
    (tmp_path / "x.wav").write_bytes(wav(sound(30_000)))
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    handler.log_message = lambda *_: None  # pyright: ignore[reportAttributeAccessIssue]
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        assert num_samples(wav(sound(30_000))) == len(decode(None, f"{url}/x.wav"))
        assert kind_of(None, f"{url}/gone.wav") == "unreadable"
    finally:
        server.shutdown()
        server.server_close()


def test_closing_midway_lets_go_of_the_file(tmp_path):
    (tmp_path / "x.wav").write_bytes(wav(sound(100_000)))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        stream = open_audio(Audio(None, str(tmp_path / "x.wav")), channel="mix")
        next(stream)
        stream.close()
        stream.close()
    assert kind_of(None, str(tmp_path)) == "unreadable"
    assert len(os.listdir("/proc/self/fd")) == before


def test_decoders_stay_silent(capfd):
    for data in (with_av(sound(9_000), RATE, "mp3", "libmp3lame"), with_soundfile(sound(9_000), RATE, "FLAC")):
        for cut in (50, len(data) // 2, len(data) - 7):
            kind_of(data[:cut], allow_truncated=True)
    assert capfd.readouterr() == ("", "")
