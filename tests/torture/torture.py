"""Kill runs at drawn times, resume them until they are done, and compare with a run that nobody disturbed.

usage: python -m tests.torture.torture [--runs 20] [--seed 0] [--rows 48] [--work FOLDER]

Each run is killed at least once by SIGKILL: the driver, an actor, or every process of the run, in turn; a resume is
killed again with a chance of one in three. Counts rows lost, added and changed, and processes left behind; exit
status 1 if any of them isn't 0. Also measures the audio that had to be encoded again for each kill.
"""

import argparse
import io
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile

from tests.torture.killing import Run, difference, leftover, markers_of, parts_of, rows_of, wait_until

TARGETS = ("driver", "actor", "group")
CHECKPOINT_S = 2


def make_dataset(folder: Path, num_rows: int, seed: int, longest_s: float = 6) -> None:
    """Six parquet files of clips of noise, half a second and longer, and one row in nine that is no audio."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(num_rows):
        buffer = io.BytesIO()
        samples = 0.1 * rng.standard_normal(int(24000 * rng.uniform(0.5, longest_s)))
        soundfile.write(buffer, samples, 24000, format="FLAC")
        data = b"<html>" if i % 9 == 4 else buffer.getvalue()
        rows.append({"id": f"clip {i}", "audio": {"bytes": data, "path": f"{i}.flac"}})
    per_file = max(1, num_rows // 6)
    for i in range(0, num_rows, per_file):
        pq.write_table(pa.Table.from_pylist(rows[i : i + per_file]), folder / f"train-{i // per_file:05d}.parquet")


def arguments(data: Path, out: Path) -> list[str]:
    job = data.parent / f"{out.name}.yaml"
    job.write_text(
        f"input: {{path: {data}, id_column: id}}\n"
        f'model: {{weights: "random:0", num_codebooks: 8}}\n'
        f"output: {{path: {out}, checkpoint_seconds: {CHECKPOINT_S}}}\n"
        "ray: {actors: 2}\n"
    )
    return ["submit", str(job)]


def disturbed_run(data: Path, out: Path, log: Path, target: str, rng: random.Random) -> list[Run]:
    """Submit, kill, resume until done. Returns every command that was started."""
    runs, kills = [Run(arguments(data, out), log)], 0
    while True:
        run = runs[-1]
        if kills == 0 or (kills < 3 and rng.random() < 1 / 3):
            wait_until(lambda run=run: run.actors() or run.process.poll() is not None)
            before = len(parts_of(out)) + len(markers_of(out))
            at_work = lambda before=before: len(parts_of(out)) + len(markers_of(out)) > before  # noqa: E731
            wait_until(lambda run=run, at_work=at_work: at_work() or run.process.poll() is not None, 60)
            time.sleep(rng.uniform(0, 2.5))
            kills += bool(run.kill(target))
        code = run.wait()
        if code == 0:
            return runs
        assert len(runs) < 12, f"{out}: not done after {len(runs)} commands; see {log}"
        runs.append(Run(["resume", str(out)], log))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--rows", type=int, default=48)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help="keep everything here")
    options = parser.parse_args()
    work = options.work or Path(tempfile.mkdtemp(prefix="mimi-jobs-torture-"))
    data, undisturbed = work / "data", work / "undisturbed"
    make_dataset(data, options.rows, options.seed)
    first = Run(arguments(data, undisturbed), work / "undisturbed.log")
    assert first.wait() == 0, f"the undisturbed run failed; see {work / 'undisturbed.log'}"
    expected = rows_of(undisturbed)
    assert len(expected) == options.rows
    bad = 0
    for i in range(options.runs):
        out, target, rng = work / f"run-{i:02d}", TARGETS[i % 3], random.Random(options.seed * 1000 + i)
        began = time.monotonic()
        runs = disturbed_run(data, out, work / f"run-{i:02d}.log", target, rng)
        found, left = difference(expected, rows_of(out)), leftover(runs)
        bad += sum(found.values()) + len(left)
        print(
            f"run {i:2d}  killed: {target:6}  commands {len(runs)}  lost {found['lost']}  added {found['added']}  "
            f"changed {found['changed']}  processes left {len(left)}  {time.monotonic() - began:.0f} s",
            flush=True,
        )
    print(f"{options.runs} runs of {len(expected)} rows: {bad} rows or processes wrong")
    if not bad and options.work is None:
        shutil.rmtree(work)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
