"""How long `mimi-jobs inspect` takes over many hours of codes, and how much memory: makes the files, then measures.

    python benchmarks/inspect_scale.py /tmp/inspect-scale --hours 1000 --files 100

Codes are drawn like trained ones: a power law over shuffled entries in each codebook. Files that are there already are
used again.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.merge import PARQUET
from pipeline.records import FRAME_SAMPLES, SAMPLE_RATE
from pipeline.schema import output_schema

FRAME_RATE = SAMPLE_RATE / FRAME_SAMPLES
CLIP_FRAMES = (13, 587)  # 1 to 47 s, 24 on average
GROUP_CLIPS = 1500


def draw_tables(num_codebooks: int, rng: np.random.Generator) -> np.ndarray:
    """uint16 [K, 65536]: a uniform 16-bit number to a code, so that codes follow a power law of 8 to 10.5 bits."""
    tables = []
    for codebook in range(num_codebooks):
        power = 1.1 - 0.6 * codebook / max(1, num_codebooks - 1)
        weights = np.arange(1, 2049) ** -power
        edges = np.cumsum(weights) / weights.sum()
        codes = np.searchsorted(edges, (np.arange(65536) + 0.5) / 65536).clip(max=2047)
        tables.append(rng.permutation(2048)[codes])
    return np.stack(tables).astype(np.uint16)


def make_file(path: Path, index: int, frames_wanted: int, tables: np.ndarray, schema: pa.Schema) -> None:
    rng = np.random.default_rng(index)
    num_codebooks = len(tables)
    frames = rng.integers(*CLIP_FRAMES, frames_wanted // CLIP_FRAMES[0] + 2)
    frames = frames[: np.searchsorted(np.cumsum(frames), frames_wanted) + 1].astype(np.int32)
    rows = np.arange(len(frames))
    books = np.repeat(
        np.tile(np.arange(num_codebooks, dtype=np.uint32) << 16, len(frames)), frames.repeat(num_codebooks)
    )
    codes = tables.ravel()[books + rng.integers(0, 65536, len(books), np.uint16)]
    inner = np.concatenate([[0], np.cumsum(frames.repeat(num_codebooks))]).astype(np.int32)
    outer = np.arange(len(frames) + 1, dtype=np.int32) * num_codebooks
    lists = pa.ListArray.from_arrays(inner, pa.array(codes))
    columns = [
        pa.array([f"clip-{index:04d}-{row:06d}" for row in rows]),
        pa.ListArray.from_arrays(outer, lists),
        frames,
        frames / FRAME_RATE,
        np.full(len(rows), 16_000, np.int32),
        np.ones(len(rows), np.int16),
        pa.nulls(len(rows), pa.int16()),
        np.full(len(rows), index, np.int32),
        rows.astype(np.int64),
    ]
    temporary = path.with_suffix(".partial")
    pq.write_table(pa.table(columns, schema=schema), temporary, row_group_size=GROUP_CLIPS, **PARQUET)
    temporary.rename(path)


def make_files(folder: Path, hours: float, num_files: int, num_codebooks: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tables = draw_tables(num_codebooks, np.random.default_rng(0))
    facts = {"weights": "drawn at random", "num_codebooks": num_codebooks, "precision": "float32"}
    schema = output_schema(pa.schema([]), metadata=facts)
    for index in range(num_files):
        path = folder / f"train-{index:05d}-of-{num_files:05d}.parquet"
        if not path.exists():
            make_file(path, index, round(hours * 3600 * FRAME_RATE / num_files), tables, schema)


def measure(folder: Path) -> dict[str, float]:
    """Seconds, CPU seconds and peak memory of the command, and what it counted."""
    command = [str(Path(sys.executable).parent / "mimi-jobs"), "inspect", str(folder), "--json"]
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    seconds, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    found = json.loads(done.stdout)
    return {
        "hours": found["hours"],
        "rows": found["rows"],
        "frames": found["frames"],
        "megabytes": found["bytes"] / 1e6,
        "seconds": seconds,
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "peak_megabytes": after.ru_maxrss / 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hours", type=float, default=1000)
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--codebooks", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    make_files(given.folder, given.hours, given.files, given.codebooks)
    print(f"{os.cpu_count()} CPU cores")
    for _ in range(given.repeat):
        print(json.dumps({name: round(value, 1) for name, value in measure(given.folder).items()}), flush=True)


if __name__ == "__main__":
    main()
