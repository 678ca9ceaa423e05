"""Decoding with FFmpeg, through PyAV, into blocks of float32 samples, all channels.

Which recordings come here is decided in `containers`; mixing, resampling and the words for errors are in `audio`.
"""

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.decoders import EndedEarlyError, block_samples, changed, check_bounds
from pipeline.errors import AudioError
from pipeline.headers_mpeg import mpeg_frame_bytes
from pipeline.layout import Layout
from pipeline.reading import Window

if TYPE_CHECKING:
    import av

FIRST_ERRORS = 16  # packets that may fail before the first sample: a stream recorded from its middle
SHORT_SECONDS = 0.1  # by which a stream may end before an index's duration without being cut
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
                size = packet.size
                self._packets += size > 0
                try:
                    frames = packet.decode()
                except av.FFmpegError as error:
                    if not any_frame:
                        early.append(error)
                    elif not self._has_all_packets():
                        failed = error
                    if len(early) == FIRST_ERRORS or (failed and not self._is_junk(packet)):
                        raise
                    continue
                if frames:
                    any_frame = True
                    if failed and size:
                        raise failed  # what looked like junk after the end has sound behind it
                    self._last_packet = packet if size else self._last_packet
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
        rate, size = self.sample_rate, self._block_samples
        fifo = av.AudioFifo()  # gathers frames without an array for each: a fifth of an MP3's time
        try:
            for frame in itertools.chain([self._first] if self._first else [], self._frames):
                if frame.sample_rate != rate:
                    found = (frame.sample_rate, frame.layout.nb_channels)
                    raise EndedEarlyError(changed(self._done, rate, self.num_channels, *found))
                frame.pts = None
                try:
                    fifo.write(frame)
                except ValueError:  # another layout or sample format
                    yield from _drained(fifo)
                    fifo = av.AudioFifo()
                    fifo.write(frame)
                self._done += frame.samples
                if fifo.samples >= size:
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


def _reason(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return " ".join(str(text).split())[:200]
