"""The schedule: what is tried again, how carefully, and when it is given up."""

from collections.abc import Sequence

import pytest

from pipeline.records import Shard, SourceFile
from pipeline.schedule import MAX_READ_FAILURES, DeathNote, Schedule


def shards(n: int) -> list[Shard]:
    return [Shard(i, "train", (SourceFile(f"f{i}"),), num_bytes=10 * (i % 3)) for i in range(n)]


def drain(schedule: Schedule) -> list[int]:
    taken = []
    while (assignment := schedule.next()) is not None:
        taken.append(assignment.shard.index)
    return taken


def test_the_largest_shards_go_first_and_equals_in_order():
    assert drain(Schedule(shards(6), 0)) == [2, 5, 1, 4, 0, 3]


def test_a_planned_shard_is_made_when_it_is_handed_out():
    made = []

    class Planned(Sequence):
        def __len__(self) -> int:
            return 4

        def __iter__(self):
            return iter(shards(4))

        def __getitem__(self, place):
            made.append(place)
            return shards(4)[place]

    schedule = Schedule(Planned(), 0)
    first = schedule.next()
    assert first is not None and made == [2]
    schedule.again(first)
    assert drain(schedule) == [2, 1, 0, 3] and made == [2, 1, 0, 3]


def test_attempts_are_numbered_apart_from_those_of_earlier_drivers():
    schedule = Schedule(shards(2), first_attempt=40)
    first, second = schedule.next(), schedule.next()
    assert first and second and 40 < first.attempt < second.attempt


def test_after_a_death_unfinished_rows_go_alone():
    schedule = Schedule(shards(1), 0)
    first = schedule.next()
    assert first is not None and first.alone_until == 0
    assert schedule.died(first, rows_read=10, note=None) is None
    second = schedule.next()
    assert second is not None and second.alone_until > 10 and second.attempt > first.attempt


def test_a_row_that_dies_alone_twice_is_given_up_and_the_rest_goes_on():
    schedule = Schedule(shards(1), 0)
    note = DeathNote(7, "seven", "crashed")
    given_up = []
    for death in (None, note, note):
        assignment = schedule.next()
        assert assignment is not None
        given_up.append(schedule.died(assignment, 7, death))
    assert given_up[:2] == [None, None]
    assert given_up[2] is not None and (given_up[2].row, given_up[2].kind) == (7, "crashed")
    last = schedule.next()
    assert last is not None and [row.row for row in last.crashed] == [7]


def test_one_death_on_each_of_two_rows_gives_up_neither():
    schedule = Schedule(shards(1), 0)
    for row in (3, 4):
        assignment = schedule.next()
        assert assignment is not None
        assert schedule.died(assignment, 5, DeathNote(row, str(row), "crashed")) is None


def test_a_row_that_hung_is_given_up_at_once():
    schedule = Schedule(shards(1), 0)
    assignment = schedule.next()
    assert assignment is not None
    given_up = schedule.died(assignment, 5, DeathNote(2, "two", "timeout"))
    assert given_up is not None and given_up.kind == "timeout"


def test_a_shard_that_cannot_be_read_is_left_out_after_a_few_attempts():
    schedule = Schedule(shards(1), 0)
    for attempt in range(MAX_READ_FAILURES):
        assignment = schedule.next()
        assert assignment is not None, attempt
        schedule.unreadable(assignment, "the server says 503")
    assert schedule.next() is None
    assert schedule.given_up == {0: "the server says 503"}


def test_deaths_without_a_finished_row_add_up_and_progress_clears_them():
    schedule = Schedule(shards(3), 0)
    for expected in (1, 2):
        assignment = schedule.next()
        assert assignment is not None
        schedule.died(assignment, 0, None)
        assert schedule.idle_deaths == expected
    schedule.progressed()
    assert schedule.idle_deaths == 0


@pytest.mark.parametrize("count", [0, 1, 5])
def test_the_length_is_what_is_left_to_hand_out(count):
    assert len(Schedule(shards(count), 0)) == count
