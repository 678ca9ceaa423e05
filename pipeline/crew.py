"""The actors of a run: hired, each kept at two shards, asked how they are, let go.

What their results and deaths mean for the run is `driver.py`'s; which shard goes next is `schedule.py`'s.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError

from pipeline.actors import SHARDS_IN_FLIGHT, ActorPlan, ActorState
from pipeline.cluster import RayPlan
from pipeline.nodes import Node, actors_that_fit, nodes_of
from pipeline.schedule import Assignment, Schedule

NODES_EVERY_S = 2.0
STATE_EVERY_S = 2.0
STATES_A_SECOND = 50  # a thousand actors are asked every 20 s each


@dataclass(eq=False, slots=True)
class Member:
    """An actor and what it is at work on."""

    name: str
    handle: Any
    ready_ref: Any
    hired: float
    asked: float
    ready: bool = False
    work: dict[Any, Assignment] = field(default_factory=dict)
    state: ActorState | None = None
    state_ref: Any = None

    @property
    def place(self) -> str:
        """Where it is, for markers: which actor on which machine."""
        return f"{self.name} on {self.state.node}" if self.state else self.name


@dataclass(frozen=True, slots=True)
class Finished:
    """A call to an actor that has ended: of an attempt, or (None) of its start. Either `value` or `error` counts."""

    member: Member
    assignment: Assignment | None
    value: Any = None
    error: RayError | None = None


class Crew:
    """Actors of one kind. Used by one thread, but for `members`, of which others may take a copy."""

    def __init__(self, plan: RayPlan, actor_plan: ActorPlan, worker: Any, *, label: str, retry_failed: bool):
        self.members: list[Member] = []
        self._plan, self._worker, self._label, self._retry_failed = plan, worker, label, retry_failed
        self._actor_plan = ray.put(actor_plan)
        self._calls: dict[Any, Member] = {}  # what is waited for
        self._hired = 0
        self._nodes: tuple[Node, ...] = ()
        self._nodes_seen = float("-inf")

    @property
    def num_ready(self) -> int:
        return sum(member.ready for member in list(self.members))

    @property
    def num_nodes(self) -> int:
        return len({member.state.node for member in list(self.members) if member.state})

    @property
    def num_shards(self) -> int:
        return sum(len(member.work) for member in self.members)

    def nodes(self) -> tuple[Node, ...]:
        """The cluster's living nodes, as of a moment ago: some may have joined, some left."""
        if time.monotonic() - self._nodes_seen > NODES_EVERY_S:
            self._nodes, self._nodes_seen = nodes_of(ray.nodes()), time.monotonic()
        return self._nodes

    def _wanted(self, shards_left: int) -> int:
        """As many actors as asked for, or as the nodes hold; never more than there is work."""
        work = shards_left + self.num_shards
        if self._plan.actors != "auto":
            return min(self._plan.actors, work)
        fits = actors_that_fit(self.nodes(), self._plan.cpus_per_actor, self._plan.gpus_per_actor)
        return min(max(1, fits), work)

    def employ(self, schedule: Schedule) -> None:
        """Keep the wanted number of actors alive, and each at work on two shards; the least busy get theirs first."""
        for _ in range(self._wanted(len(schedule)) - len(self.members)):
            self._hire()
        for depth in range(1, SHARDS_IN_FLIGHT + 1):
            for member in self.members:
                if member.ready and len(member.work) < depth and (assignment := schedule.next()) is not None:
                    self._give(member, assignment)

    def _hire(self) -> None:
        self._hired += 1
        name = f"{self._label} actor {self._hired}"
        options = {"num_cpus": self._plan.cpus_per_actor, "num_gpus": self._plan.gpus_per_actor, "name": name}
        handle = self._worker.options(max_concurrency=SHARDS_IN_FLIGHT + 3, **options).remote(self._actor_plan)
        now = time.monotonic()
        member = Member(name, handle, handle.ready.remote(), now, now)
        self.members.append(member)
        self._calls[member.ready_ref] = member

    def _give(self, member: Member, assignment: Assignment) -> None:
        # A name for each call would be a metric for each: Ray keeps those for good, 15 kB a shard in the driver alone.
        ref = member.handle.encode.remote(assignment, self._retry_failed)
        member.work[ref] = assignment
        self._calls[ref] = member

    def finished(self, timeout_s: float) -> Iterator[Finished]:
        """The calls that have ended, waiting so long for the first. Those of a member let go meanwhile are left out."""
        calls = list(self._calls)
        if not calls:
            time.sleep(timeout_s)
            return
        done, _ = ray.wait(calls, num_returns=1, timeout=timeout_s)
        if done:
            done, _ = ray.wait(calls, num_returns=len(calls), timeout=0)
        for ref in done:
            member = self._calls.pop(ref, None)
            if member is None:
                continue
            assignment = member.work.pop(ref, None)
            try:
                value = ray.get(ref)
            except RayError as error:
                yield Finished(member, assignment, error=error)
                continue
            member.ready = True
            yield Finished(member, assignment, value)

    def let_go(self, member: Member) -> list[Assignment]:
        """End an actor. Returns what it was at work on."""
        self.members.remove(member)
        for ref in (member.ready_ref, *member.work):
            self._calls.pop(ref, None)
        with contextlib.suppress(RayError):
            ray.kill(member.handle)
        return list(member.work.values())

    def ask(self) -> None:
        """Ask actors now and then how they are, and take what they have answered."""
        every_s, now = max(STATE_EVERY_S, len(self.members) / STATES_A_SECOND), time.monotonic()
        for member in self.members:
            if member.ready and member.state_ref is None and now - member.asked > every_s:
                member.state_ref, member.asked = member.handle.state.remote(), now
        waiting = {member.state_ref: member for member in self.members if member.state_ref is not None}
        if not waiting:
            return
        done, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
        for ref in done:
            with contextlib.suppress(RayError):
                waiting[ref].state = ray.get(ref)
            waiting[ref].state_ref = None

    def stop(self) -> None:
        """Ask all to save what is finished and end their shards."""
        for member in self.members:
            with contextlib.suppress(RayError):
                member.handle.stop.remote()
