"""The driver: shards handed out to actors, deaths survived, files published, progress shown.

It owns the run's lock; only it publishes and writes markers. What it decides about shards is in `schedule.py`, how
Ray is started and ended in `cluster.py`.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TextIO

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from pipeline.actors import SHARDS_IN_FLIGHT, ActorPlan, ActorState, RemoteWorker, read_note
from pipeline.cluster import RayPlan, connected, end_leftovers
from pipeline.errors import MimiJobsError, RunDirError, SourceError
from pipeline.marker import Marker
from pipeline.progress import ProgressDisplay, Totals
from pipeline.records import RunOutcome, ShardResult
from pipeline.run_dir import RunDir
from pipeline.schedule import MAX_IDLE_DEATHS, Assignment, Schedule
from pipeline.source import SourceReader
from pipeline.spec import AudioPolicy, ModelSpec, OutputSpec
from pipeline.tally import Tally, facts
from pipeline.worker import Progress

POLL_S = 0.5
STATE_EVERY_S = 2.0
HEARTBEAT_S = 10.0
START_TIMEOUT_S = 600.0  # for the first actor, hub download included
STOP_TIMEOUT_S = 10.0
FEWEST_ROWS_FOR_A_SHARE = 100


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run that has passed every check."""

    run: RunDir
    reader: SourceReader
    audio: AudioPolicy
    model: ModelSpec
    output: OutputSpec
    ray: RayPlan
    weights_sha256: str | None = None
    max_failed: int | float | None = None  # rows, or a share if below 1
    retry_failed: bool = False


class JobStopped(Exception):
    """The run ends here, with the cause in one line; `resume` carries on."""


@dataclass(eq=False, slots=True)
class _Member:
    """An actor and what it is at work on."""

    handle: Any
    ready_ref: Any
    created: float
    ready: bool = False
    work: dict[Any, Assignment] = field(default_factory=dict)
    state: ActorState | None = None
    state_ref: Any = None


class _Interrupt:
    """Turns SIGINT and SIGTERM into a flag; a second one ends the process at once."""

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> "_Interrupt":
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            for sign in (signal.SIGINT, signal.SIGTERM):
                self._before[sign] = signal.signal(sign, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for sign, handler in self._before.items():
            signal.signal(sign, handler)

    def _on_signal(self, number: int, frame: object) -> None:
        if self.requested:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.requested = True


def run(request: RunRequest, *, console: TextIO | None = None) -> RunOutcome:
    """Encode every shard that has no marker yet. Raises `RunDirError` where the run can't begin."""
    started = time.monotonic()
    with _Interrupt() as interrupt, request.run.locked() as lock:
        end_leftovers()
        driver = _Driver(request, lock, interrupt, ProgressDisplay(console))
        message = None
        try:
            driver.encode_pending()
        except JobStopped as stopped:
            message = str(stopped)
        finally:
            driver.close()
        if message is None and not interrupt.requested:
            message = driver.verdict()
        request.run.finish()
    finished = message is None and not interrupt.requested
    sums = dict(driver.tally.sums)
    rows = sums.pop("rows_read")
    return RunOutcome(finished, interrupt.requested, message, rows, seconds=time.monotonic() - started, **sums)


class _Driver:
    def __init__(self, request: RunRequest, lock: Any, interrupt: _Interrupt, display: ProgressDisplay):
        self._request, self._run, self._lock, self._interrupt = request, request.run, lock, interrupt
        self._display = display
        self._pending, words = self._run.pending(retry_failed=request.retry_failed)
        for word in words:
            display.note(word)
        waiting = {shard.index for shard in self._pending}
        markers = {i: marker for i, marker in self._run.markers().items() if i not in waiting}
        self.tally = Tally(self._run.shards(), markers)
        self._schedule = Schedule(self._pending, first_attempt=self._run.next_attempt())
        self._members: list[_Member] = []
        self._publishing: dict[Future[Marker], ShardResult] = {}
        self._publisher = ThreadPoolExecutor(8, thread_name_prefix="publish")

    # ------------------------------------------------------------ the loop

    def encode_pending(self) -> None:
        if not self._pending:
            return
        with self._heartbeat(), connected(self._request.ray, self._num_actors()):
            self._plan = ray.put(self._actor_plan())
            try:
                while not self._done():
                    self._employ()
                    self._take_results()
                    self._take_published()
                    self._show()
                    self._check_failures()
                    if self._interrupt.requested:
                        self._display.note("interrupted: saving what is finished (again to exit at once)")
                        return
            finally:
                self._wind_up()

    def _done(self) -> bool:
        return not (len(self._schedule) or self._publishing or any(member.work for member in self._members))

    def _num_actors(self) -> int:
        wanted = self._request.ray.actors
        return max(1, min(wanted if wanted != "auto" else 1, len(self._pending)))

    def _actor_plan(self) -> ActorPlan:
        request = self._request
        return ActorPlan(
            request.reader,
            request.audio,
            request.model,
            request.output,
            self._run.schema(),
            request.weights_sha256,
        )

    def _wanted_members(self) -> int:
        """As many actors as asked for, or as the cluster's resources hold; never more than there is work."""
        plan = self._request.ray
        work = len(self._schedule) + sum(len(member.work) for member in self._members)
        if plan.actors != "auto":
            return min(plan.actors, work)
        have = ray.cluster_resources()
        fits = int(have.get("CPU", 0) // plan.cpus_per_actor) if plan.cpus_per_actor else work
        if plan.gpus_per_actor:
            fits = min(fits, int(have.get("GPU", 0) / plan.gpus_per_actor + 1e-6))
        return max(1, min(fits, work))

    def _employ(self) -> None:
        """Keep the wanted number of actors alive, and each at work on two shards."""
        plan = self._request.ray
        for _ in range(self._wanted_members() - len(self._members)):
            handle = RemoteWorker.options(
                num_cpus=plan.cpus_per_actor,
                num_gpus=plan.gpus_per_actor,
                max_concurrency=SHARDS_IN_FLIGHT + 3,
                name=f"mimi-jobs encode worker {id(self):x}-{time.monotonic_ns():x}",
            ).remote(self._plan)
            self._members.append(_Member(handle, handle.ready.remote(), time.monotonic()))
        for depth in range(1, SHARDS_IN_FLIGHT + 1):
            for member in self._members:
                if member.ready and len(member.work) < depth and (assignment := self._schedule.next()) is not None:
                    ref = member.handle.encode.remote(assignment, self._request.retry_failed)
                    member.work[ref] = assignment

    def _take_results(self) -> None:
        owners = {ref: member for member in self._members for ref in member.work}
        owners |= {member.ready_ref: member for member in self._members if not member.ready}
        if not owners:
            time.sleep(0.01 if self._publishing else POLL_S)
            return
        done, _ = ray.wait(list(owners), num_returns=1, timeout=0.02 if self._publishing else POLL_S)
        for ref in done:
            member = owners[ref]
            if member not in self._members:
                continue  # it died, and its work has been handed back
            try:
                value = ray.get(ref)
            except RayError as error:
                self._on_error(member, ref, error)
                continue
            if ref is member.ready_ref:
                member.ready = True
                self.tally.begin()
            else:
                self._on_result(member.work.pop(ref), value)
        self._check_start()

    def _on_result(self, assignment: Assignment, result: ShardResult | None) -> None:
        if result is None:
            self._schedule.again(assignment)
            return
        self._schedule.progressed()
        shard = assignment.shard
        self._publishing[self._publisher.submit(self._run.publish, result, shard, self._lock)] = result

    def _take_published(self) -> None:
        for future in [f for f in self._publishing if f.done()]:
            result = self._publishing.pop(future)
            try:
                self.tally.commit(future.result(), result.failures)
            except RunDirError as error:
                raise JobStopped(str(error)) from None

    # ------------------------------------------------------------ what goes wrong

    def _on_error(self, member: _Member, ref: Any, error: RayError) -> None:
        cause = error.cause if isinstance(error, RayTaskError) else None
        if ref is member.ready_ref:
            self._on_failed_start(member, error)
        elif isinstance(cause, SourceError):
            self._on_unreadable(member.work.pop(ref), cause)
        elif isinstance(cause, MimiJobsError):
            raise JobStopped(str(cause))
        else:
            self._on_death(member, error)

    def _on_unreadable(self, assignment: Assignment, cause: SourceError) -> None:
        self._schedule.unreadable(assignment, str(cause))
        self._display.note(f"shard {assignment.shard.index}: {cause}")

    def _on_failed_start(self, member: _Member, error: RayError) -> None:
        self._members.remove(member)
        if isinstance(error, RayTaskError) or "creation task" in str(error):
            raise JobStopped(f"an actor can't start: {_last_line(error)}")
        self._schedule.idle_deaths += 1
        self._give_up_if_hopeless(error)

    def _on_death(self, member: _Member, error: RayError) -> None:
        self._members.remove(member)
        with contextlib.suppress(RayError):
            ray.kill(member.handle)
        done = {p.shard: p for p in member.state.shards} if member.state else {}
        if any(p.encoded + p.failed for p in done.values()):
            self._schedule.progressed()
        for assignment in member.work.values():
            index = assignment.shard.index
            note = read_note(self._run.storage, assignment)
            given_up = self._schedule.died(assignment, done[index].rows_read if index in done else 0, note)
            if given_up is not None:
                self._display.note(f"shard {index}, row {given_up.row} ({given_up.key!r}): {given_up.message}")
        shards = ", ".join(str(a.shard.index) for a in member.work.values())
        self._display.note(f"an actor ended ({_last_line(error)}); trying again: shard {shards}")
        self._give_up_if_hopeless(error)

    def _give_up_if_hopeless(self, error: RayError) -> None:
        if self._schedule.idle_deaths >= MAX_IDLE_DEATHS:
            raise JobStopped(f"{MAX_IDLE_DEATHS} actors ended before finishing a row; the last: {_last_line(error)}")

    def _check_start(self) -> None:
        """A wait for resources or for a model has a bound, and says what it waits for."""
        if any(member.ready for member in self._members) or not self._members:
            return
        plan = self._request.ray
        bound = START_TIMEOUT_S + plan.wait_for_resources_s
        if time.monotonic() - self._members[0].created > bound:
            asked = f"{plan.cpus_per_actor:g} CPUs and {plan.gpus_per_actor:g} GPUs an actor"
            have = ray.cluster_resources()
            held = f"{have.get('CPU', 0):g} CPUs and {have.get('GPU', 0):g} GPUs"
            raise JobStopped(f"no actor started within {bound:.0f} s: asked for {asked}, the cluster has {held}")

    def _check_failures(self) -> None:
        """Stop a job that is going wrong: more failed rows than `audio.max_failed`."""
        limit = self._request.max_failed
        if limit is None:
            return
        totals = self._totals()
        allowed = limit if limit >= 1 else limit * max(totals.rows, FEWEST_ROWS_FOR_A_SHARE)
        if totals.failed > allowed:
            raise JobStopped(self._too_many_failures(totals.failed))

    def _too_many_failures(self, failed: int) -> str:
        common = ", ".join(f"{kind} {count}" for kind, count in self.tally.failures.most_common(5))
        return f"{failed} rows failed, more than audio.max_failed ({self._request.max_failed:g}) allows: {common}"

    def verdict(self) -> str | None:
        """Why the run isn't finished although nothing stopped it, in one line; None: it is finished."""
        given_up = self._schedule.given_up
        if given_up:
            first = next(iter(given_up.items()))
            return f"{len(given_up)} shards can't be read, first shard {first[0]}: {first[1]}"
        failed, rows = self.tally.sums["failed"], self.tally.sums["rows_read"]
        limit = self._request.max_failed
        if limit is not None and failed > (limit if limit >= 1 else limit * rows):
            return self._too_many_failures(failed)
        return None

    # ------------------------------------------------------------ the end

    def _wind_up(self) -> None:
        """Have actors save what is finished, publish what is staged, end the actors."""
        for member in self._members:
            with contextlib.suppress(RayError):
                member.handle.stop.remote()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        refs = {ref: assignment for member in self._members for ref, assignment in member.work.items()}
        while refs and (left := deadline - time.monotonic()) > 0:
            done, _ = ray.wait(list(refs), num_returns=1, timeout=left)
            for ref in done:
                assignment = refs.pop(ref)
                with contextlib.suppress(RayError):
                    result = ray.get(ref)
                    if result is not None:
                        self._on_result(assignment, result)
        for member in self._members:
            with contextlib.suppress(RayError):
                ray.kill(member.handle)
        for future in list(self._publishing):
            with contextlib.suppress(RunDirError):
                future.result(timeout=30)
                self._take_published()

    def close(self) -> None:
        self._publisher.shutdown(wait=True)
        self._display.close(self._totals() if self.tally.begun else None)

    @contextlib.contextmanager
    def _heartbeat(self) -> Iterator[None]:
        """Keep the lock alive and the progress file fresh while the run goes on."""
        end = threading.Event()

        def beat() -> None:
            while not end.wait(HEARTBEAT_S):
                with contextlib.suppress(RunDirError):
                    self._lock.heartbeat()
                    self._run.write_progress(facts(self._totals(), self._in_flight()))

        thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()
            with contextlib.suppress(RunDirError):
                self._run.write_progress(facts(self._totals(), self._in_flight()))

    # ------------------------------------------------------------ totals

    def _show(self) -> None:
        now = time.monotonic()
        for member in self._members:
            if member.ready and member.state_ref is None and now - member.created > STATE_EVERY_S:
                member.state_ref, member.created = member.handle.state.remote(), now
        waiting = {m.state_ref: m for m in self._members if m.state_ref is not None}
        if waiting:
            done, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
            for ref in done:
                with contextlib.suppress(RayActorError, RayTaskError):
                    waiting[ref].state = ray.get(ref)
                waiting[ref].state_ref = None
        if self.tally.begun:
            self._display.update(self._totals())

    def _in_flight(self) -> list[Progress]:
        return [progress for member in list(self._members) if member.state for progress in member.state.shards]

    def _totals(self) -> Totals:
        members = list(self._members)
        nodes = len({member.state.node for member in members if member.state})
        return self.tally.totals(self._in_flight(), sum(member.ready for member in members), nodes)


def _last_line(error: BaseException) -> str:
    """The cause in one line, out of a Ray error that carries a traceback."""
    cause = error.cause if isinstance(error, RayTaskError) else None
    if cause is not None and not isinstance(cause, RayError):
        return f"{type(cause).__name__}: {cause}".splitlines()[0]
    lines = [text.strip() for text in str(error).splitlines() if text.strip()]
    detail = [text for text in lines if "exit detail:" in text]
    if detail:
        return detail[-1].partition("exit detail:")[2].strip().split(". Some common causes")[0]
    return lines[-1] if lines else type(error).__name__
