"""Sound and codes as things a page can hold without other files: WAV, spectrograms and code matrices as data URIs."""

import base64
import io
import struct
import zlib

import numpy as np

from pipeline.records import SAMPLE_RATE

WINDOW = 1024  # samples of a spectrogram's column
COLUMNS = 480  # at most, of a spectrogram
ROWS = 112  # of a spectrogram, spaced by pitch as the ear does
LOWEST_HZ, HIGHEST_HZ = 40.0, 12_000.0
FLOOR_DB, CEILING_DB = -95.0, -15.0  # of full scale: the same for every picture, so that two can be compared

# From silence to loud, red green blue at even steps; between them is interpolated.
LOUDNESS = ((13, 17, 32), (33, 38, 84), (70, 58, 128), (122, 77, 147), (182, 99, 140), (232, 139, 122), (250, 214, 165))


def wav_uri(samples: np.ndarray) -> str:
    """samples: float32 [n] at 24 kHz, cut at full scale -> a 16-bit WAV."""
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, np.clip(samples, -1, 1), SAMPLE_RATE, "PCM_16", format="WAV")
    return _uri("audio/wav", buffer.getvalue())


def spectrogram_uri(samples: np.ndarray) -> str:
    """samples: float32 [n] at 24 kHz -> a PNG, time from left to right, 40 Hz at the bottom to 12 kHz."""
    hop = max(WINDOW // 4, -(-len(samples) // COLUMNS))
    padded = np.pad(samples.astype(np.float64), (WINDOW // 2, WINDOW))
    starts = np.arange(0, max(1, len(samples)), hop)
    window = np.hanning(WINDOW)
    pieces = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[starts] * window
    power = np.abs(np.fft.rfft(pieces, axis=1)) ** 2 / window.sum() ** 2 * 4
    level = 10 * np.log10(power @ _pitch_bands() + 1e-12)
    shade = (level - FLOOR_DB) / (CEILING_DB - FLOOR_DB) * 255
    return png_uri(shade.clip(0, 255).astype(np.uint8).T[::-1], _ramp(LOUDNESS))


def codes_uri(codes: np.ndarray) -> str:
    """codes: uint16 [K, T] -> a PNG of T by K pixels: a code has one colour, near codes have unlike ones."""
    mixed = (codes.astype(np.uint32) * np.uint32(2654435761)) >> np.uint32(24)
    return png_uri(mixed.astype(np.uint8), _wheel())


def png_uri(pixels: np.ndarray, palette: np.ndarray) -> str:
    """pixels: uint8 [height, width], places in the palette. palette: uint8 [256, 3]."""
    height, width = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = (
        (b"IHDR", header),
        (b"PLTE", palette.tobytes()),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    )
    data = b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )
    return _uri("image/png", b"\x89PNG\r\n\x1a\n" + data)


def _uri(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _pitch_bands() -> np.ndarray:
    """float64 [WINDOW // 2 + 1, ROWS]: triangles over frequency, evenly spaced on the mel scale, each of mean 1."""
    lowest, highest = (2595 * np.log10(1 + hz / 700) for hz in (LOWEST_HZ, HIGHEST_HZ))
    mel = np.linspace(lowest, highest, ROWS + 2)
    edges = 700 * (10 ** (mel / 2595) - 1)
    hz = np.fft.rfftfreq(WINDOW, 1 / SAMPLE_RATE)[:, None]
    low, mid, high = edges[:-2], edges[1:-1], edges[2:]
    width = np.maximum(hz[1] - hz[0], 0)  # a band narrower than a bin takes the bin it lies in
    rise = (hz - np.minimum(low, mid - width)) / np.maximum(mid - low, width)
    fall = (np.maximum(high, mid + width) - hz) / np.maximum(high - mid, width)
    bands = np.clip(np.minimum(rise, fall), 0, None)
    return bands / np.maximum(bands.sum(axis=0), 1e-9)


def _ramp(colours: tuple[tuple[int, int, int], ...]) -> np.ndarray:
    at = np.linspace(0, len(colours) - 1, 256)
    table = np.array(colours, float)
    return (
        np.stack([np.interp(at, np.arange(len(colours)), table[:, i]) for i in range(3)], axis=1)
        .round()
        .astype(np.uint8)
    )


def _wheel() -> np.ndarray:
    """Muted colours, half of the circle from blue to rose, in eight shades."""
    place = np.arange(256)
    share, shade = (place % 32) / 31, 0.3 + 0.6 * (place // 32) / 7
    low, high = np.array([0.42, 0.72, 0.98]), np.array([1.0, 0.62, 0.72])
    tint = low + (high - low) * share[:, None]
    return (tint * shade[:, None] * 255).clip(0, 255).round().astype(np.uint8)
