"""The recordings behind a run's rows, read again from its source as the run read them; encodes nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pipeline.errors import AudioError, ConfigError, SourceError
from pipeline.records import FailedRow, Row

if TYPE_CHECKING:
    from pipeline.run_dir import RunDir
    from pipeline.source import SourceReader
    from pipeline.spec import AudioPolicy


@dataclass(frozen=True, slots=True)
class Originals:
    """A run's source. `policy` is what the run did with channels and cut recordings."""

    run: "RunDir"
    reader: "SourceReader"
    policy: "AudioPolicy"

    @classmethod
    def of(cls, run: "RunDir") -> "Originals":
        """Find the dataset that the run's manifest names; SourceError, one line, where it can't be had."""
        from jobs.checks import input_spec
        from jobs.config import AudioConfig, InputConfig
        from jobs.job_file import Job, build_job
        from jobs.submission import audio_policy
        from pipeline.source import open_source

        job = Job(source=run.storage.join("job.json"))
        values: dict[str, Any] = {name: dict(run.manifest["job"].get(name) or {}) for name in ("input", "audio")}
        revision = (run.manifest.get("pinned") or {}).get("input.revision")
        if revision is not None:
            values["input"]["revision"] = revision
        build_job(job, {**values, "output": {"path": run.storage.root}})
        given, audio = job.section(InputConfig), job.section(AudioConfig)
        if job.problems or given is None or audio is None:
            raise SourceError("; ".join(job.problems) or f"{job.source}: holds no job")
        try:
            source = open_source(input_spec(given))
        except ConfigError as error:
            raise SourceError("; ".join(error.problems)) from error
        return cls(run, source.reader, audio_policy(audio))

    def row(self, shard: int, row: int) -> Row:
        """A source row. SourceError where it can't be read, or isn't there any more."""
        shards = self.run.shards()
        if not 0 <= shard < len(shards):
            raise SourceError(f"says it is of shard {shard}, the plan has {len(shards)}")
        rows = self.reader.rows(shards[shard], row)
        found = next(rows, None)
        if hasattr(rows, "close"):
            rows.close()  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(found, FailedRow):
            raise SourceError(f"can't be read from its source any more: {found.message}")
        if found is None or found.row != row:
            raise SourceError("isn't in its source any more; put the data back as it was")
        return found

    def blocks(self, row: Row, channel: int | None) -> "Iterator[np.ndarray]":
        """The recording as the encoder got it: float32 [n] each, mono at 24 kHz. AudioError, SourceError."""
        from pipeline.audio import open_audio

        if row.audio is None:
            raise AudioError("unreadable", "the audio is null")
        which: int | Literal["mix"] = channel if channel is not None else 0
        if self.policy.channels == "mix":
            which = "mix"
        with open_audio(row.audio, channel=which, allow_truncated=self.policy.allow_truncated) as stream:
            yield from stream

    def samples(self, row: Row, channel: int | None, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Samples [start, stop) at 24 kHz, as many of them as there are: float32 [n]."""
        pieces, place = [np.zeros(0, np.float32)], 0
        for block in self.blocks(row, channel):
            wanted = block[max(0, start - place) : None if stop is None else max(0, stop - place)]
            if len(wanted):
                pieces.append(wanted.copy())
            place += len(block)
            if stop is not None and place >= stop:
                break
        return np.concatenate(pieces)
