"""What is in parquet files of codes: counts, lengths, codebook use, failures. Reads columns, never row by row.

`code_files.py` reads and checks the files, `code_counts.py` counts, `tables.py` shows what is found.
"""

import json
import math
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from jobs.code_counts import FRAME_RATE, MAX_KEYS_COMPARED, Tally
from jobs.code_files import CODEBOOK_SIZE, CodeFile, CodeFileError
from jobs.locations import CodeFiles, find_code_files

pc: Any = pyarrow.compute  # its functions are made when it is imported, where no type checker sees them

JSON_VERSION = 1
FILES_AHEAD = 16
READERS = 2  # threads; parquet decoding and most of numpy let go of the interpreter
HISTOGRAM_BARS = 12
OTHER_COLUMNS = ("key", "channel", "duration", "sample_rate", "num_channels")
METADATA_KEY = b"mimi_jobs"
MAX_CLIPS = 100


@dataclass(frozen=True, slots=True)
class CodebookUse:
    """One codebook over all frames."""

    codebook: int
    used: int  # entries seen, of 2048
    entropy_bits: float  # of the codes' distribution, at most 11
    most_frequent: int  # the code
    most_frequent_share: float  # of all frames


@dataclass(frozen=True, slots=True)
class Failure:
    """Failed (or skipped) rows of one kind, and one of them."""

    stage: str
    kind: str
    rows: int
    example_key: str
    example_message: str


@dataclass(frozen=True, slots=True)
class Lengths:
    """Seconds of clips, by their frames."""

    min: float
    median: float
    p95: float
    max: float
    histogram: tuple[tuple[float, float, int], ...]  # from, to, clips


@dataclass(slots=True)
class Inspection:
    """What `inspect` reports. Counts are over the files that could be read; `problems` has a line for each other."""

    path: str
    files: int = 0
    problems: list[str] = field(default_factory=list)
    rows: int = 0
    hours: float = 0.0
    frames: int = 0
    num_codebooks: int = 0
    bytes: int = 0  # of the files
    code_bytes: int = 0  # of the codes alone, as stored
    bits_per_second: float = 0.0  # of stored codes, a second of frames
    bits_per_code: float = 0.0
    lengths: Lengths | None = None
    sample_rates: dict[int, int] = field(default_factory=dict)  # Hz -> rows
    channels: dict[int, int] = field(default_factory=dict)  # of the source -> rows
    codebooks: list[CodebookUse] = field(default_factory=list)
    constant_clips: int = 0  # whose first codebook hardly changes: silence, a hum, a stuck encoder
    duplicate_keys: int | None = None  # rows beyond the first of their key; None: too many to compare
    duplicate_key_example: str | None = None
    duplicate_codes: int | None = None  # rows beyond the first of the same codes
    failures: list[Failure] = field(default_factory=list)
    skipped: list[Failure] = field(default_factory=list)
    weights: str | None = None
    random_weights: bool | None = None  # None: the files don't say
    weights_sha256: str | None = None
    precision: str | None = None
    fingerprint: str | None = None
    unfinished_shards: int | None = None  # of a run: planned shards without a marker

    def to_json(self) -> str:
        """The stable form: this class's fields by name, with `version`; records are objects, their lists lists."""
        return json.dumps({"version": JSON_VERSION, **asdict(self)}, ensure_ascii=False, allow_nan=False)


def inspect(path: str | os.PathLike[str], storage_options: dict[str, Any] | None = None) -> Inspection:
    """Inspect a run, a folder of parquet or one file, local or an fsspec URL.

    Raises `RunDirError` where nothing is there; a file that can't be read is one line of `problems`.
    """
    found = find_code_files(os.fspath(path), storage_options)
    tally = Tally()
    result = Inspection(found.path, problems=list(found.problems), unfinished_shards=found.unfinished_shards)
    for name, part in _tallies(found):
        problem = part if isinstance(part, str) else tally.refuses(part)
        if problem:
            result.problems.append(f"{found.show(name)}: {problem}")
        elif isinstance(part, Tally):
            tally.add(part)
    _fill(result, tally)
    result.failures, lines = _failures(found, found.errors)
    result.skipped, more_lines = _failures(found, found.skipped)
    result.problems += lines + more_lines
    _describe_model(result, found, tally.metadata)
    return result


def _tallies(found: CodeFiles) -> Iterator[tuple[str, "Tally | str"]]:
    """Each file with what is in it, in order; read a few files ahead, so that memory is bounded."""
    waiting: deque[tuple[str, Future[Tally | str]]] = deque()
    with ThreadPoolExecutor(READERS) as pool:
        for name in found.data:
            waiting.append((name, pool.submit(_tally_file, found, name)))
            if len(waiting) > FILES_AHEAD:
                first, future = waiting.popleft()
                yield first, future.result()
        for name, future in waiting:
            yield name, future.result()


def _tally_file(found: CodeFiles, name: str) -> "Tally | str":
    """What is in one file, or what is wrong with it."""
    try:
        with CodeFile.open(name, found.fs) as file:
            tally = Tally(files=1, bytes=file.num_bytes, code_bytes=file.code_bytes(), metadata=_own_metadata(file))
            for batch in file.batches(OTHER_COLUMNS):
                tally.count(batch)
    except CodeFileError as error:
        return str(error)
    return tally


# ---- counts to what is shown


def _fill(result: Inspection, tally: Tally) -> None:
    result.files, result.rows, result.frames, result.bytes = tally.files, tally.rows, tally.frames, tally.bytes
    result.code_bytes = tally.code_bytes
    result.num_codebooks, result.constant_clips = tally.num_codebooks, tally.constant_clips
    result.hours = tally.seconds / 3600
    if tally.frames:
        result.bits_per_second = tally.code_bytes * 8 / (tally.frames / FRAME_RATE)
        result.bits_per_code = tally.code_bytes * 8 / (tally.frames * tally.num_codebooks)
        result.lengths = _lengths(tally.lengths)
        result.codebooks = _codebook_use(tally.counts, tally.num_codebooks)
    result.sample_rates = dict(tally.sample_rates.most_common())
    result.channels = dict(sorted(tally.channels.items()))
    if tally.rows <= MAX_KEYS_COMPARED:
        result.duplicate_keys, result.duplicate_key_example = _duplicate_keys(tally.keys)
        result.duplicate_codes = _duplicates(tally.signatures)


def _duplicates(signatures: Sequence[np.ndarray]) -> int:
    if not signatures:
        return 0
    values = np.sort(np.concatenate(signatures))
    return int((values[1:] == values[:-1]).sum())


def _duplicate_keys(keys: Sequence[Any]) -> tuple[int, str | None]:
    column = pa.chunked_array(keys, pa.large_string())
    distinct = int(pc.count_distinct(column, mode="all").as_py())
    if distinct == len(column):
        return 0, None
    counts = pc.value_counts(column)
    place = pc.index(pc.greater(counts.field("counts"), 1), pa.scalar(True)).as_py()
    return len(column) - distinct, counts.field("values")[place].as_py()


def _lengths(clips: np.ndarray) -> Lengths:
    """From the number of clips of each length in frames."""
    present = np.flatnonzero(clips)
    ranks = np.cumsum(clips)

    def at(share: float) -> float:
        return float(np.searchsorted(ranks, max(1, math.ceil(share * ranks[-1])))) / FRAME_RATE

    low, high = int(present[0]), int(present[-1])
    edges = np.unique(np.linspace(low, high + 1, min(HISTOGRAM_BARS, high + 1 - low) + 1).round().astype(int))
    bars = tuple(
        (float(start / FRAME_RATE), float(stop / FRAME_RATE), int(clips[start:stop].sum()))
        for start, stop in pairwise(edges)
    )
    return Lengths(low / FRAME_RATE, at(0.5), at(0.95), high / FRAME_RATE, bars)


def _codebook_use(counts: np.ndarray, k: int) -> list[CodebookUse]:
    use = []
    for codebook, row in enumerate(counts.reshape(k, CODEBOOK_SIZE)):
        share = row[row > 0] / row.sum()
        top = int(row.argmax())
        entropy = max(0.0, float(-(share * np.log2(share)).sum()))
        use.append(CodebookUse(codebook, len(share), entropy, top, float(row[top] / row.sum())))
    return use


def _failures(found: CodeFiles, names: Iterable[str]) -> tuple[list[Failure], list[str]]:
    """Rows by stage and kind, commonest first, with the first one as the example; and a line for each bad file."""
    import pyarrow.parquet as pq

    kinds: dict[tuple[str, str], list[Any]] = {}
    problems = []
    columns = ["stage", "kind", "key", "message"]
    for name in names:
        try:
            with found.fs.open(name, "rb") as file:
                table = pq.read_table(file, columns=columns)
            groups = table.group_by(["stage", "kind"], use_threads=False)
            rows = groups.aggregate([("key", "first"), ("message", "first"), ("key", "count")]).to_pylist()
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            problems.append(f"{found.show(name)}: can't be read ({' '.join(str(error).split())[:200]})")
            continue
        for row in rows:
            entry = kinds.setdefault((row["stage"], row["kind"]), [0, row["key_first"], row["message_first"]])
            entry[0] += row["key_count"]
    ordered = sorted(kinds.items(), key=lambda item: (-item[1][0], item[0]))
    return [Failure(stage, kind, *entry) for (stage, kind), entry in ordered], problems


def _own_metadata(file: CodeFile) -> dict[str, Any]:
    try:
        facts = json.loads(file.metadata.get(METADATA_KEY, b"{}"))
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _describe_model(result: Inspection, found: CodeFiles, metadata: dict[str, Any]) -> None:
    """Weights, precision and fingerprint: the run's manifest knows them, else the files' own metadata."""
    facts = {**metadata, **found.model}
    result.weights = facts.get("weights")
    result.weights_sha256 = facts.get("weights_sha256")
    result.precision = facts.get("precision")
    result.fingerprint = facts.get("fingerprint")
    if result.weights is not None:
        result.random_weights = bool(facts.get("random_weights", str(result.weights).startswith("random:")))


# ---- one clip


@dataclass(frozen=True, slots=True)
class ClipView:
    """One row, by its key. codes: uint16 [K, T] as nested lists; `columns` are the others, as plain values."""

    file: str
    columns: dict[str, Any]
    codes: list[list[int]]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def inspect_key(path: str, key: str, storage_options: dict[str, Any] | None = None) -> tuple[list[ClipView], list[str]]:
    """The rows with this key, at most `MAX_CLIPS`, and a line for each file that couldn't be searched."""
    found = find_code_files(path, storage_options)
    clips: list[ClipView] = []
    problems = list(found.problems)
    for name in found.data:
        try:
            with CodeFile.open(name, found.fs) as file:
                clips += _clips_of(file, found.show(name), key)
        except (CodeFileError, pa.ArrowException, OSError) as error:
            problems.append(f"{found.show(name)}: {' '.join(str(error).split())[:300]}")
        if len(clips) >= MAX_CLIPS:
            break
    return clips[:MAX_CLIPS], problems


def _clips_of(file: CodeFile, shown: str, key: str) -> list[ClipView]:
    if "key" not in file.parquet.schema_arrow.names:
        raise CodeFileError("no column named key")
    clips = []
    for group in range(file.parquet.num_row_groups):
        keys = file.parquet.read_row_group(group, columns=["key"]).column(0)
        places = np.flatnonzero(pc.fill_null(pc.equal(keys, key), False).to_numpy())
        if len(places):
            rows = file.parquet.read_row_group(group).take(places[:MAX_CLIPS]).to_pylist()
            clips += [ClipView(shown, row, codes) for row in rows if (codes := row.pop(file.column)) is not None]
    return clips
