"""The driver: shards handed out to actors, deaths survived, files published, progress shown.

It owns the run's lock; only it publishes and writes markers. What it decides about shards is in `schedule.py`, the
actors are in `crew.py`, how Ray is started and ended in `cluster.py`.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TextIO

from ray.exceptions import RayError, RayTaskError

from pipeline.actors import ActorPlan, RemoteWorker, read_note
from pipeline.cluster import RayPlan, connected, end_leftovers
from pipeline.crew import Crew, Finished, Member
from pipeline.errors import MimiJobsError, RunDirError, SourceError
from pipeline.marker import Marker
from pipeline.nodes import held_text
from pipeline.progress import ProgressDisplay, Totals
from pipeline.records import RunOutcome, ShardResult
from pipeline.run_dir import RunDir
from pipeline.schedule import MAX_IDLE_DEATHS, Assignment, Schedule
from pipeline.source import SourceReader
from pipeline.spec import AudioPolicy, ModelSpec, OutputSpec
from pipeline.tally import Tally, facts
from pipeline.worker import Progress

POLL_S = 0.5
LOOK_EVERY_S = 0.5  # at totals, which cost time where there are many shards in flight
PUBLISHERS = 32  # of object storage each waits for ten answers a shard
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


def run(request: RunRequest, *, console: TextIO | None = None, worker: Any = RemoteWorker) -> RunOutcome:
    """Encode every shard that has no marker yet. Raises `RunDirError` where the run can't begin.

    worker: the Ray actor class that encodes.
    """
    started = time.monotonic()
    with _Interrupt() as interrupt, request.run.locked() as lock:
        end_leftovers()
        driver = _Driver(request, lock, interrupt, ProgressDisplay(console), worker)
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
    def __init__(
        self,
        request: RunRequest,
        lock: Any,
        interrupt: _Interrupt,
        display: ProgressDisplay,
        worker: Any = RemoteWorker,
    ):
        self._request, self._run, self._lock, self._interrupt = request, request.run, lock, interrupt
        self._display, self._worker = display, worker
        self._pending, words = self._run.pending(retry_failed=request.retry_failed)
        for word in words:
            display.note(word)
        markers = self._run.markers()
        if len(self._pending):
            waiting = {shard.index for shard in self._pending}
            markers = {index: marker for index, marker in markers.items() if index not in waiting}
        self.tally = Tally(self._run.shards(), markers)
        self._schedule = Schedule(self._pending, first_attempt=self._run.next_attempt())
        self._crew: Crew | None = None
        self._publishing: set[Future[Marker]] = set()
        self._publisher = ThreadPoolExecutor(PUBLISHERS, thread_name_prefix="publish")
        self._looked = float("-inf")

    # ------------------------------------------------------------ the loop

    def encode_pending(self) -> None:
        if not self._pending:
            return
        request = self._request
        with self._heartbeat(), connected(request.ray, self._num_actors()):
            label = f"mimi-jobs {self._run.storage.root.rstrip('/').rpartition('/')[2]}"
            self._crew = crew = Crew(
                request.ray, self._actor_plan(), self._worker, label=label, retry_failed=request.retry_failed
            )
            try:
                while not self._done(crew):
                    crew.employ(self._schedule)
                    self._take_results(crew)
                    self._take_published()
                    self._look(crew)
                    if self._interrupt.requested:
                        self._display.note("interrupted: saving what is finished (again to exit at once)")
                        return
            finally:
                self._wind_up(crew)

    def _done(self, crew: Crew) -> bool:
        return not (len(self._schedule) or self._publishing or crew.num_shards)

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

    def _take_results(self, crew: Crew) -> None:
        for call in crew.finished(0.02 if self._publishing else POLL_S):
            if call.error is not None:
                self._on_error(crew, call, call.error)
            elif call.assignment is None:
                self.tally.begin()
            else:
                self._on_result(call.member, call.assignment, call.value)
        self._check_start(crew)

    def _on_result(self, member: Member, assignment: Assignment, result: ShardResult | None) -> None:
        if result is None:
            self._schedule.again(assignment)
            return
        self._schedule.progressed()
        future = self._publisher.submit(self._run.publish, result, assignment.shard, self._lock, worker=member.place)
        self._publishing.add(future)

    def _take_published(self) -> None:
        for future in [f for f in self._publishing if f.done()]:
            self._publishing.remove(future)
            try:
                self.tally.commit(future.result())
            except RunDirError as error:
                raise JobStopped(str(error)) from None

    def _look(self, crew: Crew) -> None:
        """Now and then: how the actors are, how far the run is, and whether it goes wrong."""
        if time.monotonic() - self._looked < LOOK_EVERY_S:
            return
        self._looked = time.monotonic()
        crew.ask()
        totals = self._totals()
        if self.tally.begun:
            self._display.update(totals)
        self._check_failures(totals)

    # ------------------------------------------------------------ what goes wrong

    def _on_error(self, crew: Crew, call: Finished, error: RayError) -> None:
        cause = error.cause if isinstance(error, RayTaskError) else None
        if call.assignment is None:
            self._on_failed_start(crew, call.member, error)
        elif isinstance(cause, SourceError):
            self._on_unreadable(call.assignment, cause)
        elif isinstance(cause, MimiJobsError):
            raise JobStopped(str(cause))
        else:
            self._on_death(crew, call.member, call.assignment, error)

    def _on_unreadable(self, assignment: Assignment, cause: SourceError) -> None:
        self._schedule.unreadable(assignment, str(cause))
        self._display.note(f"shard {assignment.shard.index}: {cause}")

    def _on_failed_start(self, crew: Crew, member: Member, error: RayError) -> None:
        crew.let_go(member)
        if isinstance(error, RayTaskError) or "creation task" in str(error):
            raise JobStopped(f"an actor can't start: {_last_line(error)}")
        if not _node_is_lost(error):
            self._schedule.idle_deaths += 1
        self._give_up_if_hopeless(error)

    def _on_death(self, crew: Crew, member: Member, assignment: Assignment, error: RayError) -> None:
        """Hand back what the actor was at work on: with care, unless it went with its whole machine."""
        lost = [assignment, *crew.let_go(member)]
        done = {p.shard: p for p in member.state.shards} if member.state else {}
        if any(p.encoded + p.failed for p in done.values()):
            self._schedule.progressed()
        shards = ", ".join(str(each.shard.index) for each in lost)
        self._display.note(f"{member.place} ended ({_last_line(error)}); trying again: shard {shards}")
        for each in lost:
            if _node_is_lost(error):
                self._schedule.again(each)
            elif isinstance(error, RayTaskError):  # the process didn't end: no row of it is to blame
                self._schedule.again(each)
                self._schedule.idle_deaths += 1
            else:
                self._retry_with_care(each, done)
        self._give_up_if_hopeless(error)

    def _retry_with_care(self, assignment: Assignment, done: dict[int, Progress]) -> None:
        index = assignment.shard.index
        note = read_note(self._run.storage, assignment)
        given_up = self._schedule.died(assignment, done[index].rows_read if index in done else 0, note)
        if given_up is not None:
            self._display.note(f"shard {index}, row {given_up.row} ({given_up.key!r}): {given_up.message}")

    def _give_up_if_hopeless(self, error: RayError) -> None:
        if self._schedule.idle_deaths >= MAX_IDLE_DEATHS:
            raise JobStopped(f"{MAX_IDLE_DEATHS} actors ended before finishing a row; the last: {_last_line(error)}")

    def _check_start(self, crew: Crew) -> None:
        """A wait for resources or for a model has a bound, and says what it waits for."""
        if crew.num_ready or not crew.members:
            return
        plan = self._request.ray
        bound = START_TIMEOUT_S + plan.wait_for_resources_s
        if time.monotonic() - crew.members[0].hired > bound:
            asked = f"{plan.cpus_per_actor:g} CPUs and {plan.gpus_per_actor:g} GPUs an actor"
            has = held_text(crew.nodes())
            raise JobStopped(f"no actor started within {bound:.0f} s: asked for {asked}, the cluster has {has}")

    def _check_failures(self, totals: Totals) -> None:
        """Stop a job that is going wrong: more failed rows than `audio.max_failed`."""
        limit = self._request.max_failed
        if limit is None:
            return
        allowed = limit if limit >= 1 else limit * max(totals.rows, FEWEST_ROWS_FOR_A_SHARE)
        if totals.failed > allowed:
            raise JobStopped(self._too_many_failures(totals.failed))

    def _too_many_failures(self, failed: int) -> str:
        common = ", ".join(f"{kind} {count}" for kind, count in self.tally.commonest_failures(self._in_flight()))
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

    def _wind_up(self, crew: Crew) -> None:
        """Have actors save what is finished, publish what is staged, end the actors."""
        crew.stop()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while crew.num_shards and (left := deadline - time.monotonic()) > 0:
            for call in crew.finished(left):
                if call.error is None and call.assignment is not None and call.value is not None:
                    self._on_result(call.member, call.assignment, call.value)
        for member in list(crew.members):
            crew.let_go(member)
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

    def _in_flight(self) -> list[Progress]:
        members = list(self._crew.members) if self._crew is not None else []
        return [progress for member in members if member.state for progress in member.state.shards]

    def _totals(self) -> Totals:
        crew = self._crew
        actors, nodes = (crew.num_ready, crew.num_nodes) if crew is not None else (0, 0)
        return self.tally.totals(self._in_flight(), actors, nodes)


def _node_is_lost(error: RayError) -> bool:
    """Whether an actor ended because its machine left, which says nothing about the rows that it had."""
    return "node has died" in str(error) or "node was terminated" in str(error)


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
