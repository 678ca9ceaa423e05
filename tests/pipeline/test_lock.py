"""The lock: one holder at a time, however the last one ended."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from pipeline.errors import RunDirError
from pipeline.lock import FIRST, HEARTBEAT_S, STALE_S, Holder, Lock, is_alive_here, read_holder
from pipeline.storage import Storage


class Clock:
    """A clock that moves when someone sleeps; `while_asleep` is what others do meanwhile."""

    def __init__(self, now: float = 1000.0):
        self.now = now
        self.while_asleep = lambda: None

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.while_asleep()


@pytest.fixture
def storage(tmp_path):
    return Storage.at(tmp_path / "out")


def dead_process() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def elsewhere(now: float) -> Holder:
    return replace(Holder.here(now), host="other-host", machine="other", pid=7)


def test_a_held_lock_is_refused_and_the_holder_named(storage):
    lock = Lock.acquire(storage)
    with pytest.raises(RunDirError) as caught:
        Lock.acquire(storage)
    assert f"process {os.getpid()} on {lock.holder.host} since 20" in str(caught.value)
    lock.check()


def test_a_released_lock_can_be_taken(storage):
    Lock.acquire(storage).release()
    assert read_holder(storage) is None
    assert Lock.acquire(storage).notes == []


def test_a_dead_process_of_this_machine_is_followed_with_a_word(storage):
    first = Lock.acquire(storage, me=replace(Holder.here(1.0), pid=dead_process()))
    second = Lock.acquire(storage)
    assert "that process has ended" in second.notes[0]
    with pytest.raises(RunDirError, match="taken over by process"):
        first.check()
    first.release()  # the loser takes nothing away
    second.check()
    with pytest.raises(RunDirError, match="is being worked on"):
        Lock.acquire(storage)


def test_a_process_number_that_came_again_is_not_the_holder(storage):
    Lock.acquire(storage, me=replace(Holder.here(1.0), started="12"))
    assert "has ended" in Lock.acquire(storage).notes[0]


def test_a_holder_elsewhere_is_believed_until_it_misses_its_heartbeats(storage):
    clock = Clock()
    Lock.acquire(storage, me=elsewhere(clock.now))
    clock.now += STALE_S - 1
    with pytest.raises(RunDirError, match="process 7 on other-host"):
        Lock.acquire(storage, clock=clock, sleep=clock.sleep)
    clock.now += 2
    assert "no sign of life" in Lock.acquire(storage, clock=clock, sleep=clock.sleep).notes[0]


def test_a_holder_elsewhere_whose_clock_is_wrong_is_seen_to_live(storage):
    theirs = Clock()
    lock = Lock.acquire(storage, clock=theirs, me=elsewhere(theirs.now))
    ours = Clock(theirs.now + 10 * STALE_S)

    def beat() -> None:
        theirs.now += HEARTBEAT_S
        lock.heartbeat()

    ours.while_asleep = beat
    with pytest.raises(RunDirError, match="is being worked on"):
        Lock.acquire(storage, clock=ours, sleep=ours.sleep)


def test_a_heartbeat_is_written_every_so_often_and_noticed_when_the_lock_was_lost(storage):
    clock = Clock()
    lock = Lock.acquire(storage, clock=clock, me=elsewhere(clock.now))
    clock.now += HEARTBEAT_S - 1
    lock.heartbeat()
    holder = read_holder(storage)
    assert holder is not None and holder.heartbeat == 1000.0
    clock.now += 1
    lock.heartbeat()
    holder = read_holder(storage)
    assert holder is not None and holder.heartbeat == clock.now
    clock.now += STALE_S + HEARTBEAT_S
    Lock.acquire(storage, clock=clock, sleep=clock.sleep)
    with pytest.raises(RunDirError, match="taken over"):
        lock.heartbeat()


def test_of_many_that_find_the_holder_dead_one_takes_over(storage):
    Lock.acquire(storage, me=replace(Holder.here(1.0), pid=dead_process()))

    def attempt(_: int) -> bool:
        try:
            Lock.acquire(storage)
        except RunDirError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(16))) == 1


def test_of_many_that_come_at_once_one_gets_the_lock(storage):
    code = (
        "import sys, time\n"
        "from pipeline.lock import Lock\n"
        "from pipeline.storage import Storage\n"
        "try: Lock.acquire(Storage.at(sys.argv[1])); print('mine', flush=True); sys.stdin.read()\n"
        "except Exception as error: print(type(error).__name__, flush=True)\n"
    )
    command = [sys.executable, "-c", code, storage.root]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = [child.stdout.readline().strip() for child in children if child.stdout]
    for child in children:
        child.communicate()
    assert sorted(said) == ["RunDirError"] * 3 + ["mine"]


def test_a_chain_of_dead_holders_is_gone_after_a_release(storage):
    for _ in range(3):
        Lock.acquire(storage, me=replace(Holder.here(1.0), pid=dead_process()))
    Lock.acquire(storage).release()
    assert [entry.name for entry in storage.list("_state") if entry.name.startswith("lock")] == []


def test_a_lock_that_cannot_be_understood_is_refused_with_a_remedy(storage):
    storage.write_bytes_atomic(FIRST, b'{"host": 3}')
    with pytest.raises(RunDirError, match="remove it if no driver works on this run"):
        Lock.acquire(storage)


def test_a_lock_that_was_removed_is_noticed(storage):
    lock = Lock.acquire(storage)
    storage.remove(FIRST)
    with pytest.raises(RunDirError, match="was removed"):
        lock.check()


def test_whether_a_process_lives_is_known_only_on_its_own_machine():
    assert is_alive_here(Holder.here(1.0)) is True
    assert is_alive_here(replace(Holder.here(1.0), pid=dead_process())) is False
    assert is_alive_here(elsewhere(1.0)) is None
