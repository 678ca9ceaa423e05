"""The lock of a run: one driver at a time, on a file system or an object store, whoever dies holding it.

Each holder has a record, made exclusively: the first `_state/lock`, whoever takes over from the holder with token T
`_state/lock-T`. So of several that find a holder dead only one becomes the next, with no other means than an exclusive
create; the chain's last record is the lock. What the lock protects is left to `run_dir.py`.
"""

import json
import os
import re
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path

from pipeline.errors import RunDirError
from pipeline.storage import Storage

FIRST = "_state/lock"
HEARTBEAT_S = 15.0
STALE_S = 120.0  # without a heartbeat, seen from another machine
WATCH_S = 20.0  # how long a lock that looks stale is watched before it is believed: clocks differ
SETTLE_S = 0.5  # after an exclusive create on a store that may not know exclusive creates
MAX_CHAIN = 1000
TOKEN = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock. Times are seconds since 1970 by the holder's clock."""

    host: str
    machine: str  # boot id and pid namespace: process numbers mean the same only where both agree
    pid: int
    started: str  # when the process started, in the kernel's own measure: a pid may come again
    acquired: float
    heartbeat: float
    token: str

    @classmethod
    def here(cls, now: float) -> "Holder":
        pid = os.getpid()
        return cls(socket.gethostname(), _machine(), pid, _process_start(pid), now, now, secrets.token_hex(8))

    def words(self) -> str:
        since = datetime.fromtimestamp(self.acquired).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
        return f"process {self.pid} on {self.host} since {since}"


class Lock:
    """A held lock. `notes` says, for the user, from whom it was taken over."""

    def __init__(self, storage: Storage, name: str, holder: Holder, clock: Callable[[], float], notes: list[str]):
        self._storage, self._name, self._clock = storage, name, clock
        self.holder, self.notes = holder, notes

    @classmethod
    def acquire(
        cls,
        storage: Storage,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        me: Holder | None = None,
    ) -> "Lock":
        """Take the lock of the run, or take it over from a dead holder. RunDirError, naming the holder, if held."""
        me = me or Holder.here(clock())
        notes: list[str] = []
        for _ in range(MAX_CHAIN):
            last = _last(storage)
            if last is None:
                name = FIRST
            else:
                name, holder = last
                why = _dead(storage, name, holder, me, clock, sleep)
                if why is None:
                    raise RunDirError(
                        f"{storage.root}: is being worked on by {holder.words()}; wait for it, or stop it first"
                    )
                notes.append(f"{storage.root}: took over from {holder.words()}: {why}")
                name = _after(holder.token)
            if storage.create_exclusive(name, _to_json(me)):
                lock = cls(storage, name, me, clock, notes)
                if not storage.atomic_create:
                    sleep(SETTLE_S)
                lock.check()
                return lock
            notes.clear()  # another was faster: look again at who holds it
        raise RunDirError(f"{storage.root}: its lock changes hands without end; stop the other drivers first")

    def heartbeat(self) -> None:
        """Show that the holder lives. Cheap to call often: writes every 15 s. RunDirError if the lock was lost."""
        now = self._clock()
        if now - self.holder.heartbeat < HEARTBEAT_S:
            return
        self.check()
        self.holder = replace(self.holder, heartbeat=now)
        self._storage.write_bytes_atomic(self._name, _to_json(self.holder), durable=False)

    def check(self) -> None:
        """RunDirError unless this process still holds the lock."""
        last = _last(self._storage)
        if last is None:
            raise RunDirError(f"{self._storage.root}: the lock was removed; run `mimi-jobs resume`")
        if last[1].token != self.holder.token:
            raise RunDirError(f"{self._storage.root}: was taken over by {last[1].words()}; this process stops")

    def release(self) -> None:
        """Give the lock up; nothing happens if it was lost."""
        last = _last(self._storage)
        if last is None or last[1].token != self.holder.token:
            return
        names = [f"_state/{entry.name}" for entry in self._storage.list("_state") if entry.name.startswith("lock-")]
        self._storage.remove(FIRST)  # with it the chain is gone: what is left of it leads nowhere
        for name in names:
            self._storage.remove(name)


def read_holder(storage: Storage) -> Holder | None:
    """Who holds the lock of a run, dead or alive; None if nobody does."""
    last = _last(storage)
    return last[1] if last else None


def is_alive_here(holder: Holder) -> bool | None:
    """Whether the holder's process runs; None where this machine can't tell."""
    if holder.host != socket.gethostname() or holder.machine != _machine():
        return None
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    return _process_start(holder.pid) == holder.started


def _last(storage: Storage) -> tuple[str, Holder] | None:
    """The record that counts: the end of the chain."""
    name, last = FIRST, None
    for _ in range(MAX_CHAIN):
        try:
            holder = _from_json(storage.read_bytes(name), storage.join(name))
        except FileNotFoundError:
            return last
        last = name, holder
        name = _after(holder.token)
    raise RunDirError(f"{storage.join(FIRST)}: leads in a circle; remove it if no driver works on this run")


def _after(token: str) -> str:
    return f"{FIRST}-{token}"


def _dead(
    storage: Storage,
    name: str,
    holder: Holder,
    me: Holder,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> str | None:
    """Why the holder is taken for dead; None if it isn't."""
    if (holder.host, holder.machine) == (me.host, me.machine):
        return None if is_alive_here(holder) else "that process has ended"
    if abs(clock() - holder.heartbeat) < STALE_S:
        return None
    sleep(WATCH_S)
    try:
        still = _from_json(storage.read_bytes(name), storage.join(name))
    except FileNotFoundError:
        return "it gave the lock up"
    if still != holder:
        return None
    return f"no sign of life for {max(0.0, clock() - holder.heartbeat):.0f} s"


def _to_json(holder: Holder) -> bytes:
    return json.dumps(asdict(holder), sort_keys=True).encode()


def _from_json(data: bytes, where: str) -> Holder:
    try:
        holder = Holder(**json.loads(data))
        if not TOKEN.fullmatch(holder.token):
            raise ValueError("no token")
        return holder
    except (ValueError, TypeError) as error:
        raise RunDirError(f"{where}: can't be understood; remove it if no driver works on this run") from error


def _machine() -> str:
    parts = []
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        try:
            parts.append(os.readlink(path) if "/ns/" in path else Path(path).read_text().strip())
        except OSError:  # not Linux
            parts.append("")
    return " ".join(parts)


def _process_start(pid: int) -> str:
    """The start time of a process in clock ticks since boot; empty where it can't be known, or for a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return ""
    return "" if fields[0] in "ZX" else fields[19]
