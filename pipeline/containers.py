"""What kind of recording some bytes are, by their content alone; and what else they look like if they're none.

Only formats named here are ever decoded. FFmpeg is told which demuxer to use and never guesses: playlists, subtitles
and pictures would have it open other files and addresses. The formats' own headers are read in `headers_*`.
"""

import re

from pipeline import headers_coded, headers_mpeg, headers_pcm
from pipeline.errors import AudioError
from pipeline.layout import Layout
from pipeline.reading import Window

HEAD_BYTES = 4096

# (where, magic bytes, reader of the header)
READERS = (
    (0, b"RIFF....WAVE", headers_pcm.riff_wave),
    (0, b"RIFX....WAVE", headers_pcm.riff_wave),
    (0, b"RF64....WAVE", headers_pcm.riff_wave),
    (0, b"BW64....WAVE", headers_pcm.riff_wave),
    (0, rb"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00", headers_pcm.wave64),
    (0, b"FORM....AIF[FC]", headers_pcm.aiff),
    (0, rb"\.snd|dns\.", headers_pcm.au),
    (0, b"caff", headers_pcm.caf),
    (0, b"NIST_1A", headers_pcm.sphere),
    (0, b"RIFF....AVI ", headers_pcm.avi),
    (0, b"Creative Voice File", headers_pcm.voc),
    (0, b"FORM....(8SVX|16SV)", headers_pcm.iff),
    (0, b"OggS", headers_coded.ogg),
    (4, b"ftyp|moov|mdat|moof|wide|skip|free|pnot", headers_coded.mp4),
    (0, rb"\x1a\x45\xdf\xa3", headers_coded.matroska),
    (0, rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11", headers_coded.asf),
)
# (magic bytes at the start, name, FFmpeg's demuxer or "" for libsndfile)
PLAIN = (
    (rb"#!AMR(-WB)?\n", "AMR", "amr"),
    (rb"FLV\x01", "FLV", "flv"),
    (rb"wvpk", "WavPack", "wv"),
    (rb"MAC ", "Monkey's Audio", "ape"),
    (rb"TTA1", "True Audio", "tta"),
    (rb"MP\+", "Musepack", "mpc"),
    (rb"MPCK", "Musepack", "mpc8"),
    (rb"\x00\x00\x01\xba", "MPEG programme stream", "mpeg"),
    (rb"\x47.{187}\x47.{187}\x47", "MPEG transport stream", "mpegts"),
    (rb"\x0b\x77...[\x00-\x57]", "AC-3", "ac3"),
    (rb"\x0b\x77...[\x58-\x87]", "E-AC-3", "eac3"),
    (rb"\x7f\xfe\x80\x01", "DTS", "dts"),
    (rb"(\x64\xa3[\x00-\x0f]\x00|\x00[\x00-\x0f]\xa3\x64)", "IRCAM", ""),
    (rb"PVF1\n", "PVF", ""),
    (rb" paf|fap ", "PAF", ""),
)
OTHERS = (
    (rb"version https://git-lfs", "a git-lfs pointer: fetch the file itself with `git lfs pull`"),
    (rb"\x89PNG|\xff\xd8\xff|GIF8[79]a|RIFF....WEBP|BM....\x00\x00\x00\x00|II\*\x00|MM\x00\*", "a picture"),
    (rb"(?i)\s*(<!doctype html|<html|<head|<body)", "an HTML page"),
    (rb"(?i)\s*<(\?xml|error|svg|rss|smil)", "an XML document"),
    (rb"#EXTM3U|\[playlist\]|ffconcat version", "a playlist: it names recordings and holds none"),
    (rb"%PDF", "a PDF"),
    (rb"PK\x03\x04|PK\x05\x06", "a zip archive"),
    (rb"\x1f\x8b", "a gzip archive"),
    (rb"BZh[1-9]1AY|\xfd7zXZ\x00|7z\xbc\xaf\x27\x1c|Rar!|\x28\xb5\x2f\xfd", "an archive"),
    (rb".{257}ustar", "a tar archive"),
    (rb"\x93NUMPY", "a NumPy array"),
    (rb"PAR1", "a parquet file"),
    (rb"ARROW1|\xff\xff\xff\xff....\x10\x00\x00\x00", "an Arrow file"),
    (rb"MThd|RIFF....RMID", "MIDI: notes, no sound"),
    (rb"\s*[\[{]\s*[\"\[{\]}]", "JSON"),
    (rb"SQLite format 3", "a database"),
    (rb"\x7fELF|MZ", "a program"),
)


def identify(file: Window) -> Layout:
    """The layout of the recording in `file`. Raises AudioError `unreadable` for anything that is none of ours.

    Tags before and after (ID3v2; ID3v1, APE, Lyrics3) and junk before an MPEG stream are left out of the layout.
    """
    if file.size == 0:
        raise AudioError("unreadable", "no bytes at all")
    start = _after_id3(file)
    if start == file.size:
        raise AudioError("unreadable", "an ID3 tag and no sound after it")
    if start > file.size:
        word = f"ends early: its ID3 tag declares {start} bytes, of which {file.size} are there"
        raise AudioError("truncated", f"MP3 {word}")
    return _untagged(file.part(start, file.size)).moved(start)


def _untagged(file: Window) -> Layout:
    head = file.at(0, HEAD_BYTES)
    for at, magic, reader in READERS:
        if re.match(magic, head[at : at + 32], re.DOTALL):
            return reader(file)
    for magic, name, demuxer in PLAIN:
        if re.match(magic, head, re.DOTALL):
            return Layout(name, 0, file.size, "ffmpeg" if demuxer else "libsndfile", demuxer)
    untagged = file.part(0, headers_mpeg.before_tags(file))
    if head[:4] == b"fLaC":
        return headers_coded.flac(untagged)
    layout = headers_mpeg.mpeg_or_adts(untagged)
    if layout is None:
        raise AudioError("unreadable", f"no format that can be decoded: {_looks_like(head)}")
    return layout


def _after_id3(file: Window) -> int:
    """Where the ID3v2 tags at the start end; some files have several."""
    at = 0
    for _ in range(16):
        head = file.at(at, 10)
        if len(head) < 10 or head[:3] != b"ID3" or head[3] == 0xFF or any(byte & 0x80 for byte in head[6:]):
            break
        size = head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9]
        at += 10 + size + (10 if head[5] & 0x10 else 0)
    return at


def _looks_like(head: bytes) -> str:
    """In words, what `head` is the beginning of, as far as one can tell."""
    for magic, name in OTHERS:
        if re.match(magic, head, re.DOTALL):
            return f"it looks like {name}"
    if not any(head):
        return f"it begins with {len(head)} zero bytes"
    try:
        text = head[:256].decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    if text and all(letter.isprintable() or letter in "\r\n\t" for letter in text):
        return f"it looks like text: {text[:60]!r}"
    return f"it begins with {head[:8].hex(' ')}"
