"""What an actor tells Ray's metrics (Prometheus, the dashboard) of its work, and its line of log for each shard."""

from ray.util.metrics import Counter, Gauge

from pipeline.engine import EngineStats
from pipeline.records import ShardResult

TAGS = ("run",)


class WorkerMetrics:
    """Metrics of one actor, all named `mimi_jobs_...`. `run`: the run's name, a tag of each."""

    def __init__(self, run: str):
        self._tags = {"run": run}
        self._audio = self._counter("audio_seconds", "Seconds of audio in finished shards")
        self._rows = Counter("mimi_jobs_rows", "Rows of finished shards by what became of them", (*TAGS, "outcome"))
        self._failures = Counter("mimi_jobs_failed_rows", "Failed rows of finished shards by kind", (*TAGS, "kind"))
        self._bytes = self._counter("output_bytes", "Bytes of finished files")
        self._shards = self._counter("shards", "Finished shards")
        self._in_flight = self._gauge("rows_in_flight", "Rows that were read and aren't filed yet")
        self._slot_use = self._gauge("slot_use", "Share of slots that carried a chunk, since the last look")
        self._step = self._gauge("step_seconds", "Mean time of an encoding step, since the last look")
        self._starved = self._gauge("starved_share", "Share of time that encoding waited for decoding, as above")
        self._before = EngineStats()

    def _counter(self, name: str, description: str) -> Counter:
        return Counter(f"mimi_jobs_{name}", description, TAGS)

    def _gauge(self, name: str, description: str) -> Gauge:
        return Gauge(f"mimi_jobs_{name}", description, TAGS)

    def shard_done(self, result: ShardResult) -> None:
        self._shards.inc(1, self._tags)
        for outcome in ("encoded", "failed", "skipped"):
            _add(self._rows, getattr(result, outcome), self._tags | {"outcome": outcome})
        for kind, count in result.failures.items():
            _add(self._failures, count, self._tags | {"kind": kind})
        _add(self._audio, result.audio_seconds, self._tags)
        _add(self._bytes, sum(file.num_bytes for file in result.files), self._tags)

    def look(self, stats: EngineStats, *, slots: int, rows_in_flight: int) -> None:
        """Called every few seconds."""
        before, self._before = self._before, EngineStats(*(getattr(stats, n) for n in EngineStats.__dataclass_fields__))
        steps = self._before.steps - before.steps
        spent = self._before.step_seconds - before.step_seconds
        starved = self._before.starved_seconds - before.starved_seconds
        self._in_flight.set(rows_in_flight, self._tags)
        used = (self._before.busy_slot_steps - before.busy_slot_steps) / (steps * slots) if steps else 0.0
        self._slot_use.set(used, self._tags)
        self._step.set(spent / steps if steps else 0.0, self._tags)
        self._starved.set(starved / (starved + spent) if starved + spent else 0.0, self._tags)


def _add(counter: Counter, value: float, tags: dict[str, str]) -> None:
    if value > 0:  # a counter takes nothing else
        counter.inc(value, tags)


def shard_line(result: ShardResult) -> str:
    """A finished shard in one line, for the actor's log."""
    rate = result.audio_seconds / result.seconds if result.seconds else 0.0
    kinds = ", ".join(f"{kind} {count}" for kind, count in result.failures.items())
    parts = [
        f"shard {result.shard}: {result.rows_read} rows",
        f"{result.failed} failed" + (f" ({kinds})" if kinds else ""),
        *([f"{result.skipped} skipped"] if result.skipped else []),
        f"{result.audio_seconds:.1f} s of audio in {result.seconds:.1f} s ({rate:.1f}x)",
        f"{sum(file.num_bytes for file in result.files):,} bytes",
        f"attempt {result.attempt}",
    ]
    return ", ".join(parts)
