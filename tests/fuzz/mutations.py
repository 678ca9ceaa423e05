"""Small recordings of each format, and ways to damage them; the same on every run."""

import struct
from collections.abc import Callable

import numpy as np

from tests.pipeline.recordings import RATE, sound, with_av, with_soundfile

N = 12_000
EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF)
HEADER_BYTES = 200  # where most of the numbers are that a decoder believes


def _sndfile(format: str, subtype: str | None = None) -> Callable[[], bytes]:
    return lambda: with_soundfile(np.stack([sound(N), sound(N, 1)], 1), RATE, format, subtype)


def _av(format: str, codec: str, rate: int) -> Callable[[], bytes]:
    return lambda: with_av(sound(N), rate, format, codec)


FORMATS: dict[str, Callable[[], bytes]] = {
    "wav": _sndfile("WAV", "PCM_16"),
    "wav_float": _sndfile("WAV", "FLOAT"),
    "wav_adpcm": _sndfile("WAV", "MS_ADPCM"),
    "rf64": _sndfile("RF64", "PCM_16"),
    "w64": _sndfile("W64", "PCM_16"),
    "aiff": _sndfile("AIFF", "PCM_16"),
    "au": _sndfile("AU", "PCM_16"),
    "sph": _sndfile("NIST", "PCM_16"),
    "caf": _sndfile("CAF", "PCM_16"),
    "voc": _sndfile("VOC", "PCM_16"),
    "flac": _sndfile("FLAC", "PCM_16"),
    "vorbis": _sndfile("OGG", "VORBIS"),
    "opus": _sndfile("OGG", "OPUS"),
    "mp3": _av("mp3", "libmp3lame", 44_100),
    "adts": _av("adts", "aac", 48_000),
    "m4a": _av("ipod", "aac", 48_000),
    "webm": _av("webm", "libopus", 48_000),
    "mkv_flac": _av("matroska", "flac", 44_100),
    "wma": lambda: with_av(sound(4 * N), 44_100, "asf", "wmav2", bit_rate=64_000),
    "amr": _av("amr", "libopencore_amrnb", 8_000),
    "avi": _av("avi", "libmp3lame", 44_100),
}


def mutated(data: bytes, seed: int) -> bytes:
    """`data`, damaged in one to three ways that `seed` chooses."""
    rng = np.random.default_rng(seed)
    for _ in range(int(rng.integers(1, 4))):
        data = MUTATIONS[int(rng.integers(len(MUTATIONS)))](data, rng)
    return data


def _truncate(data: bytes, rng: np.random.Generator) -> bytes:
    return data[: int(rng.integers(0, len(data) + 1))]


def _flip(data: bytes, rng: np.random.Generator) -> bytes:
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 9)) if data else 0):
        out[int(rng.integers(len(out)))] ^= 1 << int(rng.integers(8))
    return bytes(out)


def _flip_header(data: bytes, rng: np.random.Generator) -> bytes:
    return _flip(data[:HEADER_BYTES], rng) + data[HEADER_BYTES:]


def _splice(data: bytes, rng: np.random.Generator) -> bytes:
    a, b, c = (int(rng.integers(0, len(data) + 1)) for _ in range(3))
    return data[:a] + data[b : b + 2000] + data[c:]


def _overwrite(data: bytes, rng: np.random.Generator) -> bytes:
    at, size = int(rng.integers(0, len(data) + 1)), int(rng.integers(1, 500))
    return data[:at] + rng.bytes(size) + data[at + size :]


def _extreme(data: bytes, rng: np.random.Generator) -> bytes:
    width, order = int(rng.choice([1, 2, 4, 8])), "<" if rng.integers(2) else ">"
    value = EXTREMES[int(rng.integers(len(EXTREMES)))] & (1 << 8 * width) - 1
    at = int(rng.integers(0, min(len(data), HEADER_BYTES) + 1))
    return data[:at] + struct.pack(order + {1: "B", 2: "H", 4: "I", 8: "Q"}[width], value) + data[at + width :]


MUTATIONS = (_truncate, _flip, _flip_header, _splice, _overwrite, _extreme, _extreme)
