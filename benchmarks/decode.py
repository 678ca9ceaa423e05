"""How fast recordings are decoded and resampled on one core, against soundfile and soxr alone on the same bytes.

usage: python benchmarks/decode.py [--minutes 5] [--repeats 5]

Both give mono float32 at 24 kHz. The peer reads a file whole; ours reads it in blocks and checks it on the way. Times
are of the process's CPU, the best of the repeats, taken in turns. The sound is made here: voiced tones and noise.
"""

import argparse
import io
import os
import platform
import sys
import time
from collections.abc import Callable

import av
import numpy as np
import soundfile as sf
import soxr

from pipeline.audio import open_audio
from pipeline.records import SAMPLE_RATE, Audio

# name: (rate in Hz, channels, libsndfile's format and subtype)
INPUTS = {
    "WAV 16 kHz": (16_000, 1, "WAV", "PCM_16"),
    "WAV 44.1 kHz stereo": (44_100, 2, "WAV", "PCM_16"),
    "WAV 24 kHz": (24_000, 1, "WAV", "PCM_16"),
    "FLAC 44.1 kHz": (44_100, 1, "FLAC", "PCM_16"),
    "FLAC 16 kHz": (16_000, 1, "FLAC", "PCM_16"),
    "MP3 44.1 kHz": (44_100, 1, "MP3", None),
    "MP3 44.1 kHz stereo": (44_100, 2, "MP3", None),
    "Vorbis 44.1 kHz": (44_100, 1, "OGG", "VORBIS"),
    "Opus 48 kHz": (48_000, 1, "OGG", "OPUS"),
}


def voice(seconds: float, rate: int, channels: int) -> np.ndarray:
    """float32 [n, channels] in (-1, 1)."""
    rng = np.random.default_rng(0)
    t = np.arange(int(seconds * rate)) / rate
    phase = 2 * np.pi * 120 * t + 3 * np.sin(2 * np.pi * 4 * t)
    x = sum(np.sin(k * phase) / k for k in range(1, 12)) * (0.6 + 0.4 * np.sin(2 * np.pi * 1.5 * t))
    return np.stack([0.15 * x + 0.02 * rng.standard_normal(len(t)) for _ in range(channels)], 1).astype(np.float32)


def encoded(seconds: float, rate: int, channels: int, format: str, subtype: str | None) -> bytes:
    buffer = io.BytesIO()
    x = voice(seconds, rate, channels)
    with sf.SoundFile(buffer, "w", rate, channels, subtype, format=format) as file:
        for start in range(0, len(x), rate):  # libsndfile's Vorbis encoder overflows the stack on one long write
            file.write(x[start : start + rate])
    return buffer.getvalue()


def ours(data: bytes) -> int:
    with open_audio(Audio(data, None), channel="mix") as stream:
        return sum(len(block) for block in stream)


def alone(data: bytes) -> int:
    x, rate = sf.read(io.BytesIO(data), dtype="float32")
    mono = x.mean(axis=1) if x.ndim == 2 else x
    return len(mono if rate == SAMPLE_RATE else soxr.resample(mono, rate, SAMPLE_RATE, quality="HQ"))


def cpu_seconds(decode: Callable[[bytes], int], data: bytes) -> float:
    start = time.process_time()
    decode(data)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description="Decoding speed on one core.")
    parser.add_argument("--minutes", type=float, default=5.0, help="length of each recording")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    versions = f"soundfile {sf.__version__}, soxr {soxr.__version__}, av {av.__version__}, numpy {np.__version__}"
    print(f"{machine}, Python {sys.version.split()[0]}, {versions}")
    print(f"{'input':22}{'ours, x real time':>20}{'soundfile + soxr':>20}{'ratio':>8}")
    for name, spec in INPUTS.items():
        data = encoded(60 * args.minutes, *spec)
        times = [(cpu_seconds(ours, data), cpu_seconds(alone, data)) for _ in range(args.repeats)]
        speed, peer = (60 * args.minutes / min(column) for column in zip(*times, strict=True))
        print(f"{name:22}{speed:20,.0f}{peer:20,.0f}{speed / peer:8.0%}", flush=True)


if __name__ == "__main__":
    main()
