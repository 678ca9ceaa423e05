"""MPEG audio and AAC in ADTS: streams without a container, whose frames are found, sized and counted here.

Everything with a header of its own is in `headers_coded` and `headers_pcm`.
"""

import re
from collections.abc import Callable

from pipeline.layout import Layout
from pipeline.reading import Window

JUNK_BYTES = 1 << 17  # before the first frame, at most
FRAMES_AFTER_JUNK = 5  # alike, one after the other: no chance
FRAMES_AT_START = 3
# Bit rates in kbit/s by [MPEG-1?][layer], index 0 of the tables is "free format". ISO 11172-3 and 13818-3.
KBITS = {
    (True, 1): (0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (True, 2): (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}


def mpeg_frame_bytes(head: bytes) -> int | None:
    """The length of the MPEG audio frame (layers I to III) that begins with these 4 bytes; None if none does."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return None
    version, layer = head[1] >> 3 & 3, 4 - (head[1] >> 1 & 3)
    bits, rate = head[2] >> 4, head[2] >> 2 & 3
    if version == 1 or layer == 4 or bits in (0, 15) or rate == 3:
        return None
    hertz = (44100, 48000, 32000)[rate] >> {3: 0, 2: 1, 0: 2}[version]
    bit_rate, padding = KBITS[version == 3, layer][bits] * 1000, head[2] >> 1 & 1
    if layer == 1:
        return (12 * bit_rate // hertz + padding) * 4
    return (144 if layer == 2 or version == 3 else 72) * bit_rate // hertz + padding


def adts_frame_bytes(head: bytes) -> int | None:
    """The length of the AAC frame in ADTS that begins with these 6 bytes; None if none does."""
    if len(head) < 6 or head[0] != 0xFF or head[1] & 0xF6 != 0xF0 or head[2] >> 2 & 15 > 12:
        return None
    size = (head[3] & 3) << 11 | head[4] << 3 | head[5] >> 5
    return size if size > 7 else None


def mpeg(file: Window) -> Layout:
    """MPEG audio from its first frame on: the number of frames that its Xing, Info or VBRI header declares.

    The frame that holds the header isn't one of them, but some encoders count it too: one less is allowed where the
    number of bytes, declared beside it, is all there.
    """
    head = file.at(0, 200)
    mono, mpeg1 = head[3] >> 6 == 3, head[1] >> 3 & 3 == 3
    side_info = (17 if mono else 32) if mpeg1 else (9 if mono else 17)
    name = f"MP{4 - (head[1] >> 1 & 3)}"
    frames, size = 0, 0
    for at in (4 + side_info, 6 + side_info):  # with a checksum, it is two bytes on
        if head[at : at + 4] in (b"Xing", b"Info"):
            has_frames, has_size = head[at + 7] & 1, head[at + 7] & 2
            frames = int.from_bytes(head[at + 8 : at + 12], "big") if has_frames else 0
            size = int.from_bytes(head[at + 12 : at + 16], "big") if has_frames and has_size else 0
            break
    else:
        if head[36:40] == b"VBRI":
            size, frames = int.from_bytes(head[46:50], "big"), int.from_bytes(head[50:54], "big")
    stop = file.size
    if frames and 0 < size <= file.size:
        frames -= 1
        # FFmpeg doubts the header, and with it the exact length, of a file that is longer than it says.
        stop = file.size if find_frames(file.part(size, file.size), mpeg_frame_bytes) is not None else size
    return Layout(name, 0, stop, "ffmpeg", "mp3", num_packets=frames or None)


def mpeg_or_adts(file: Window) -> Layout | None:
    """The layout of the stream that `file` begins with, junk before it left out; None if it isn't one."""
    at = find_frames(file, mpeg_frame_bytes)
    if at is not None:
        return mpeg(file.part(at, file.size)).moved(at)
    at = find_frames(file, adts_frame_bytes)
    return None if at is None else Layout("AAC", at, file.size, "ffmpeg", "aac")


def find_frames(file: Window, frame_bytes: Callable[[bytes], int | None]) -> int | None:
    """Where, near the start of `file`, frames begin that follow one another."""
    for match in re.finditer(rb"\xff[\xe0-\xff]", file.at(0, JUNK_BYTES)):
        at = match.start()
        if _has_frames(file, at, FRAMES_AFTER_JUNK if at else FRAMES_AT_START, frame_bytes):
            return at
    return None


def _has_frames(file: Window, at: int, wanted: int, frame_bytes: Callable[[bytes], int | None]) -> bool:
    """Whether `wanted` alike frames follow one another from byte `at`, or as many as there are to the very end."""
    first = b""
    for found in range(wanted):
        head = file.at(at, 6)
        size = frame_bytes(head)
        if size is None or (first and (head[1] != first[1] or (head[2] ^ first[2]) & 0x0C)):
            return False
        first, at = first or head, at + size
        if at >= file.size:
            return at == file.size or found > 0
    return True


def before_tags(file: Window) -> int:
    """Where the tags at the end begin: ID3v1, and before it Lyrics3 or APE, in any order."""
    stop = file.size
    for _ in range(4):
        if stop >= 128 and file.at(stop - 128, 3) == b"TAG":
            stop -= 128
        elif stop >= 32 and (tail := file.at(stop - 32, 32))[:8] == b"APETAGEX":
            size = int.from_bytes(tail[12:16], "little") + (32 if tail[23] & 0x80 else 0)
            stop -= min(stop, max(32, size))
        elif stop >= 15 and (tail := file.at(stop - 15, 15))[6:] == b"LYRICS200" and tail[:6].isdigit():
            stop -= min(stop, 15 + int(tail[:6]))
        else:
            break
    return stop
