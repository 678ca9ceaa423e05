"""How a run stands, from its files alone: works on any machine that can read them, while a driver runs or not."""

import json
import os
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from heapq import nlargest
from typing import Any, Literal

JSON_VERSION = 1
MOST_SLOWEST = 10
STALE_S = 120.0  # a driver elsewhere that has written nothing for so long isn't counted as running

State = Literal["finished", "running", "stopped"]


@dataclass(frozen=True, slots=True)
class RunningShard:
    """A shard that an actor is at work on."""

    shard: int
    rows_read: int
    audio_seconds: float


@dataclass(frozen=True, slots=True)
class SlowShard:
    """A finished shard that took long: one far above the rest shows a slow machine, source or kind of audio."""

    shard: int
    seconds: float  # wall time of its attempt
    rows: int
    audio_seconds: float
    worker: str  # the actor and its machine; empty where it isn't known


@dataclass(slots=True)
class Status:
    """What `status` reports. Rows and hours are those of finished shards, and of shards at work while a driver runs."""

    path: str
    state: State
    shards: int
    shards_done: int
    shards_with_failures: int
    rows: int
    encoded: int
    failed: int
    skipped: int
    frames: int
    hours: float
    weights: str | None = None
    random_weights: bool = False
    failures: dict[str, int] = field(default_factory=dict)  # kind -> rows, of finished shards
    running: list[RunningShard] = field(default_factory=list)
    times_real_time: float | None = None
    seconds_left: float | None = None
    actors: int | None = None
    holder: str | None = None  # whose lock it is
    slowest: list[SlowShard] = field(default_factory=list)  # finished shards, the slowest first
    redo: list[str] = field(default_factory=list)  # finished shards that resume does again, a line each

    def to_json(self) -> str:
        """The stable form: this class's fields by name, and `version`."""
        return json.dumps({"version": JSON_VERSION, **asdict(self)}, ensure_ascii=False)


def status(path: str | os.PathLike[str], storage_options: dict[str, Any] | None = None) -> Status:
    """Read how the run at `path` stands; raises `RunDirError` where no run is."""
    from pipeline.lock import is_alive_here, read_holder
    from pipeline.run_dir import RunDir

    run = RunDir.open(os.fspath(path), storage_options)
    markers = run.markers()
    redo = run.missing(markers)
    done = [marker for shard, marker in markers.items() if shard not in redo]
    failures: Counter[str] = Counter()
    for marker in done:
        failures.update(marker.failures)
    num_shards = len(run.plan())
    weights = run.manifest.get("weights") or {}
    holder = read_holder(run.storage)
    progress = run.read_progress() or {}
    result = Status(
        path=os.fspath(path),
        state="finished" if len(done) == num_shards else "stopped",
        shards=num_shards,
        shards_done=len(done),
        shards_with_failures=sum(1 for marker in done if marker.failed),
        rows=sum(marker.rows_read for marker in done),
        encoded=sum(marker.encoded for marker in done),
        failed=sum(marker.failed for marker in done),
        skipped=sum(marker.skipped for marker in done),
        frames=sum(marker.frames for marker in done),
        hours=sum(marker.audio_seconds for marker in done) / 3600,
        weights=weights.get("name"),
        random_weights=bool(weights.get("random")),
        failures=dict(failures.most_common()),
        slowest=[
            SlowShard(marker.shard, marker.seconds, marker.rows_read, marker.audio_seconds, marker.worker)
            for marker in nlargest(MOST_SLOWEST, done, key=lambda marker: marker.seconds)
        ],
        redo=[redo[shard] for shard in sorted(redo)],
    )
    if holder is not None:
        alive = is_alive_here(holder)
        fresh = time.time() - max(holder.heartbeat, float(progress.get("updated") or 0)) < STALE_S
        if alive or (alive is None and fresh):
            result.holder = holder.words()
            _add_progress(result, progress, since=holder.acquired)
    return result


def _add_progress(result: Status, progress: dict[str, Any], since: float) -> None:
    """What a driver at work says of itself; of a note from before its time only that it runs is known."""
    result.state = "running"
    if float(progress.get("updated") or 0) < since:
        return
    result.rows = max(result.rows, int(progress.get("rows") or 0))
    result.failed = max(result.failed, int(progress.get("failed") or 0))
    result.skipped = max(result.skipped, int(progress.get("skipped") or 0))
    result.hours = max(result.hours, float(progress.get("audio_seconds") or 0) / 3600)
    result.times_real_time = progress.get("times_real_time")
    result.seconds_left = progress.get("seconds_left")
    result.actors = progress.get("actors")
    result.running = [
        RunningShard(int(each["shard"]), int(each["rows_read"]), float(each["audio_seconds"]))
        for each in progress.get("running") or []
    ]
