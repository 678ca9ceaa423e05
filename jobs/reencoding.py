"""Rows of a run read again from their source and judged code by code: is each entry the nearest, to 1e-6?

Long recordings are judged in a window: a code depends on just under 80 s of sound before it and on nothing else.
"""

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from jobs.clips import ORIGIN, Clip, load_mimi, read_clips, weights_of
from jobs.locations import CodeFiles, find_code_files
from jobs.originals import Originals
from jobs.yaml_text import one_line
from pipeline.errors import AudioError, RunDirError, SourceError
from pipeline.records import FRAME_SAMPLES, Row
from pipeline.run_dir import RunDir
from pipeline.schema import COLUMNS

if TYPE_CHECKING:
    from mimi import Mimi

WINDOW_FRAMES = 188  # 15 s, judged
CONTEXT_FRAMES = 1063  # 85 s, encoded before the window so that its codes have all they depend on
EXACT_PRECISION = "float32"  # what the limit is for


@dataclass(frozen=True, slots=True)
class SampledClip:
    """One row encoded again. excess: how much farther a chosen entry is than the nearest, in float64."""

    key: str | None
    shard: int
    row: int
    channel: int | None
    first_frame: int
    frames: int  # judged, from the first
    codes: int
    beyond: int  # codes whose excess is over the limit
    worst_excess: float
    limit: float
    precision: str
    judged: bool  # whether the run's precision is held to the limit
    problem: str | None = None  # what's wrong, the file named first


@dataclass(slots=True)
class Reencoder:
    """The run's model in float64, and its source. Loading either may take a while; both are kept."""

    run: RunDir
    found: CodeFiles
    originals: Originals
    mimi: "Mimi" = field(repr=False)
    precision: str
    storage_options: dict[str, Any] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, run: RunDir, storage_options: dict[str, Any] | None = None) -> "Reencoder":
        """MimiJobsError, one line, where the weights or the source can't be had."""
        import torch

        found = find_code_files(run.storage.root, storage_options)
        note = weights_of(found, storage_options)
        model = run.manifest["facts"]["model"]
        if note is None:
            raise RunDirError(f"{run.storage.root}: its manifest names no weights")
        originals = Originals.of(run)
        mimi = load_mimi(note, model["num_codebooks"], dtype=torch.float64)
        return cls(run, found, originals, mimi, model.get("precision", EXACT_PRECISION), storage_options)

    def audit(self, file: str, position: int) -> SampledClip:
        """Judge a row of a data file, by its place in it. MimiJobsError where it can't be read or encoded again."""
        shown = self.found.show(f"{self.found.root}/{file}")
        names = self.originals.reader.kept_schema.names
        clips = read_clips(
            self.found,
            f"{self.found.root}/{file}",
            rows=[position],
            columns=(*ORIGIN, *names),
            storage_options=self.storage_options,
        )
        clip = next(clips, None)
        if clip is None:
            raise RunDirError(f"{shown}: has no row {position} any more")
        where = f"{shown}: row {clip.columns['row']} ({one_line(clip.key, 60)})"
        try:
            row = self.originals.row(clip.columns["shard"], clip.columns["row"])
            return self._judged(clip, row, where)
        except AudioError as error:
            raise SourceError(f"{where}: was encoded, and now its sound is {error.kind}: {error}") from error
        except SourceError as error:
            raise SourceError(f"{where}: {error}") from error

    def _judged(self, clip: Clip, row: Row, where: str) -> SampledClip:
        import torch

        from mimi.audit import LIMIT, excess_of

        total, channel = clip.codes.shape[1], clip.columns["channel"]
        frames = total if total <= WINDOW_FRAMES + CONTEXT_FRAMES else WINDOW_FRAMES
        first = random.Random(f"{clip.columns['shard']}/{clip.columns['row']}").randint(0, total - frames)
        before = min(first, CONTEXT_FRAMES)
        start, last = first - before, first + frames
        whole = last == total
        pcm = self.originals.samples(row, channel, start * FRAME_SAMPLES, None if whole else last * FRAME_SAMPLES)
        problem = self._unlike(clip, row)
        have = start - (-len(pcm) // FRAME_SAMPLES)  # frames up to the window's end
        if have != last:
            problem = f"has {total} frames, its source gives {have}"
            excess = np.full((len(clip.codes), 0), 0.0)
        else:
            codes = torch.from_numpy(clip.codes[:, start:last].astype(np.int64))
            excess = excess_of(self.mimi, torch.from_numpy(pcm), codes)[:, before:].numpy()
        beyond, worst = int((~(excess <= LIMIT)).sum()), float(excess.max(initial=0.0))
        judged = self.precision == EXACT_PRECISION
        if judged and beyond and problem is None:
            at = np.argwhere(~(excess <= LIMIT))[0]
            problem = (
                f"{beyond} of {excess.size} codes aren't the nearest entry (worst excess {worst:.1e}, the limit is "
                f"{LIMIT:g}), first in codebook {at[0]}, frame {first + at[1]}"
            )
        return SampledClip(
            key=clip.key,
            shard=clip.columns["shard"],
            row=clip.columns["row"],
            channel=channel,
            first_frame=first,
            frames=excess.shape[1],
            codes=excess.size,
            beyond=beyond,
            worst_excess=worst,
            limit=LIMIT,
            precision=self.precision,
            judged=judged,
            problem=problem and f"{where}: {problem}",
        )

    def _unlike(self, clip: Clip, row: Row) -> str | None:
        """Which of the columns that come from the source is not as it is there."""
        if row.key != clip.key:
            return f"has the key {one_line(repr(clip.key), 60)}, its source {one_line(repr(row.key), 60)}"
        own = {column.name for column in COLUMNS}
        kept = row.kept.to_pylist()[0] if row.kept.num_columns else {}
        for name, value in kept.items():
            if name not in own and str(clip.columns.get(name)) != str(value):
                return f"its column {one_line(name, 40)} isn't what the source has"
        return None
