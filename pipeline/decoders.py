"""The two decoders: libsndfile, and FFmpeg through PyAV. Both give blocks of float32 samples, all channels.

Which one reads a recording is decided in `containers`; mixing, resampling and the words for errors are in `audio`.
"""

import io
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.errors import AudioError
from pipeline.headers_mpeg import mpeg_frame_bytes
from pipeline.layout import Layout
from pipeline.reading import Window, one_line

if TYPE_CHECKING:
    import av

MIN_RATE, MAX_RATE = 1_000, 1_000_000  # Hz
MAX_CHANNELS = 256
BLOCK_VALUES = 1 << 15  # samples times channels of a block, at most: 128 KiB, which stays in a core's cache
SHORT_SECONDS = 0.1  # by which a stream may end before an index's duration without being cut
UNKNOWN_FRAMES = 1 << 62  # libsndfile says 2**63 - 1 where there is no total
FIRST_ERRORS = 16  # packets that may fail before the first sample: a stream recorded from its middle

# Decoders of sound in the containers that we open; no other code of FFmpeg's is to see bytes of unknown origin.
CODECS = frozenset(
    """
    aac aac_latm ac3 alac amrnb amrwb ape dca eac3 flac g722 g726 gsm gsm_ms ilbc libopencore_amrnb libopencore_amrwb
    libopus libspeex libvorbis mlp mp1 mp1float mp2 mp2float mp3 mp3float mpc7 mpc8 nellymoser opus qcelp shorten speex
    truehd truespeech tta vorbis wavpack wmalossless wmapro wmav1 wmav2 wmavoice
    """.split()  # noqa: SIM905
)
# Demuxers that take a stream's duration from a header that can be trusted.
DECLARING = frozenset({"mov", "wv", "ape", "tta", "mpc", "mpc8"})
FAMILIES = ("pcm_", "adpcm_")


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
                raise EndedEarlyError(_changed(total, self.sample_rate, self.num_channels, *found))

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


class FFmpegDecoder:
    """The first audio stream of a container, decoded by PyAV's own FFmpeg.

    Raises AudioError `unreadable` where it can't be opened or has no sound. `blocks` yields float32 [n, num_channels].
    """

    def __init__(self, base: Any, layout: Layout):
        import av

        self._layout = layout
        self._window = Window(base, layout.start, layout.stop, layout.patch)
        self._container = self._open(av)
        self._packets = 0
        self._last_packet: av.Packet | None = None  # that a frame came of
        self._done = 0  # samples a channel
        try:
            self._stream = self._choose(av)
            self._frames = self._decoded(av)
            self._first = next(self._frames, None)  # only a decoded frame tells the rate and layout for certain
            self._window.check()
            context = self._stream.codec_context
            frame = self._first
            self.sample_rate = frame.sample_rate if frame else (context.sample_rate or 0)
            self.num_channels = frame.layout.nb_channels if frame else context.layout.nb_channels
            if frame or self.sample_rate:
                check_bounds(layout.name, self.sample_rate, self.num_channels)
            self._block_samples = block_samples(max(1, self.sample_rate), max(1, self.num_channels))
        except BaseException:
            self.close()
            raise

    def _open(self, av: Any) -> Any:
        names = [name for name in av.codecs_available if name in CODECS or name.startswith(FAMILIES)]
        options = {"codec_whitelist": ",".join(sorted(names)), "protocol_whitelist": "none", "enable_drefs": "0"}
        options = {**options, "max_streams": "64"}
        try:
            return av.open(
                self._window, format=self._layout.demuxer, container_options=options, metadata_errors="replace"
            )
        except (av.FFmpegError, ValueError) as error:
            self._window.check()
            raise AudioError("unreadable", f"{self._layout.name} that can't be opened: {_reason(error)}") from error

    def _choose(self, av: Any) -> "av.AudioStream":
        if not self._container.streams.audio:
            raise AudioError("unreadable", f"{self._layout.name} without sound")
        stream = self._container.streams.audio[0]
        context = stream.codec_context
        if context is None or not (context.name in CODECS or context.name.startswith(FAMILIES)):
            name = "an unknown codec" if context is None else context.name
            raise AudioError("unreadable", f"{self._layout.name} whose sound is in {name}, which isn't decoded here")
        from av.stream import Discard

        context.thread_count = 1
        for other in self._container.streams:
            if other is not stream:
                other.discard = Discard.all
        return stream

    def _decoded(self, av: Any) -> Iterator["av.AudioFrame"]:
        """Frames in order. Raises EndedEarlyError, and AudioError where nothing at all could be decoded."""
        early: list[Exception] = []  # before the first frame
        failed: Exception | None = None  # after it
        any_frame = False
        try:
            for packet in self._container.demux(self._stream):
                self._packets += packet.size > 0
                try:
                    frames = [frame for frame in packet.decode() if frame.samples]
                except av.FFmpegError as error:
                    if not any_frame:
                        early.append(error)
                    elif not self._has_all_packets():
                        failed = error
                    if len(early) == FIRST_ERRORS or (failed and not self._is_junk(packet)):
                        raise
                    continue
                if frames and packet.size:
                    if failed:
                        raise failed  # what looked like junk after the end has sound behind it
                    self._last_packet = packet
                any_frame = any_frame or bool(frames)
                yield from frames
        except (av.FFmpegError, ValueError) as error:
            if any_frame and not self._has_all_packets():
                raise EndedEarlyError(f"the decoder failed after {self._end:.2f} s ({_reason(error)})") from error
            early.append(error)
        if early and not any_frame:
            raise AudioError("unreadable", f"{self._layout.name} that can't be decoded: {_reason(early[0])}")

    def _is_junk(self, packet: "av.Packet") -> bool:
        """Whether these bytes are no MPEG frame: the demuxer hands on whatever follows the last one."""
        return self._layout.demuxer == "mp3" and mpeg_frame_bytes(bytes(packet)[:4]) is None

    def _has_all_packets(self) -> bool:
        """Whether all that was declared has come: what follows is tags, junk, or another recording behind this one."""
        declared = self._layout.num_packets
        return declared is not None and self._packets > declared

    def blocks(self) -> Iterator[np.ndarray]:
        """Raises EndedEarlyError after the last good block, SourceError if reading failed."""
        import av

        ended: EndedEarlyError | None = None
        fifo = av.AudioFifo()  # gathers frames without an array for each: a fifth of an MP3's time
        try:
            for frame in itertools.chain([self._first] if self._first else [], self._frames):
                if frame.sample_rate != self.sample_rate:
                    found = (frame.sample_rate, frame.layout.nb_channels)
                    raise EndedEarlyError(_changed(self._done, self.sample_rate, self.num_channels, *found))
                frame.pts = None
                try:
                    fifo.write(frame)
                except ValueError:  # another layout or sample format
                    yield from _drained(fifo)
                    fifo = av.AudioFifo()
                    fifo.write(frame)
                self._done += frame.samples
                if fifo.samples >= self._block_samples:
                    yield from _drained(fifo)
        except EndedEarlyError as error:
            ended = error
        self._window.check()
        yield from _drained(fifo)
        if ended is not None:
            raise ended
        self._check_length()

    @property
    def _end(self) -> float:
        """Seconds that were decoded."""
        return self._done / self.sample_rate if self.sample_rate else 0.0

    def _check_length(self) -> None:
        packets, declared = self._packets, self._layout.num_packets
        if declared is not None:
            head = bytes(self._last_packet)[:4] if self._last_packet else b""
            cut = self._last_packet is not None and self._last_packet.size < (mpeg_frame_bytes(head) or 0)
            if packets < declared or cut:
                of = f"{packets} of the {declared} frames that its Xing or VBRI header declares"
                raise EndedEarlyError(f"after {self._end:.2f} s, {of}" + (", the last one cut" if cut else ""))
        elif self._layout.demuxer in DECLARING and self._stream.duration and self._stream.time_base:
            # A film's edit list may leave packets out, so its duration has to be short as well.
            seconds = float(self._stream.duration * self._stream.time_base)
            if self._end < seconds - SHORT_SECONDS and (packets < self._stream.frames or not self._stream.frames):
                raise EndedEarlyError(f"after {self._end:.2f} s of the {seconds:.2f} s that its header declares")

    def close(self) -> None:
        self._frames = iter(())
        self._first = None
        self._container.close()


def _drained(fifo: "av.AudioFifo") -> Iterator[np.ndarray]:
    frame = fifo.read(partial=True) if fifo.samples else None
    if frame is not None:
        yield samples_of(frame)


def samples_of(frame: "av.AudioFrame") -> np.ndarray:
    """float32 [n, channels] of a frame in whichever sample format, integers scaled to [-1, 1)."""
    if frame.format.name.startswith("s64"):  # the one format that PyAV doesn't hand over as an array
        count = frame.samples * (1 if frame.format.is_planar else frame.layout.nb_channels)
        values = np.stack([np.frombuffer(bytes(plane), np.int64, count) for plane in frame.planes])
    else:
        values = frame.to_ndarray()
    values = values.T if frame.format.is_planar else values.reshape(frame.samples, -1)
    if values.dtype == np.uint8:
        return (values.astype(np.float32) - 128) / 128
    if values.dtype.kind == "i":
        return (values / float(1 << 8 * values.dtype.itemsize - 1)).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # a double beyond float32 becomes infinity, which is found later
        return values.astype(np.float32, copy=False)


def _changed(done: int, rate: int, channels: int, new_rate: int, new_channels: int) -> str:
    at = f"{done / rate:.2f} s" if rate else "its start"
    return f"it changes from {rate} Hz, {channels} channels to {new_rate} Hz, {new_channels} channels at {at}"


def _reason(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return " ".join(str(text).split())[:200]
