"""Decoding with libsndfile into blocks of float32 samples, all channels; and what both decoders share.

FFmpeg's decoders are in `decode_ffmpeg`. Which one reads a recording is decided in `containers`; mixing, resampling
and the words for errors are in `audio`.
"""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from pipeline.errors import AudioError
from pipeline.layout import Layout
from pipeline.reading import Window, one_line

MIN_RATE, MAX_RATE = 1_000, 1_000_000  # Hz
MAX_CHANNELS = 256
BLOCK_VALUES = 1 << 15  # samples times channels of a block, at most: 128 KiB, which stays in a core's cache
UNKNOWN_FRAMES = 1 << 62  # libsndfile says 2**63 - 1 where there is no total


class EndedEarlyError(Exception):
    """The decoder met an error, or the end, before the recording's; raised after the last good block."""


def check_bounds(name: str, sample_rate: int, num_channels: int) -> None:
    """Raises AudioError `unreadable` for a rate or a number of channels that no recording has."""
    if not MIN_RATE <= sample_rate <= MAX_RATE:
        raise AudioError("unreadable", f"{name} of {sample_rate} Hz: from {MIN_RATE} to {MAX_RATE} Hz can be decoded")
    if not 1 <= num_channels <= MAX_CHANNELS:
        raise AudioError("unreadable", f"{name} of {num_channels} channels: from 1 to {MAX_CHANNELS} can be decoded")


def block_samples(sample_rate: int, num_channels: int) -> int:
    """Samples a channel of a block: a second or less."""
    return max(1, min(sample_rate, BLOCK_VALUES // num_channels))


class SndfileDecoder:
    """One recording, or a chain of them, read by libsndfile.

    Raises AudioError `unreadable` where libsndfile can't open it. `blocks` yields float32 [n, num_channels], each
    valid until the next is asked for: fresh memory for each costs more than reading into it.
    """

    def __init__(self, base: Any, layout: Layout):
        self._base, self._layout = base, layout
        links = layout.links or ((layout.start, layout.stop),)
        self._rest = iter(links[1:])
        self._file = self._open(*links[0])
        self.sample_rate, self.num_channels = self._file.samplerate, self._file.channels
        try:
            check_bounds(layout.name, self.sample_rate, self.num_channels)
        except AudioError:
            self.close()
            raise
        self._block = np.empty((block_samples(self.sample_rate, self.num_channels), self.num_channels), np.float32)

    def _open(self, start: int, stop: int) -> Any:
        import soundfile

        class Stream(soundfile.SoundFile):
            # soundfile seeks after each read of a file that can: slow, and an error in a FLAC without a total.
            def seekable(self) -> bool:
                return False

        self._window = Window(self._base, start, stop, self._layout.patch, self._layout.head)
        file: Any = self._window
        if type(self._base) is io.BytesIO and self._window.is_all_of(self._base.getbuffer().nbytes):
            file = self._base  # quicker, and reading memory doesn't fail
            file.seek(0)
        try:
            return Stream(file)
        except (soundfile.LibsndfileError, ValueError, TypeError) as error:
            self._window.check()
            reason = getattr(error, "error_string", "") or one_line(error)
            raise AudioError("unreadable", f"{self._layout.name} that can't be opened: {reason}") from error

    def blocks(self) -> Iterator[np.ndarray]:
        """Raises EndedEarlyError after the last good block, SourceError if reading failed."""
        total = 0
        while True:
            for block in self._link_blocks():
                total += len(block)
                yield block
            link = next(self._rest, None)
            if link is None:
                break
            self._file.close()
            self._file = self._open(*link)
            found = (self._file.samplerate, self._file.channels)
            if found != (self.sample_rate, self.num_channels):
                raise EndedEarlyError(changed(total, self.sample_rate, self.num_channels, *found))

    def _link_blocks(self) -> Iterator[np.ndarray]:
        import soundfile

        declared = self._layout.num_samples
        if declared is None and self._file.frames < UNKNOWN_FRAMES:
            declared = self._file.frames
        block, done = self._block, 0
        while True:
            reason = None
            block[:, 0] = np.nan
            try:
                count = self._file.buffer_read_into(block, "float32")
            except soundfile.LibsndfileError as error:
                # How many frames came before the error isn't said; none of the formats that fail has NaN.
                count, reason = int(np.count_nonzero(~np.isnan(block[:, 0]))), error.error_string.rstrip(".")
            self._window.check()
            done += count
            if count:
                yield block[:count]
            if not count or reason:
                break
        if declared is not None and done < declared:
            of = f"{done / self.sample_rate:.2f} s of the {declared / self.sample_rate:.2f} s that its header declares"
            raise EndedEarlyError(f"after {of}" + (f" ({reason})" if reason else ""))
        if reason and declared is None:
            raise EndedEarlyError(f"the decoder failed after {done / self.sample_rate:.2f} s ({reason})")

    def close(self) -> None:
        self._file.close()


def changed(done: int, rate: int, channels: int, new_rate: int, new_channels: int) -> str:
    """Words for a change of format after `done` samples."""
    at = f"{done / rate:.2f} s" if rate else "its start"
    return f"it changes from {rate} Hz, {channels} channels to {new_rate} Hz, {new_channels} channels at {at}"
