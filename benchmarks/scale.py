"""How the driver and the actors scale, measured with stand-ins for the encoder. One private Ray on this machine.

    python benchmarks/scale.py driver --shards 100000      # shards a second, driver's memory, plan, status, resume
    python benchmarks/scale.py actors --actors 1 2 4 8 16  # the rate of an encoder that sleeps as a GPU would
    python benchmarks/scale.py rows --rows 1000000         # memory over many rows of tiny clips

`driver` has actors that hand in a finished file at once, so that the driver is all that's measured. `actors` and
`rows` are whole runs but for the model: source, decoding, engine, writer and commit are the product's.
"""

import argparse
import io
import os
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import soundfile
import torch

from pipeline.actors import ActorPlan, ActorState, EncodeWorker
from pipeline.cluster import RayPlan
from pipeline.driver import RunRequest, run
from pipeline.records import SAMPLE_RATE, RunOutcome, Shard, ShardResult, SourceFile, StagedFile
from pipeline.run_dir import RunDir
from pipeline.schedule import Assignment
from pipeline.schema import output_schema, shard_file
from pipeline.source import open_source
from pipeline.spec import AudioPolicy, InputSpec, ModelSpec, OutputSpec
from pipeline.storage import Storage

NUM_CODEBOOKS = 8
STEP_S = 0.5  # of the sleeping encoder: with 4 slots of 2 s, an actor goes at 16 times real time
FILE_BYTES = 2000
MANIFEST: dict[str, Any] = {"fingerprint": "scale", "facts": {}, "job": {"model": {"weights": "none: a benchmark"}}}


# ---------------------------------------------------------------- stand-ins


class HandingIn:
    """An actor without an engine: each shard is a file of the same few bytes, staged at once."""

    def __init__(self, plan: ActorPlan):
        self._storage = Storage.at(plan.output.path)
        self._num_shards = int((plan.schema.metadata or {})[b"num_shards"])

    def ready(self) -> tuple[str, int]:
        return os.uname().nodename, os.getpid()

    def encode(self, assignment: Assignment, retry_failed: bool = False) -> ShardResult:
        shard = assignment.shard
        name = f"_state/{shard.index:05d}/data-{assignment.attempt:04d}-staged"
        self._storage.write_bytes_atomic(name, bytes(FILE_BYTES), durable=False)
        file = StagedFile(name, f"data/{shard_file(shard, self._num_shards)}", FILE_BYTES, "0" * 64)
        return ShardResult(shard.index, assignment.attempt, 10, 10, 0, 0, 10, 125, 10.0, (file,), {}, 0.01)

    def state(self) -> ActorState:
        return ActorState(*self.ready(), (), 0, 0, 0.0, 0.0)

    def stop(self) -> None:
        pass


class Asleep:
    """A model whose step takes a GPU's time and no CPU."""

    def __init__(self, step_s: float):
        self._step_s = step_s

    def new_state(self, slots: int) -> None:
        return None

    def reset_slots(self, state: None, mask: torch.Tensor) -> None:
        return None

    def encode_step(self, chunk: torch.Tensor, state: None, active: torch.Tensor | None = None) -> Any:
        time.sleep(self._step_s)
        slots, frames = chunk.shape[0], -(-chunk.shape[-1] // 1920)
        codes = torch.zeros(slots, NUM_CODEBOOKS, frames, dtype=torch.int64)
        return SimpleNamespace(codes=codes, finite=torch.ones(slots, dtype=torch.bool), state=None)


class SleepingWorker(EncodeWorker):
    """The product's actor with a model that sleeps."""

    def load_model(self, plan: ActorPlan) -> Any:
        return Asleep(STEP_S if plan.model.slots == 4 else 0.0)


# ---------------------------------------------------------------- measuring


@dataclass
class Memory:
    """Resident MB of a process, and MB in Ray's object store, now and then: (seconds since the beginning, MB)."""

    driver: list[tuple[float, float]]
    actors: list[tuple[float, float]]
    store: list[tuple[float, float]]


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def stored_mb() -> float:
    has, free = ray.cluster_resources(), ray.available_resources()
    return (has.get("object_store_memory", 0) - free.get("object_store_memory", 0)) / 1e6


def actor_pids() -> list[int]:
    mine, found = f"{os.getpid()}", []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
            if command.startswith(b"ray::") and f"MIMI_JOBS_SCALE={mine}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@contextmanager
def watched(every_s: float = 5.0) -> Iterator[Memory]:
    memory, end, began = Memory([], [], []), threading.Event(), time.monotonic()

    def watch() -> None:
        while not end.wait(every_s):
            now = time.monotonic() - began
            memory.driver.append((now, resident_mb(os.getpid())))
            actors = [resident_mb(pid) for pid in actor_pids() if Path(f"/proc/{pid}").exists()]
            if actors and ray.is_initialized():
                memory.actors.append((now, max(actors)))
                memory.store.append((now, stored_mb()))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield memory
    finally:
        end.set()
        thread.join()


def timed(what: str, function: Any) -> Any:
    began = time.monotonic()
    result = function()
    print(f"| {what} | {time.monotonic() - began:.1f} s |", flush=True)
    return result


def request_of(run_dir: RunDir, reader: Any, actors: int, slots: int) -> RunRequest:
    model = ModelSpec("random:0", num_codebooks=NUM_CODEBOOKS, slots=slots, chunk_frames=25)
    plan = RayPlan(actors=actors, cpus_per_actor=1.0)
    return RunRequest(run_dir, reader, AudioPolicy(), model, OutputSpec(run_dir.storage.root), plan)


# ---------------------------------------------------------------- the three measurements


def measure_driver(folder: Path, num_shards: int, actors: int) -> None:
    from jobs.status import status

    schema = output_schema(pa.schema([]), metadata={"num_codebooks": NUM_CODEBOOKS})
    schema = schema.with_metadata({**(schema.metadata or {}), b"num_shards": str(num_shards).encode()})
    shards = (
        Shard(index, "train", (SourceFile(f"/data/{index:07d}.parquet", 500_000_000 + index, "1"),), num_rows=10)
        for index in range(num_shards)
    )
    out = str(folder / "out")
    print(f"| {num_shards:,} shards, {actors} actors | |\n|---|---|", flush=True)
    run_dir = timed(
        "plan and run directory", lambda: RunDir.create(out, manifest=MANIFEST, shards=shards, schema=schema)
    )
    spent = time.process_time()
    with watched() as memory:
        outcome = run(request_of(run_dir, None, actors, 1), worker=ray.remote(HandingIn))
    spent = time.process_time() - spent
    assert outcome.finished and outcome.rows == 10 * num_shards, outcome
    print(f"| shards a second, Ray's start and the end included | {num_shards / outcome.seconds:.0f} |")
    print(f"| driver's CPU seconds for 1,000 shards | {spent / num_shards * 1000:.2f} |")
    print(f"| driver's memory at most | {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB |")
    print(f"| of that at 10 s, and at the end | {spread(memory.driver)} |")
    print(f"| largest actor at 10 s, and at the end | {spread(memory.actors)} |")
    print(f"| object store at 10 s, and at the end | {spread(memory.store, 1)} |")
    timed("status", lambda: status(out))
    timed("pending shards, as resume asks", lambda: RunDir.open(out).pending())


def spread(samples: list[tuple[float, float]], digits: int = 0) -> str:
    early = [mb for second, mb in samples if second >= 10][:1] or [mb for _, mb in samples[:1]]
    return f"{early[0]:.{digits}f} MB, {samples[-1][1]:.{digits}f} MB" if early else "too short to tell"


def make_clips(folder: Path, files: int, rows: int, seconds: float) -> Path:
    """Parquet files of the same short WAV, a shard each."""
    folder.mkdir(parents=True)
    sound = io.BytesIO()
    samples = np.random.default_rng(0).uniform(-0.1, 0.1, round(seconds * SAMPLE_RATE))
    soundfile.write(sound, samples, SAMPLE_RATE, format="WAV", subtype="PCM_16")
    clip = {"bytes": sound.getvalue(), "path": "a.wav"}
    for index in range(files):
        table = pa.table({"id": [f"{index}-{row}" for row in range(rows)], "audio": [clip] * rows})
        pq.write_table(table, folder / f"train-{index:05d}.parquet")
    return folder


def sleeping_run(folder: Path, name: str, data: Path, actors: int, slots: int) -> RunOutcome:
    source = open_source(InputSpec(str(data), id_column="id"))
    schema = output_schema(source.kept_schema, metadata={"num_codebooks": NUM_CODEBOOKS})
    out = str(folder / name)
    run_dir = RunDir.create(out, manifest=MANIFEST, shards=source.plan(), schema=schema)
    return run(request_of(run_dir, source.reader, actors, slots), worker=ray.remote(SleepingWorker))


def measure_actors(folder: Path, counts: list[int], seconds_each: float) -> None:
    """Each run has work for so many seconds an actor; the rate counts from the first actor's start to the end."""
    print("| actors | audio seconds a second | of linear |\n|---|---|---|", flush=True)
    first = None
    rows = 40
    shards_each = max(4, round(seconds_each * 16 / (rows * 10)))
    for count in counts:
        data = make_clips(folder / f"data-{count}", shards_each * count, rows, 10.0)
        rate = encoding_rate(sleeping_run(folder, f"out-{count}", data, count, 4), folder / f"out-{count}")
        first = first or rate / count
        print(f"| {count} | {rate:.1f} | {rate / count / first:.1%} |", flush=True)
        shutil.rmtree(data)


def encoding_rate(outcome: RunOutcome, out: Path) -> float:
    """Audio seconds a second between the start of the first attempt and the end of the last."""
    markers = RunDir.open(str(out)).markers().values()
    began = min(marker.published - marker.seconds for marker in markers)
    return outcome.audio_seconds / (max(marker.published for marker in markers) - began)


def measure_rows(folder: Path, rows: int, actors: int) -> None:
    per_file = 5000
    data = make_clips(folder / "data", max(actors, rows // per_file), per_file, 0.08)
    with watched(2.0) as memory:
        outcome = sleeping_run(folder, "out", data, actors, 64)
    print(f"| {outcome.rows:,} rows by {actors} actors | |\n|---|---|")
    print(f"| rows a second | {outcome.rows / outcome.seconds:.0f} |")
    for name, samples in (("driver", memory.driver), ("largest actor", memory.actors)):
        at = [samples[round(share * (len(samples) - 1))][1] for share in (0.25, 0.5, 0.75, 1)] if samples else []
        print(f"| {name} at 25, 50, 75, 100% of the time | {', '.join(f'{mb:.0f}' for mb in at)} MB |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["driver", "actors", "rows"])
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--actors", type=int, nargs="+", default=None)
    parser.add_argument("--seconds", type=float, default=60, help="of work for each actor (actors)")
    parser.add_argument("--folder", help="where runs are written (default: a temporary one)")
    given = parser.parse_args()
    os.environ["MIMI_JOBS_SCALE"] = str(os.getpid())  # by which this run's actors are known
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="mimi-jobs-scale-") as name:
        folder = Path(name)
        if given.what == "driver":
            measure_driver(folder, given.shards, (given.actors or [4])[0])
        elif given.what == "actors":
            measure_actors(folder, given.actors or [1, 2, 4, 8, 16], given.seconds)
        else:
            measure_rows(folder, given.rows, (given.actors or [2])[0])


if __name__ == "__main__":
    main()
