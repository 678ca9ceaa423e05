"""What is known of a recording from its header alone. `containers` makes it, `decoders` and `audio` use it."""

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class Layout:
    """Where in its file a recording lies, which decoder reads it, and whether it's all there."""

    name: str  # the format, as a person calls it
    start: int  # bytes [start, stop) of the file are the recording, without tags around it
    stop: int
    decoder: Literal["libsndfile", "ffmpeg"] = "libsndfile"
    demuxer: str = ""  # FFmpeg's name of the container
    missing: str | None = None  # what shows that the file ends too early, worded to follow "WAV ends early: "
    head: bytes = b""  # a header for the decoder to read before byte `start`, in place of the file's own
    patch: tuple[tuple[int, bytes], ...] = ()  # (offset in the file, bytes): lengths that the header has wrong
    links: tuple[tuple[int, int], ...] = ()  # bytes [start, stop) of recordings chained one after the other
    num_samples: int | None = None  # a channel, as declared, where the decoder isn't told
    num_packets: int | None = None  # as declared, where the decoder isn't told

    def moved(self, by: int) -> "Layout":
        """The same, of a recording that begins `by` bytes later in its file."""
        return replace(
            self,
            start=self.start + by,
            stop=self.stop + by,
            patch=tuple((at + by, new) for at, new in self.patch),
            links=tuple((start + by, stop + by) for start, stop in self.links),
        )
