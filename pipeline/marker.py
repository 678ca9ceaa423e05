"""The commit marker of a shard: what has no marker does not exist.

Writing one is the last step of `RunDir.publish`; reading many is `marker_index.py`. Here is what's in one.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from pipeline.records import ShardResult

FILE = re.compile(r"(data|errors|skipped)/[\w.-]+\.parquet")


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file that belongs to the run. `path` is relative to the run directory."""

    path: str
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Marker:
    """What a shard came to; the fields of `ShardResult`, its files under their final names, and when and by whom."""

    shard: int
    attempt: int
    rows_read: int
    encoded: int
    failed: int
    skipped: int
    clips: int
    frames: int
    audio_seconds: float
    seconds: float  # wall time of the attempt
    published: float  # seconds since 1970
    worker: str  # the actor that did it, where the driver says
    files: tuple[PublishedFile, ...]
    failures: dict[str, int]  # kind -> rows

    def file(self, folder: str) -> PublishedFile | None:
        """Its file in `data`, `errors` or `skipped`, if it has one there."""
        return next((file for file in self.files if file.path.startswith(folder + "/")), None)

    def to_json(self) -> bytes:
        fields = {name: getattr(self, name) for name in self.__slots__}
        fields["files"] = [{"path": file.path, "bytes": file.num_bytes, "sha256": file.sha256} for file in self.files]
        return json.dumps(fields, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: str | bytes) -> "Marker":
        """ValueError where it isn't one: cut short, fields missing, or a file that can't be a run's."""
        try:
            fields: dict[str, Any] = json.loads(data)
            files = tuple(PublishedFile(file["path"], file["bytes"], file["sha256"]) for file in fields.pop("files"))
            marker = cls(files=files, **fields)
        except (KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
            raise ValueError(f"not a marker: {error}") from error
        if not all(FILE.fullmatch(file.path) for file in files) or marker.file("data") is None:
            raise ValueError("not a marker: it names files that no run has")
        return marker

    @classmethod
    def of(cls, result: ShardResult, published: float, worker: str) -> "Marker":
        shared = {name: getattr(result, name) for name in ShardResult.__slots__ if name != "files"}
        files = tuple(PublishedFile(file.final, file.num_bytes, file.sha256) for file in result.files)
        return cls(files=files, published=published, worker=worker, **shared)


def marker_name(shard: int) -> str:
    return f"_state/{shard:05d}.json"
