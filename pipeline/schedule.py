"""Which shard goes next, and how carefully: attempts, deaths, retries. Plain bookkeeping, no Ray and no I/O.

A shard whose process died is tried again on a fresh actor, its unfinished rows one at a time and each announced, so
that a further death names its row. A row that dies so `MAX_CRASHES` times is given up as `crashed`; the rest of the
shard is encoded. An announced death alone proves little (somebody may have killed the process), hence twice.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.records import FailedRow, Shard

MAX_CRASHES = 2  # announced deaths on one row before it is given up
MAX_READ_FAILURES = 3  # attempts at a shard whose source can't be read
MAX_IDLE_DEATHS = 4  # deaths in a row, over the whole run, without a row finished between them
ROWS_BEYOND = 200  # rows that an attempt may have read since it was last asked


@dataclass(frozen=True, slots=True)
class Assignment:
    """One attempt at one shard. Rows before `alone_until` go one at a time; `crashed` rows aren't touched."""

    shard: Shard
    attempt: int  # unique over all drivers of the run
    alone_until: int = 0
    crashed: tuple[FailedRow, ...] = ()


@dataclass(frozen=True, slots=True)
class DeathNote:
    """What an attempt left behind about the row it worked on when its process ended."""

    row: int
    key: str
    kind: str  # crashed: announced before it was touched; timeout: the process ended itself, since the row hung


@dataclass(slots=True)
class _History:
    deaths: int = 0
    read_failures: int = 0
    alone_until: int = 0
    crashes: dict[int, int] = field(default_factory=dict)
    crashed: dict[int, FailedRow] = field(default_factory=dict)


class Schedule:
    """Hands out shards, largest first: what is left at the end is small, so no actor waits long for the last.

    Of shards that weren't handed out yet only their places in `shards` are kept: a plan makes each as it is asked for.
    """

    def __init__(self, shards: Sequence[Shard], first_attempt: int):
        self._shards = shards
        keys = [(-(shard.num_bytes or 0), shard.index) for shard in shards]
        self._pending: deque[int | Shard] = deque(sorted(range(len(shards)), key=keys.__getitem__))
        self._histories: dict[int, _History] = {}
        self._next_attempt = first_attempt
        self.idle_deaths = 0
        self.given_up: dict[int, str] = {}  # shard -> why

    def __len__(self) -> int:
        return len(self._pending)

    def next(self) -> Assignment | None:
        if not self._pending:
            return None
        first = self._pending.popleft()
        shard = self._shards[first] if isinstance(first, int) else first
        history = self._histories.get(shard.index, _History())
        self._next_attempt += 1
        crashed = tuple(history.crashed.values())
        return Assignment(shard, self._next_attempt, history.alone_until, crashed)

    def again(self, assignment: Assignment) -> None:
        """The attempt ended through no fault of its shard."""
        self._pending.appendleft(assignment.shard)

    def progressed(self) -> None:
        """A row was finished somewhere: deaths so far weren't hopeless."""
        self.idle_deaths = 0

    def unreadable(self, assignment: Assignment, why: str) -> None:
        """The shard's source couldn't be read; after `MAX_READ_FAILURES` attempts the run goes on without it."""
        history = self._histories.setdefault(assignment.shard.index, _History())
        history.read_failures += 1
        if history.read_failures < MAX_READ_FAILURES:
            self._pending.append(assignment.shard)
        else:
            self.given_up[assignment.shard.index] = why

    def died(self, assignment: Assignment, rows_read: int, note: DeathNote | None) -> FailedRow | None:
        """The attempt's process ended. Returns the row that is given up because of it, if one is."""
        shard = assignment.shard
        history = self._histories.setdefault(shard.index, _History())
        history.deaths += 1
        self.idle_deaths += 1
        beyond = rows_read + ROWS_BEYOND if history.deaths == 1 else 1 << 62
        history.alone_until = max(history.alone_until, beyond)
        self._pending.appendleft(shard)
        if note is None:
            return None
        history.crashes[note.row] = history.crashes.get(note.row, 0) + 1
        if note.kind == "crashed" and history.crashes[note.row] < MAX_CRASHES:
            return None
        why = {
            "crashed": f"its process ended {MAX_CRASHES} times while this row alone was decoded and encoded",
            "timeout": "no progress within audio.row_timeout_s",
        }[note.kind]
        failed = FailedRow(shard.index, note.row, note.key, "worker", note.kind, why)
        history.crashed[note.row] = failed
        self.idle_deaths = 0
        return failed
