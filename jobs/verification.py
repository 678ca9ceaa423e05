"""Whether a run is what it says: every file against its marker, and some rows encoded again from their source.

`shard_checks.py` looks into a shard, `reencoding.py` encodes again; here rows are drawn and a verdict found.
"""

import json
import random
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from jobs.shard_checks import ShardReport, check_shard
from pipeline.errors import MimiJobsError
from pipeline.schema import FOLDERS

if TYPE_CHECKING:
    from jobs.reencoding import SampledClip
    from pipeline.marker import Marker
    from pipeline.run_dir import RunDir

T = TypeVar("T")

JSON_VERSION = 1
READERS = 2  # threads; hashing and parquet decoding let go of the interpreter
MARKER = re.compile(r"(\d{5,9})\.json")


@dataclass(slots=True)
class Verification:
    """What `verify` found. `problems` has a line for each thing that is wrong, the file named first."""

    path: str
    shards: int = 0  # planned
    shards_done: int = 0
    files: int = 0
    bytes: int = 0  # of files whose hash is right
    rows_read: int = 0
    encoded: int = 0
    failed: int = 0
    skipped: int = 0
    clips: int = 0  # rows of codes that were looked at
    frames: int = 0
    sampled: "list[SampledClip]" = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not self.problems

    @property
    def verdict(self) -> str:
        """One line."""
        if self.problems:
            things = "1 thing is" if len(self.problems) == 1 else f"{len(self.problems):,} things are"
            return f"{self.path}: NOT sound: {things} wrong"
        rows = f"{self.encoded:,} encoded, {self.failed:,} failed, {self.skipped:,} skipped of {self.rows_read:,} rows"
        files = f"{self.files:,} files as their markers say ({self.bytes:,} bytes hashed)"
        return f"{self.path}: sound: {self.shards_done:,} shards, {files}; {rows}; {self._resampling()}"

    def _resampling(self) -> str:
        if not self.sampled:
            return "no row encoded again (--sample N does that)"
        codes = sum(clip.codes for clip in self.sampled)
        unlike = sum(clip.beyond for clip in self.sampled)
        judged = [clip for clip in self.sampled if clip.judged]
        if not judged:
            share = unlike / codes if codes else 0.0
            precision = self.sampled[0].precision
            what = f"{share:.2%} of {codes:,} codes differ from float64, which {precision} isn't held to"
        else:
            worst = max(clip.worst_excess for clip in judged)
            what = f"{unlike} of {codes:,} codes beyond {judged[0].limit:g} (worst {worst:.1e})"
        return f"{len(self.sampled)} rows encoded again from their source, {what}"

    def to_json(self) -> str:
        """The stable form: this class's fields by name, with `version`, `sound` and `verdict`."""
        facts = {"version": JSON_VERSION, **asdict(self), "sound": self.sound, "verdict": self.verdict}
        return json.dumps(facts, ensure_ascii=False, default=str)


def verify(
    path: str, sample: int = 0, *, seed: int | None = None, storage_options: dict[str, Any] | None = None
) -> Verification:
    """Check the run at `path`. Raises RunDirError where no run is; whatever else is wrong is in the result.

    sample: rows to read from the source and encode again. seed: which ones; None draws others each time.
    """
    from pipeline.run_dir import RunDir

    run = RunDir.open(path, storage_options)
    result = Verification(path)
    _tried(result, run.storage.join("job.json"), run.check_manifest)
    schema = _tried(result, run.storage.join("_state/schema.arrow"), run.schema)
    shards = _tried(result, run.storage.join("_state/plan.parquet"), lambda: _planned_rows(run)) or {}
    markers = _tried(result, run.storage.join("_state"), run.markers) or {}
    result.problems += _damaged_markers(run, markers)
    result.shards, result.shards_done = len(shards), len(markers)
    if shards and len(markers) < len(shards):
        left = len(shards) - len(markers)
        result.problems.append(f"{path}: {left:,} of {len(shards):,} shards aren't finished, run `mimi-jobs resume`")
    whole = {}
    for marker, report in _reports(run, schema, shards, markers):
        _add(result, marker, report)
        if not report.problems:
            whole[marker.shard] = marker
    result.problems += _strays(run, markers)
    if sample > 0:
        _encode_again(result, run, whole, _draw(whole, sample, random.Random(seed)), storage_options)
    return result


def _tried(result: Verification, where: str, function: Callable[[], T]) -> T | None:
    """What the function gives; None, and a line, where the run's own record is damaged."""
    try:
        return function()
    except (MimiJobsError, pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        why = " ".join(str(error).split())[:300]
        result.problems.append(why if why.startswith(where) else f"{where}: can't be read: {why}")
        return None


def _planned_rows(run: "RunDir") -> dict[int, int | None]:
    """Of each planned shard, the rows that the plan knows it to have."""
    table = run.plan().table
    return dict(zip(table.column("index").to_pylist(), table.column("num_rows").to_pylist(), strict=True))


def _damaged_markers(run: "RunDir", markers: "dict[int, Marker]") -> list[str]:
    found = [match for entry in run.storage.list("_state") if (match := MARKER.fullmatch(entry.name))]
    return [
        f"{run.storage.join('_state', match[0])}: isn't a marker that can be read, run `mimi-jobs resume`"
        for match in found
        if int(match[1]) not in markers
    ]


def _reports(
    run: "RunDir", schema: pa.Schema | None, shards: dict[int, int | None], markers: "dict[int, Marker]"
) -> "Iterator[tuple[Marker, ShardReport]]":
    from tqdm import tqdm

    ordered = [markers[index] for index in sorted(markers)]
    with ThreadPoolExecutor(READERS) as pool:
        reports = pool.map(lambda marker: check_shard(run, schema, shards.get(marker.shard), marker), ordered)
        yield from tqdm(zip(ordered, reports, strict=True), "verify", len(ordered), unit=" shards", disable=None)


def _add(result: Verification, marker: "Marker", report: ShardReport) -> None:
    result.problems += report.problems
    result.files += report.num_files
    result.bytes += report.num_bytes
    result.clips += report.clips
    result.frames += report.frames
    for name in ("rows_read", "encoded", "failed", "skipped"):
        setattr(result, name, getattr(result, name) + getattr(marker, name))


def _strays(run: "RunDir", markers: "dict[int, Marker]") -> list[str]:
    """Files that readers of the folders would take for the run's, and that no marker names."""
    known = {file.path for marker in markers.values() for file in marker.files}
    lines = []
    for folder in FOLDERS:
        for entry in run.storage.list(folder):
            name = f"{folder}/{entry.name}"
            placeholder = not markers and name.endswith("-00000-of-00000.parquet")  # of a run without shards
            if name not in known and not placeholder:
                lines.append(f"{run.storage.join(name)}: belongs to no finished shard, move it away")
    return lines


def _encode_again(
    result: Verification,
    run: "RunDir",
    markers: "dict[int, Marker]",
    places: list[tuple[int, int]],
    storage_options: dict[str, Any] | None,
) -> None:
    from jobs.reencoding import Reencoder

    if not places:
        result.problems.append(f"{result.path}: there is no row of codes to encode again")
        return
    try:
        encoder = Reencoder.of(run, storage_options)
    except MimiJobsError as error:
        result.problems.append(f"{result.path}: no row can be encoded again: {' '.join(str(error).split())}")
        return
    for shard, position in places:
        file = markers[shard].file("data")
        assert file is not None
        try:
            result.sampled.append(encoder.audit(file.path, position))
        except MimiJobsError as error:
            result.problems.append(str(error))
    result.problems += [clip.problem for clip in result.sampled if clip.problem]


def _draw(markers: "dict[int, Marker]", sample: int, rng: random.Random) -> list[tuple[int, int]]:
    """(shard, row of its data file), each row as likely as any other, none twice, in order."""
    ordered = [markers[index] for index in sorted(markers)]
    total = sum(marker.clips for marker in ordered)
    drawn = sorted(rng.sample(range(total), min(sample, total)))
    places, before = [], 0
    for marker in ordered:
        while drawn and drawn[0] < before + marker.clips:
            places.append((marker.shard, drawn.pop(0) - before))
        before += marker.clips
    return places
