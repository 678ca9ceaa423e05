"""Headers of formats that declare how many bytes of samples follow: WAV, RF64, Wave64, AIFF, AU, CAF, SPHERE, AVI.

libsndfile hides where these end early (it reports the shortened length as declared), so their byte counts are read
here. Compressed streams are left to `headers_coded`.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pipeline.layout import Layout
from pipeline.reading import Window

Endian = Literal["little", "big"]
MAX_CHUNKS = 100_000
MPEG_TAGS = {0x50, 0x55}  # WAVE format tags whose data chunk is an MPEG audio stream
SNDFILE_TAGS = {1, 2, 3, 6, 7, 0x11, 0x31, 0x38, 0x40}  # PCM, ADPCM, float, A-law, mu-law, GSM, G.721, ...
EXTENSIBLE = 0xFFFE  # the type is that of a GUID further on
W64_DATA = bytes.fromhex("64617461f3acd3118cd100c04f8edb8a")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of a RIFF-like file."""

    id: bytes
    field: int  # where its size is written
    body: int  # where its content begins
    size: int  # as declared


def is_placeholder(size: int) -> bool:
    """Whether a 32-bit size is one that programs write when they don't know it: writing to a pipe, or killed.

    FFmpeg and lame write 0xFFFFFFFF or a header's length less, sox 0x7FFFF000, arecord 0x80000000.
    """
    return size >= 0xFFFFFF00 or 0x7FFFEF00 <= size <= 0x80000000


def chunks(file: Window, at: int, endian: Endian) -> Iterator[Chunk]:
    """The chunks from byte `at` on, as far as they can be followed."""
    for _ in range(MAX_CHUNKS):
        head = file.at(at, 8)
        if len(head) < 8:
            return
        chunk = Chunk(head[:4], at + 4, at + 8, int.from_bytes(head[4:], endian))
        yield chunk
        at = chunk.body + chunk.size + chunk.size % 2


def has_chunk_at(file: Window, at: int) -> bool:
    """Whether something that looks like a chunk begins at byte `at` and ends within the file."""
    head = file.at(at, 8)
    size = min(int.from_bytes(head[4:8], "little"), int.from_bytes(head[4:8], "big"))
    return len(head) == 8 and re.fullmatch(rb"[ -~]{4}", head[:4]) is not None and at + 8 + size <= file.size + 1


def short_of(what: str, declared: int, there: int) -> str:
    """Words for a part that ends early; both counts in bytes."""
    return f"{what} declares {declared} bytes, of which {max(0, there)} are there"


def riff_wave(file: Window) -> Layout:
    """WAV and RF64 (BW64): the data chunk's size, or ds64's, against the bytes that are there."""
    endian: Endian = "big" if file.at(0, 4) == b"RIFX" else "little"
    name = "WAV" if file.at(0, 3) == b"RIF" else "RF64"
    riff_size, wide, fmt = int.from_bytes(file.at(4, 4), endian), None, b""
    missing = None
    for chunk in chunks(file, 12, endian):
        if chunk.id == b"ds64":
            wide = chunk
        elif chunk.id == b"fmt ":
            fmt = file.at(chunk.body, min(chunk.size, 1 << 16))
        elif chunk.id == b"data":
            if wide is not None and chunk.size == 0xFFFFFFFF:
                return _rf64_data(file, chunk, wide, max(1, int.from_bytes(fmt[12:14], "little")))
            return _wave_data(file, name, endian, chunk, riff_size, fmt)
        if chunk.body + chunk.size > file.size:
            missing = short_of(f"its {chunk.id.decode('latin-1')!r} chunk", chunk.size, file.size - chunk.body)
    if missing is None and file.size < riff_size + 8 and not is_placeholder(riff_size):
        missing = short_of("its header", riff_size + 8, file.size)
    return Layout(name, 0, file.size, missing=missing)


def _wave_data(file: Window, name: str, endian: Endian, data: Chunk, riff: int, fmt: bytes) -> Layout:
    there, declared, patch = file.size - data.body, data.size, ()
    tag, block, bits = (int.from_bytes(fmt[at : at + 2], endian) for at in (0, 12, 14))
    block, tag = max(1, block), int.from_bytes(fmt[24:26], endian) if tag == EXTENSIBLE else tag
    unknown = is_placeholder(declared) or (declared == 0 and there > 0 and not has_chunk_at(file, data.body))
    # A file that the outer size describes exactly is whole, whatever the data chunk's own size says. Programs that
    # know no RF64 let both sizes of a file above 4 GiB wrap around.
    outer_fits = (file.size - 8 - riff) % 2**32 <= 1
    wrong = outer_fits and (declared > there or not _ends_well(file, data.body + declared))
    missing = None
    if (unknown or wrong) and declared != there:
        declared = there
        if there >= 0xFFFFFFFF and endian == "little":
            return Layout(name, data.body, file.size, head=_rf64_head(fmt, there, block))
        patch = ((data.field, min(there, 0xFFFFFFFF).to_bytes(4, endian)),)
    elif declared // block > there // block:
        missing = short_of("its data chunk", declared, there)
    stop = min(file.size, data.body + declared)
    if tag in MPEG_TAGS:
        return Layout("MP3 in WAV", data.body, stop, "ffmpeg", "mp3", missing)
    if tag not in SNDFILE_TAGS or (tag == 1 and bits > 32):
        return Layout(f"WAV of type {tag:#x}, {bits} bits", 0, file.size, "ffmpeg", "wav", missing)
    return Layout(name, 0, file.size, missing=missing, patch=patch)


def _rf64_head(fmt: bytes, size: int, block: int) -> bytes:
    """A header that can say how long samples of more than 4 GiB are."""
    body = b"ds64" + struct.pack("<IQQQI", 28, size + 60 + len(fmt), size, size // block, 0)
    body += b"fmt " + struct.pack("<I", len(fmt)) + fmt + b"data" + b"\xff" * 4
    return b"RF64" + b"\xff" * 4 + b"WAVE" + body


def _rf64_data(file: Window, data: Chunk, wide: Chunk, block: int) -> Layout:
    """The data chunk's size is ds64's second number, and its length in samples the third."""
    there, declared = file.size - data.body, int.from_bytes(file.at(wide.body + 8, 8), "little")
    if (declared == 0 and there > 0) or declared >= 1 << 62:
        patch = (wide.body + 8, there.to_bytes(8, "little") + (there // block).to_bytes(8, "little"))
        return Layout("RF64", 0, file.size, patch=(patch,))
    missing = short_of("its data chunk", declared, there) if declared // block > there // block else None
    return Layout("RF64", 0, file.size, missing=missing)


def _ends_well(file: Window, at: int) -> bool:
    """Whether the file ends at byte `at`, but for a pad byte, or another chunk follows there."""
    return file.size - at <= 8 or has_chunk_at(file, at) or has_chunk_at(file, at + 1)


def wave64(file: Window) -> Layout:
    """Sony Wave64: chunks named by 16 bytes, with 64-bit sizes that include their 24-byte heads, aligned to 8."""
    at, missing, patch = 40, None, []
    total = int.from_bytes(file.at(16, 8), "little")
    if total == 0 or total >= 1 << 62:
        patch.append((16, file.size.to_bytes(8, "little")))
    for _ in range(MAX_CHUNKS):
        head = file.at(at, 24)
        size = int.from_bytes(head[16:], "little")
        if len(head) < 24:
            break
        if head[:16] == W64_DATA:
            if size <= 24 < file.size - at or size >= 1 << 62:
                patch.append((at + 16, (file.size - at).to_bytes(8, "little")))
            elif at + size > file.size:
                missing = short_of("its data chunk", size - 24, file.size - at - 24)
            return Layout("W64", 0, file.size, missing=missing, patch=tuple(patch))
        if size < 24:
            break
        at += size + -size % 8
    if file.size < total < 1 << 62:
        missing = short_of("its header", total, file.size)
    return Layout("W64", 0, file.size, missing=missing)


def aiff(file: Window) -> Layout:
    """AIFF and AIFF-C: the SSND chunk's size, whose first 8 bytes aren't samples."""
    block, comm, missing = 1, None, None
    for chunk in chunks(file, 12, "big"):
        there = file.size - chunk.body
        if chunk.id == b"COMM":
            comm = chunk
            body = file.at(chunk.body, 8)
            block = max(1, int.from_bytes(body[:2], "big") * -(-int.from_bytes(body[6:8], "big") // 8))
        elif chunk.id == b"SSND":
            empty = chunk.size == 0 and there > 8 and not has_chunk_at(file, chunk.body)
            if (is_placeholder(chunk.size) or empty) and comm is not None:
                return Layout("AIFF", 0, file.size, patch=_aiff_patch(chunk, comm, there, block))
            if (chunk.size - 8) // block > (there - 8) // block:
                missing = short_of("its SSND chunk", chunk.size, there)
            return Layout("AIFF", 0, file.size, missing=missing)
        if chunk.size > there:
            missing = short_of(f"its {chunk.id.decode('latin-1')!r} chunk", chunk.size, there)
    total = int.from_bytes(file.at(4, 4), "big")
    if file.size < total + 8 and not is_placeholder(total):
        missing = short_of("its header", total + 8, file.size)
    return Layout("AIFF", 0, file.size, missing=missing)


def _aiff_patch(sound: Chunk, comm: Chunk, there: int, block: int) -> tuple[tuple[int, bytes], ...]:
    size, frames = min(there, 0xFFFFFFFF), min((there - 8) // block, 0xFFFFFFFF)
    return ((sound.field, size.to_bytes(4, "big")), (comm.body + 2, frames.to_bytes(4, "big")))


def au(file: Window) -> Layout:
    """Sun AU, big-endian, or little-endian as DEC wrote it. A size of 0xFFFFFFFF is unknown by definition."""
    endian: Endian = "big" if file.at(0, 4) == b".snd" else "little"
    head = file.at(4, 20)
    data, declared = int.from_bytes(head[:4], endian), int.from_bytes(head[4:8], endian)
    there, missing, patch = file.size - data, None, ()
    if is_placeholder(declared) or declared < there:  # nothing can follow the samples, so a smaller size is wrong
        patch = ((8, b"\xff" * 4),)
    elif declared > there:
        missing = short_of("its header", declared, there)
    return Layout("AU", 0, file.size, missing=missing, patch=patch)


def caf(file: Window) -> Layout:
    """Core Audio: 64-bit chunk sizes; the data chunk's may be -1, and begins with a 4-byte edit count."""
    at, codec, missing, patch = 8, b"lpcm", None, ()
    for _ in range(MAX_CHUNKS):
        head = file.at(at, 12)
        size = int.from_bytes(head[4:], "big", signed=True)
        if len(head) < 12:
            break
        if head[:4] == b"desc":
            codec = file.at(at + 20, 4)
        if at + 12 + size > file.size:
            missing = short_of(f"its {head[:4].decode('latin-1')!r} chunk", size, file.size - at - 12)
        if head[:4] == b"data" and (size < 0 or missing):  # libsndfile takes neither
            patch = ((at + 4, (file.size - at - 12).to_bytes(8, "big")),)
        if size < 0:
            break
        at += 12 + size
    if codec in (b"lpcm", b"ulaw", b"alaw", b"ima4"):
        return Layout("CAF", 0, file.size, missing=missing, patch=patch)
    return Layout(f"CAF of {codec.decode('latin-1')!r}", 0, file.size, "ffmpeg", "caf", missing)


def sphere(file: Window) -> Layout:
    """NIST SPHERE: a header of text lines. Shorten-compressed files (LDC's) are FFmpeg's."""
    size = file.at(8, 8).split(b"\n")[0].strip()
    start = int(size) if size.isdigit() else 1024
    fields = dict(re.findall(rb"(?m)^(\w+) -\w+ ([^\r\n]+)", file.at(0, min(start, 1 << 16))))
    if b"shorten" in fields.get(b"sample_coding", b""):
        return Layout("SPHERE (shorten)", 0, file.size, "ffmpeg", "nistsphere")
    counts = [fields.get(key, b"").strip() for key in (b"sample_count", b"channel_count", b"sample_n_bytes")]
    missing = None
    if all(count.isdigit() and len(count) < 16 for count in counts):
        declared = int(counts[0]) * int(counts[1]) * int(counts[2])
        if declared > file.size - start:
            missing = short_of("its header", declared, file.size - start)
    return Layout("SPHERE", 0, file.size, missing=missing)


def avi(file: Window) -> Layout:
    """AVI: RIFF's own size. Longer files go on in further RIFF chunks."""
    declared = int.from_bytes(file.at(4, 4), "little")
    short = file.size < declared + 8 and not is_placeholder(declared)
    return Layout(
        "AVI", 0, file.size, "ffmpeg", "avi", short_of("its header", declared, file.size - 8) if short else None
    )


def iff(file: Window) -> Layout:
    """Amiga 8SVX and 16SV: the BODY chunk's size."""
    missing = None
    for chunk in chunks(file, 12, "big"):
        if chunk.body + chunk.size > file.size:
            missing = short_of(f"its {chunk.id.decode('latin-1')!r} chunk", chunk.size, file.size - chunk.body)
    return Layout("IFF", 0, file.size, missing=missing)


def voc(file: Window) -> Layout:
    """Creative Voice: blocks of a type byte and a 24-bit size, to a block of type 0 or the end."""
    at, missing = int.from_bytes(file.at(20, 2), "little"), None
    for _ in range(MAX_CHUNKS):
        head = file.at(at, 4)
        if len(head) < 4 or head[0] == 0:
            break
        size = int.from_bytes(head[1:], "little")
        if at + 4 + size > file.size:
            missing = short_of("a block of it", size, file.size - at - 4)
        at += 4 + size
    return Layout("VOC", 0, file.size, missing=missing)
