"""A recording, bytes or a file, as blocks of mono float32 samples at 24 kHz.

What the bytes are is found in `containers`, and decoded in `decoders` and `decode_ffmpeg`; here channels are chosen,
samples checked and resampled, and everything that can be wrong with a recording is worded.
"""

import io
from collections.abc import Callable, Generator, Iterator
from typing import BinaryIO, Literal

import numpy as np

from pipeline import records
from pipeline.containers import identify
from pipeline.decode_ffmpeg import FFmpegDecoder
from pipeline.decoders import EndedEarlyError, SndfileDecoder
from pipeline.errors import AudioError
from pipeline.layout import Layout
from pipeline.reading import Window, open_path

RATE = records.SAMPLE_RATE


class AudioStream:
    """Blocks of one recording: an iterator of float32 [n], n > 0, mono at 24 kHz, of about a second or less.

    The concatenated blocks are the same to the bit however they fall: what soxr HQ makes of the whole recording. At
    24 kHz they are the source's samples. Use it as a context manager, in one thread at a time. Iterating raises
    AudioError (`truncated`, `empty`, `not_finite`, `unreadable`) and SourceError where reading the file failed.
    """

    def __init__(self, file: BinaryIO, layout: Layout, channel: int | Literal["mix"], allow_truncated: bool):
        self.samples = 0  # of the source, a channel, decoded so far
        self._name, self._file = layout.name, file
        self._channel: int | Literal["mix"] = channel
        self._allow_truncated = allow_truncated
        self._decoder = (SndfileDecoder if layout.decoder == "libsndfile" else FFmpegDecoder)(file, layout)
        self.sample_rate: int = self._decoder.sample_rate  # Hz, of the source
        self.num_channels: int = self._decoder.num_channels  # of the source
        self._blocks = self._resampled()

    def __enter__(self) -> "AudioStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[np.ndarray]:
        return self

    def __next__(self) -> np.ndarray:
        return next(self._blocks)

    def close(self) -> None:
        """Ends decoding and closes what was opened; may be called again."""
        self._blocks.close()
        self._decoder.close()
        self._file.close()

    def _resampled(self) -> Generator[np.ndarray, None, None]:
        if self.sample_rate == RATE:
            yield from (block.copy() if block.base is not None else block for block in self._mono())
        else:
            yield from self._through_soxr()
        if self.samples == 0:
            raise AudioError("empty", f"{self._name} without samples")

    def _through_soxr(self) -> Iterator[np.ndarray]:
        import soxr

        made, resampler = 0, None
        for block in self._mono():
            resampler = resampler or soxr.ResampleStream(self.sample_rate, RATE, 1, dtype="float32", quality="HQ")
            out = resampler.resample_chunk(block)
            made += len(out)
            if len(out):
                yield out
        if resampler is None:
            return
        out = resampler.resample_chunk(np.zeros(0, np.float32), last=True)
        made += len(out)
        if len(out):
            yield out
        if not made:
            short = f"{self.samples} samples at {self.sample_rate} Hz are less than one at {RATE} Hz"
            raise AudioError("empty", f"{self._name} too short to resample: {short}")

    def _mono(self) -> Iterator[np.ndarray]:
        """The chosen channel, or the mean of all, at the source's rate; float32 [n], contiguous."""
        try:
            for block in self._decoder.blocks():
                mono = self._chosen(block)
                self._check_finite(mono)
                self.samples += len(mono)
                yield mono
        except EndedEarlyError as error:
            if not self._allow_truncated:
                raise AudioError("truncated", f"{self._name} ends early: {error}") from error

    def _chosen(self, block: np.ndarray) -> np.ndarray:
        channels = block.shape[1]
        channel = self._channel
        if channel == "mix":
            return block[:, 0] if channels == 1 else mean(block)
        if channel >= channels:
            at = f"at {self.samples / self.sample_rate:.2f} s"
            raise AudioError("unreadable", f"{self._name} has no channel {channel} {at}: it has {channels}")
        return np.ascontiguousarray(block[:, channel])  # a copy, but of the only channel

    def _check_finite(self, mono: np.ndarray) -> None:
        finite = np.isfinite(mono)
        if not finite.all():
            first = int(finite.argmin())
            at = (self.samples + first) / self.sample_rate
            raise AudioError("not_finite", f"{self._name} has {mono[first]} as a sample at {at:.3f} s")


def mean(block: np.ndarray) -> np.ndarray:
    """The mean of the channels of float32 [n, channels], rounded once; finite where all of them are."""
    channels = block.shape[1]
    with np.errstate(invalid="ignore"):  # infinity less infinity: found right after this
        if channels == 2:
            return block[:, 0] * np.float32(0.5) + block[:, 1] * np.float32(0.5)
        total = block[:, 0].astype(np.float64)  # a loop, since numpy is slow at sums over an axis this short
        for channel in range(1, channels):
            total += block[:, channel]
        return (total / channels).astype(np.float32)


def open_audio(
    audio: records.Audio,
    *,
    channel: int | Literal["mix"],
    allow_truncated: bool = False,
    open_file: Callable[[str], BinaryIO] | None = None,
) -> AudioStream:
    """Opens a recording for decoding.

    audio: its bytes, else the path of a regular local file or an fsspec URL.
    channel: `mix` for the mean of all channels, or the one channel, from 0.
    allow_truncated: keep what decodes of a recording that ends before its header says, or meets an error midway.
    open_file: opens a URL as a seekable binary file; fsspec does where it isn't given.

    Raises AudioError `unreadable` (no recording, or none that can be decoded), `truncated` where the header tells so,
    and SourceError where reading failed in a way that may pass.
    """
    if audio.data is not None:
        file, size = io.BytesIO(audio.data), len(audio.data)
    elif audio.path:
        file, size = open_path(audio.path, open_file)
    else:
        raise AudioError("unreadable", "neither bytes nor a path")
    try:
        layout = identify(Window(file, 0, size))
        if layout.missing and not allow_truncated:
            raise AudioError("truncated", f"{layout.name} ends early: {layout.missing}")
        return AudioStream(file, layout, channel, allow_truncated)
    except BaseException:
        file.close()
        raise
