"""How far a run is: its markers and what actors say of the shards in flight, added up for people and files."""

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from pipeline.marker import Marker
from pipeline.progress import Totals
from pipeline.records import Shard
from pipeline.worker import Progress

COUNTS = ("rows_read", "encoded", "failed", "skipped", "frames", "audio_seconds")


class Tally:
    """Sums are kept, not made anew: a run may have 100,000 shards and is looked at twice a second."""

    def __init__(self, shards: Iterable[Shard], markers: dict[int, Marker]):
        self._weights: dict[int, int] = {}
        self._num_rows: dict[int, int | None] = {}
        for shard in shards:
            self._weights[shard.index] = max(1, shard.num_bytes or 1)
            self._num_rows[shard.index] = shard.num_rows
        self._whole = max(1, sum(self._weights.values()))
        self._done: set[int] = set()
        self._share = 0
        self.sums: dict[str, Any] = dict.fromkeys(COUNTS, 0)
        self.failures: Counter[str] = Counter()
        for marker in markers.values():
            self.commit(marker)
        self._share_before, self._audio_before = self._share, self.sums["audio_seconds"]
        self._encoding_since: float | None = None

    def begin(self) -> None:
        """The first actor is ready: rates count from here."""
        self._encoding_since = self._encoding_since or time.monotonic()

    @property
    def begun(self) -> bool:
        return self._encoding_since is not None

    def commit(self, marker: Marker) -> None:
        self._done.add(marker.shard)
        self._share += self._weights[marker.shard]
        for name in COUNTS:
            self.sums[name] += getattr(marker, name)
        self.failures.update(marker.failures)

    def commonest_failures(self, in_flight: Iterable[Progress]) -> list[tuple[str, int]]:
        """The five kinds of failure that most rows met, in shards done and in flight, and how many rows did."""
        failures = self.failures.copy()
        for flight in self._unfinished(in_flight):
            failures.update(flight.failures)
        return failures.most_common(5)

    def totals(self, in_flight: Iterable[Progress], actors: int, nodes: int) -> Totals:
        flights = self._unfinished(in_flight)
        share = float(self._share)
        for flight in flights:
            num_rows = self._num_rows[flight.shard]
            if num_rows:
                share += self._weights[flight.shard] * min(1.0, (flight.rows_read - flight.rows_in_flight) / num_rows)
        audio = self.sums["audio_seconds"] + sum(p.audio_seconds for p in flights)
        since = self._encoding_since
        return Totals(
            shards=len(self._weights),
            shards_done=len(self._done),
            rows=self.sums["rows_read"] + sum(p.encoded + p.failed + p.skipped for p in flights),
            failed=self.sums["failed"] + sum(p.failed for p in flights),
            skipped=self.sums["skipped"] + sum(p.skipped for p in flights),
            audio_seconds=audio,
            audio_seconds_here=audio - self._audio_before,
            seconds=time.monotonic() - since if since is not None else 0.0,
            share_done=share / self._whole,
            share_here=(share - self._share_before) / self._whole,
            actors=actors,
            nodes=nodes,
        )

    def _unfinished(self, in_flight: Iterable[Progress]) -> list[Progress]:
        """Without the shards whose markers are counted already: an actor's word may be older."""
        return [progress for progress in in_flight if progress.shard not in self._done]


def facts(totals: Totals, in_flight: Iterable[Progress]) -> dict[str, Any]:
    """What `_state/progress.json` holds, for `status`."""
    running = [{"shard": p.shard, "rows_read": p.rows_read, "audio_seconds": p.audio_seconds} for p in in_flight]
    return {
        "updated": time.time(),
        "rows": totals.rows,
        "failed": totals.failed,
        "skipped": totals.skipped,
        "audio_seconds": totals.audio_seconds,
        "times_real_time": totals.times_real_time,
        "seconds_left": totals.seconds_left,
        "share_done": totals.share_done,
        "actors": totals.actors,
        "running": running,
    }
