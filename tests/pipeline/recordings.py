"""Small recordings for the tests of decoding, and the outcome of decoding one."""

import io
import struct
from typing import Any

import av
import numpy as np
import soundfile as sf

from pipeline.audio import open_audio
from pipeline.errors import AudioError
from pipeline.records import Audio

RATE = 24_000
LAYOUTS = {1: "mono", 2: "stereo", 6: "5.1"}


def sound(n: int, seed: int = 0) -> np.ndarray:
    """float32 [n]: a few tones and noise, within (-1, 1)."""
    rng = np.random.default_rng(seed)
    t = np.arange(n) / RATE
    tones = sum(np.sin(2 * np.pi * hertz * t + seed) for hertz in (150, 700, 3100))
    return (0.15 * tones + 0.05 * rng.standard_normal(n)).astype(np.float32)


def wav(x: np.ndarray, rate: int = RATE, *, riff: int | None = None, data: int | None = None) -> bytes:
    """16-bit WAV of float [n] or [n, channels]; `riff` and `data` replace the sizes in its header."""
    channels = 1 if x.ndim == 1 else x.shape[1]
    body = np.round(x * 32767).astype("<i2").tobytes()
    fmt = struct.pack("<HHIIHH", 1, channels, rate, 2 * rate * channels, 2 * channels, 16)
    sizes = (36 + len(body) if riff is None else riff, len(body) if data is None else data)
    return b"RIFF%bWAVEfmt \x10\0\0\0%bdata%b" % (struct.pack("<I", sizes[0]), fmt, struct.pack("<I", sizes[1])) + body


def with_soundfile(x: np.ndarray, rate: int, format: str, subtype: str | None = None) -> bytes:
    buffer = io.BytesIO()
    sf.write(buffer, x, rate, format=format, subtype=subtype)
    return buffer.getvalue()


class Pipe:
    """A file that can't seek: what is written to it has no lengths."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: Any) -> int:
        self.data += bytes(data)
        return len(data)


def with_av(
    x: np.ndarray,
    rate: int,
    format: str,
    codec: str,
    *,
    options: dict | None = None,
    pipe: bool = False,
    bit_rate: int | None = None,
) -> bytes:
    """float [n] encoded by FFmpeg's encoder `codec` into container `format`."""
    file = Pipe() if pipe else io.BytesIO()
    with av.open(file, "w", format=format, options=options or {}) as out:
        stream: Any = out.add_stream(codec, rate=rate)  # pyright: ignore[reportCallIssue, reportArgumentType]
        stream.layout = "mono"
        if bit_rate:
            stream.bit_rate = bit_rate
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(x[None], np.float32), "fltp", "mono")
        frame.sample_rate, frame.pts = rate, 0
        for converted in av.AudioResampler(stream.format, stream.layout, rate).resample(frame):
            out.mux(stream.encode(converted))
        out.mux(stream.encode())
    return file.data if isinstance(file, Pipe) else file.getvalue()


def film(seconds: int = 1) -> bytes:
    """An MP4 with a picture and no sound."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as out:
        stream = out.add_stream("mpeg4", rate=25)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for _ in range(25 * seconds):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), "rgb24")))
        out.mux(stream.encode())
    return buffer.getvalue()


def decode(data: bytes | None, path: str | None = None, **options: Any) -> np.ndarray:
    """float32 [n] at 24 kHz of all of a recording."""
    with open_audio(Audio(data, path), **{"channel": "mix", **options}) as stream:
        return np.concatenate([np.zeros(0, np.float32), *stream])


def num_samples(data: bytes, **options: Any) -> int:
    """Samples of the source, a channel."""
    with open_audio(Audio(data, None), **{"channel": "mix", **options}) as stream:
        for _ in stream:
            pass
        return stream.samples


def kind_of(data: bytes | None, path: str | None = None, **options: Any) -> str:
    """The kind of failure, or `codes`."""
    try:
        decode(data, path, **options)
    except AudioError as error:
        assert str(error) and "\n" not in str(error)
        return error.kind
    return "codes"
