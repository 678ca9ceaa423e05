"""The worker as a Ray actor: one model and one engine, two shards in flight, thread counts set explicitly."""

import json
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import ray

from pipeline.errors import RunDirError
from pipeline.records import Row, ShardResult
from pipeline.schedule import Assignment, DeathNote
from pipeline.source import SourceReader
from pipeline.spec import AudioPolicy, ModelSpec, OutputSpec
from pipeline.storage import Storage
from pipeline.worker import Care, Progress, ShardRun, Stopped

if TYPE_CHECKING:
    from mimi.graph import StepEncoder

SHARDS_IN_FLIGHT = 2
WATCH_S = 2.0


@dataclass(frozen=True, slots=True)
class ActorPlan:
    """All that an actor needs to know; the same for each."""

    reader: SourceReader
    audio: AudioPolicy
    model: ModelSpec
    output: OutputSpec
    schema: pa.Schema
    weights_sha256: str | None  # what the weights must hash to


@dataclass(frozen=True, slots=True)
class ActorState:
    """What an actor reports when asked."""

    node: str
    pid: int
    shards: tuple[Progress, ...]
    steps: int
    busy_slot_steps: int
    step_seconds: float
    starved_seconds: float


def note_path(shard: int) -> str:
    """Where an attempt announces the row it is about to touch, relative to the run directory."""
    return f"_state/{shard:05d}/in-flight.json"


def read_note(storage: Storage, assignment: Assignment) -> DeathNote | None:
    """What the attempt left, if it left anything; a note of another attempt says nothing about this one."""
    path = note_path(assignment.shard.index)
    if not storage.exists(path):
        return None
    found = json.loads(storage.read_bytes(path))
    if found.get("attempt") != assignment.attempt:
        return None
    return DeathNote(found["row"], found["key"], found["kind"])


def _check_weights(spec: ModelSpec, expected: str | None) -> None:
    """A file of the same name on another machine may be another file: its codes would be wrong, unseen."""
    from mimi.checkpoint import inspect_checkpoint, weights_sha256

    found = weights_sha256(inspect_checkpoint(spec.weights, spec.revision))
    if expected is not None and found != expected:
        raise RunDirError(
            f"model.weights: {spec.weights} on {os.uname().nodename} has sha256 {found[:12]}, the job was submitted "
            f"with {expected[:12]}; put the same file there"
        )


class EncodeWorker:
    """Holds a model; encodes shards. Every method may be called while others run (Ray gives each a thread)."""

    def __init__(self, plan: ActorPlan):
        import torch

        from pipeline.engine import Engine
        from pipeline.metrics import WorkerMetrics

        spec = plan.model
        torch.set_num_threads(spec.threads)
        self._plan = plan
        self._engine = Engine(
            self.load_model(plan),
            slots=spec.slots,
            chunk_frames=spec.chunk_frames,
            device=spec.device,
            decode_threads=spec.decode_threads,
        )
        self._storage = Storage.at(plan.output.path, plan.output.storage_options)
        self._runs: dict[int, tuple[ShardRun, Assignment]] = {}
        self._stop = threading.Event()
        self._metrics = WorkerMetrics(plan.output.path.rstrip("/").rpartition("/")[2])
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def load_model(self, plan: ActorPlan) -> "StepEncoder":
        """The model, the same as the job was submitted with. RunDirError where this machine has another."""
        from mimi import Mimi
        from mimi.graph import use_precision

        spec = plan.model
        _check_weights(spec, plan.weights_sha256)
        return Mimi.load(
            spec.weights,
            revision=spec.revision,
            num_codebooks=spec.num_codebooks,
            device=spec.device,
            dtype=use_precision(spec.precision),
        )

    def ready(self) -> tuple[str, int]:
        return os.uname().nodename, os.getpid()

    def encode(self, assignment: Assignment, retry_failed: bool = False) -> ShardResult | None:
        """Encode a shard into a staged file. None: asked to stop, finished rows are in the parts."""
        from pipeline.metrics import shard_line
        from pipeline.writer import ShardWriter

        shard, plan = assignment.shard, self._plan
        writer = ShardWriter(
            self._storage,
            shard,
            plan.schema,
            attempt=assignment.attempt,
            checkpoint_seconds=plan.output.checkpoint_seconds,
            retry_failed=retry_failed,
        )
        crashed = {row.row: row for row in assignment.crashed}
        care = Care(assignment.alone_until, crashed, lambda row: self._announce(assignment, row))
        run = ShardRun(
            shard,
            reader=plan.reader,
            engine=self._engine,
            writer=writer,
            policy=plan.audio,
            care=care,
            stop=self._stop,
        )
        self._runs[shard.index] = run, assignment
        try:
            result = run.run()
        except Stopped:
            return None
        finally:
            del self._runs[shard.index]
        self._metrics.shard_done(result)
        print(shard_line(result), flush=True)  # to the actor's own log, which Ray's dashboard shows
        return result

    def state(self) -> ActorState:
        stats = self._engine.stats
        runs = tuple(run.progress() for run, _ in list(self._runs.values()))
        node, pid = self.ready()
        return ActorState(
            node, pid, runs, stats.steps, stats.busy_slot_steps, stats.step_seconds, stats.starved_seconds
        )

    def stop(self) -> None:
        self._stop.set()

    def _announce(self, assignment: Assignment, row: Row | None, kind: str = "crashed") -> None:
        path = note_path(assignment.shard.index)
        if row is None:
            self._storage.remove(path)
            return
        note = {"attempt": assignment.attempt, "row": row.row, "key": row.key, "kind": kind}
        self._storage.write_bytes_atomic(path, json.dumps(note).encode())

    def _watch(self) -> None:
        """End the process when a row hangs: a thread that is stuck inside a decoder can't be stopped otherwise."""
        while not self._stop.wait(WATCH_S):
            in_flight = sum(run.progress().rows_in_flight for run, _ in list(self._runs.values()))
            self._metrics.look(self._engine.stats, slots=self._engine.slots, rows_in_flight=in_flight)
            for clip in self._engine.stuck(time.monotonic(), self._plan.audio.row_timeout_s):
                for run, assignment in list(self._runs.values()):
                    row = run.row_of(clip)
                    if row is not None:
                        self._announce(assignment, row, "timeout")
                        os._exit(3)


RemoteWorker: Any = ray.remote(EncodeWorker)  # Ray's own types don't know what `options` returns
