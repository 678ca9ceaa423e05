"""Headers of compressed recordings: FLAC, Ogg, MP4, Matroska, ASF. What they declare, and what is there.

Formats that declare a byte count of samples are in `headers_pcm`, MPEG audio is in `headers_mpeg`.
"""

import re
from collections.abc import Iterator

from pipeline.errors import AudioError
from pipeline.headers_pcm import short_of
from pipeline.layout import Layout
from pipeline.reading import Window

OGG_READ_BYTES = 1 << 18
OGG_HEAD_BYTES = 27 + 255 + 16  # a page's header at its longest, and what tells the codec
MAX_ELEMENTS = 1_000_000
SEGMENT = b"\x18\x53\x80\x67"


# ---------------------------------------------------------------- FLAC and Ogg


def flac(file: Window) -> Layout:
    """FLAC: STREAMINFO's total is checked here and hidden from the decoder, which would stop at one too small."""
    info = file.at(8, 18)
    if len(info) < 18 or file.at(4, 1)[0] & 127:
        return Layout("FLAC", 0, file.size)
    total = (info[13] & 15) << 32 | int.from_bytes(info[14:18], "big")
    patch = ((21, bytes([info[13] & 0xF0]) + bytes(4)),)
    return Layout("FLAC", 0, file.size, patch=patch, num_samples=total or None)


def ogg_pages(file: Window) -> Iterator[tuple[int, int, int, bytes]]:
    """(start, end, flags, first bytes of the body) of each page; what is no page is passed over."""
    data, base, at = b"", 0, 0  # `base`: where in the file `data` begins
    while True:
        if at - base + OGG_HEAD_BYTES > len(data) and base + len(data) < file.size:
            data, base = file.at(at, OGG_READ_BYTES), at
        page = data[at - base : at - base + OGG_HEAD_BYTES]
        if len(page) < 27:
            return
        if page[:4] != b"OggS":
            found = data.find(b"OggS", at - base + 1)
            at = base + (found if found >= 0 else max(len(data) - 3, at - base + 1))
            continue
        body = 27 + page[26]
        end = at + body + sum(page[27:body])
        yield at, end, page[5], page[body : body + 16]
        at = end


def ogg(file: Window) -> Layout:
    """Ogg: Vorbis and Opus are libsndfile's, which stops at the end of a chain's first link, so links are found.

    A link begins where a page with the begin flag follows one without. A page that the file ends within is left out.
    """
    links: list[int] = []
    codecs: set[bytes] = set()
    beginning, stop, missing = False, file.size, None
    for at, end, flags, body in ogg_pages(file):
        if end > file.size:
            missing, stop = short_of("its last page", end - at, file.size - at), at
        if flags & 2:
            if not beginning:
                links.append(at)
            if len(links) == 1:
                codecs.add(_ogg_codec(body))
        beginning = bool(flags & 2)
    if not codecs <= {b"vorbis", b"opus"} or len(codecs) != 1:
        return Layout("Ogg", 0, file.size, "ffmpeg", "ogg", missing)
    parts = tuple((start, end) for start, end in zip(links, [*links[1:], stop], strict=True) if start < end)
    return Layout(f"Ogg {codecs.pop().decode()}", 0, stop, missing=missing, links=parts)


def _ogg_codec(body: bytes) -> bytes:
    for magic, codec in ((b"\x01vorbis", b"vorbis"), (b"OpusHead", b"opus")):
        if body.startswith(magic):
            return codec
    return b"another"


# ---------------------------------------------------------------- MP4, Matroska, ASF


def boxes(file: Window, at: int, stop: int) -> Iterator[tuple[bytes, int, int]]:
    """(type, start of the content, declared end) of the MP4 boxes in bytes [at, stop)."""
    for _ in range(MAX_ELEMENTS):
        head = file.at(at, 16)
        if at + 8 > stop or len(head) < 8:
            return
        size, body = int.from_bytes(head[:4], "big"), at + 8
        if size == 1:
            size, body = int.from_bytes(head[8:16], "big"), at + 16
        elif size == 0:  # to the end of the file
            size = stop - at
        if size < body - at:
            return
        yield head[4:8], body, at + size
        at += size


def mp4(file: Window) -> Layout:
    """MP4, M4A, MOV, 3GP: boxes that the file ends within; a sample table that can't be true is refused.

    FFmpeg makes 24 bytes of index for each sample that the table declares, whether or not the file has room for it.
    """
    missing = None
    for kind, body, stop in boxes(file, 0, file.size):
        if kind == b"moov":
            _check_samples(file, body, min(stop, file.size))
        if kind in (b"moov", b"mdat", b"moof") and stop > file.size:
            missing = short_of(f"its {kind.decode()} box", stop - body, file.size - body)
    return Layout("MP4", 0, file.size, "ffmpeg", "mov", missing)


def _check_samples(file: Window, at: int, stop: int, depth: int = 0) -> None:
    for kind, body, end in boxes(file, at, stop):
        if kind in (b"trak", b"mdia", b"minf", b"stbl") and depth < 8:
            _check_samples(file, body, min(end, stop), depth + 1)
        elif kind in (b"stsz", b"stz2"):
            count = int.from_bytes(file.at(body + 8, 4), "big")
            if count > file.size:
                raise AudioError("truncated", f"MP4 with an index of {count} samples in a file of {file.size} bytes")


def matroska(file: Window) -> Layout:
    """Matroska and WebM: the size of the segment, or, where a live recorder left it unknown, those of its clusters."""
    missing = None
    size, body, _ = _ebml_size(file, 4)
    at = body + size
    size, body, unknown = _ebml_size(file, at + 4)
    if file.at(at, 4) == SEGMENT:
        if not unknown and body + size > file.size:
            missing = short_of("its segment", size, file.size - body)
        at = body
        for _ in range(MAX_ELEMENTS if unknown else 0):
            element = file.at(at, 1)
            if not element or element[0] < 0x10:  # the elements of this level have names of up to 4 bytes
                break
            size, body, endless = _ebml_size(file, at + 9 - element[0].bit_length())
            if endless:
                break
            if body + size > file.size:
                missing = short_of("a cluster of it", size, file.size - body)
            at = body + size
    return Layout("Matroska", 0, file.size, "ffmpeg", "matroska", missing)


def _ebml_size(file: Window, at: int) -> tuple[int, int, bool]:
    """(size, where the content begins, whether the size is marked unknown) from an EBML length at byte `at`."""
    first = file.at(at, 1)
    if not first or not first[0]:
        return 0, at + 1, True
    width = 9 - first[0].bit_length()
    raw = int.from_bytes(file.at(at, width), "big")
    mask = (1 << 7 * width) - 1
    return raw & mask, at + width, raw & mask == mask


def asf(file: Window) -> Layout:
    """ASF (WMA, WMV): the size of the data object, unless the header says that it was broadcast."""
    missing = None
    header = int.from_bytes(file.at(16, 8), "little")
    properties = re.search(
        re.escape(bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")), file.at(0, min(header, 1 << 16))
    )
    broadcast = properties is not None and file.at(properties.start() + 88, 1)[:1] in (b"\1", b"\3")
    size = int.from_bytes(file.at(header + 16, 8), "little")
    if not broadcast and size < 1 << 62 and header + size > file.size:
        missing = short_of("its data object", size, file.size - header)
    return Layout("ASF", 0, file.size, "ffmpeg", "asf", missing)
