"""From a job file to a run: every check before anything starts, all problems together; then manifest and driver.

The checks themselves are in `checks.py`. Ray and torch aren't imported before a job has passed.
"""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from jobs.checks import (
    CheckedInput,
    CheckedWeights,
    check_input,
    check_lock,
    check_output,
    check_resources,
    check_weights,
    checked_revision,
)
from jobs.config import SECTIONS, THROUGHPUT_KEYS, AudioConfig, JobConfig
from jobs.job_file import COMMAND_LINE, Job, build_job, override_keys, read_job
from jobs.manifest import make_manifest, missing_secrets
from jobs.resources import Resources
from jobs.shared_files import check_shared_files
from pipeline.errors import ConfigError
from pipeline.spec import AudioPolicy, ModelSpec, OutputSpec

if TYPE_CHECKING:
    from pipeline.records import RunOutcome
    from pipeline.run_dir import RunDir

MAX_LINES = 10  # of one kind
PATIENCE_S = 3.0  # for checks that ask the network, once the job file itself is known to be wrong

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job that passed every check: all that a run needs, nothing written yet."""

    config: JobConfig
    dataset: CheckedInput
    weights: CheckedWeights
    resources: Resources
    facts: dict[str, Any] = field(repr=False)  # what determines the rows
    fingerprint: str
    existing: "RunDir | None"  # the same job's run, where one is there already
    retry_failed: bool = False  # of a run that is resumed: its failed rows too

    @property
    def num_actors(self) -> int | None:
        """Actors that will work; None where the cluster decides."""
        wanted = self.resources.actors
        return None if wanted == "auto" else max(1, min(wanted, len(self.dataset.shards)))


def check(job_file: "str | os.PathLike[str] | JobConfig", overrides: Sequence[str] = ()) -> Prepared:
    """Check all that can be known before starting; writes nothing. Raises `ConfigError` with a line a problem."""
    return prepare(_job_of(job_file, overrides))


def submit(
    job_file: "str | os.PathLike[str] | JobConfig", overrides: Sequence[str] = (), *, console: TextIO | None = None
) -> "RunOutcome":
    """Check a job, then run it to its end. Raises `ConfigError` before anything is written or started."""
    return start(check(job_file, overrides), console=console)


def resume(
    path: "str | os.PathLike[str]",
    overrides: Sequence[str] = (),
    *,
    retry_failed: bool = False,
    console: TextIO | None = None,
) -> "RunOutcome":
    """Carry on with the run at `path`, or try its failed rows again. Raises `ConfigError` or `RunDirError`."""
    path = os.fspath(path)
    prepared = check_run(path, overrides, retry_failed=retry_failed)
    return nothing_left(path, overrides) if prepared is None else start(prepared, console=console)


def check_run(path: str, overrides: Sequence[str] = (), *, retry_failed: bool = False) -> Prepared | None:
    """Check that the run at `path` can carry on; None where nothing is left to do. Raises as `resume` does."""
    job, run = _job_of_run(path, overrides)
    pending = run.pending(retry_failed=retry_failed)[0]
    if not len(pending):
        return None
    check_lock(run)
    return replace(prepare(job, resuming=True), retry_failed=retry_failed)


def start(prepared: Prepared, *, console: TextIO | None = None) -> "RunOutcome":
    """Make the run directory (or take the one of the same job that is there) and encode.

    Raises `RunDirError` where the run can't begin, or its directory fails on the way.
    """
    run = create_run(prepared) if prepared.existing is None else prepared.existing
    if not len(run.pending(retry_failed=prepared.retry_failed)[0]) and len(run.plan()):
        return _finished(run)
    return _drive(prepared, run, console)


def nothing_left(path: str, overrides: Sequence[str] = ()) -> "RunOutcome":
    """The outcome of the finished run at `path`."""
    return _finished(_job_of_run(path, overrides)[1])


def prepare(job: Job, *, resuming: bool = False) -> Prepared:
    """Run every check of a job that was read; raises `ConfigError` with all problems."""
    wrong = bool(job.problems)
    resources = check_resources(job)
    existing = check_output(job) if not wrong else None
    checks = [_Check(job, "input", check_input), _Check(job, "model", check_weights)]
    if wrong:
        checks.append(_Check(job, "output", check_output))
    for one in checks:
        one.run(PATIENCE_S if wrong else None)
    dataset, weights = checks[0].result, checks[1].result
    if job.problems or dataset is None or weights is None or resources is None:
        raise ConfigError(job.problems)
    from pipeline.run_dir import difference, fingerprint

    config = job.require()
    facts = _facts(config, dataset, weights)
    if existing is not None:
        existing.check_manifest()
    if existing is not None and (lines := difference(existing.manifest.get("facts", {}), facts)):
        remedy = (
            "undo the change, or submit a new job" if resuming else "choose another output.path, or undo the change"
        )
        raise ConfigError([f"{config.output.path}: this run's {line}; {remedy}" for line in lines])
    if existing is not None and (changes := _changed_files(existing)):
        raise ConfigError(
            [f"{config.output.path}: {change}; put it back as it was, or submit a new job" for change in changes]
        )
    check_shared_files(job, dataset, weights)
    if job.problems:
        raise ConfigError(job.problems)
    return Prepared(config, dataset, weights, resources, facts, fingerprint(facts), existing)


def _changed_files(run: "RunDir") -> list[str]:
    """What became of the files that are still to be read."""
    from pipeline.source import changed_files

    lines = changed_files(run.pending()[0])
    return (
        lines if len(lines) <= MAX_LINES else [*lines[:MAX_LINES], f"and {len(lines) - MAX_LINES} more files changed"]
    )


# ---- reading the job


def _job_of(job_file: "str | os.PathLike[str] | JobConfig", overrides: Sequence[str]) -> Job:
    if isinstance(job_file, JobConfig):
        return build_job(Job(source="job"), job_file.written(), overrides)
    return read_job(os.fspath(job_file), overrides)


def _job_of_run(path: str, overrides: Sequence[str]) -> "tuple[Job, RunDir]":
    """The job that a run's manifest holds, with what may be overridden. Raises `ConfigError`, `RunDirError`."""
    from pipeline.run_dir import RunDir

    job = Job(source=f"{path.rstrip('/')}/job.json")
    for key in dict.fromkeys(override_keys(overrides)):
        section, _, name = key.partition(".")
        known = section in SECTIONS and name in SECTIONS[section].model_fields
        if known and key not in THROUGHPUT_KEYS:
            why = "can't be changed when resuming, since the rows would differ"
            job.problems.append(f"{COMMAND_LINE}: {key}: {why}; leave it out, or submit a new job")
    asked = build_job(Job(source=COMMAND_LINE), {}, overrides)
    options = asked.written["output"].get("storage_options")
    run = RunDir.open(path, options if isinstance(options, dict) else None)
    run.check_manifest()
    values = {name: dict(given) for name, given in run.manifest.get("job", {}).items() if isinstance(given, dict)}
    values.setdefault("output", {})["path"] = path
    for key, commit in (run.manifest.get("pinned") or {}).items():
        section, _, name = key.partition(".")
        if commit is not None:
            values.setdefault(section, {})[name] = commit
    build_job(job, values, overrides)
    for name in missing_secrets(run.manifest, job.written):
        job.problems.append(f"{COMMAND_LINE}: {name}: was given literally and isn't kept, give it again: {name}=VALUE")
    if job.problems:
        raise ConfigError(job.problems)
    return job, run


class _Check:
    """One check, which may be left behind when there's enough to say already."""

    def __init__(self, job: Job, section: str, function: Callable[[Job], Any]):
        self._job, self._section, self._function = job, section, function
        self.result: Any = None
        self._error: BaseException | None = None

    def run(self, patience_s: float | None) -> None:
        if patience_s is None:
            self.result = self._function(self._job)
            return
        # It gets a view of the job of its own: what it finds after it was given up must not be half told.
        own = Job(self._job.source, self._job.sections, [], set(self._job.faulty), self._job.origins)
        thread = threading.Thread(target=self._work, args=(own,), name=f"check {self._section}", daemon=True)
        thread.start()
        thread.join(patience_s)
        if thread.is_alive():
            why = f"isn't known after {patience_s:g} s, mend the rest and check again"
            self._job.problems.append(f"{self._job.source}: {self._section}: whether it can be used {why}")
        elif self._error is not None:
            raise self._error
        else:
            self._job.problems += own.problems
            self._job.faulty |= own.faulty

    def _work(self, job: Job) -> None:
        try:
            self.result = self._function(job)
        except BaseException as error:  # noqa: BLE001 - raised again where the check was asked for
            self._error = error


# ---- the run


def audio_policy(config: AudioConfig) -> AudioPolicy:
    values = config.model_dump()
    del values["max_failed"]
    return AudioPolicy(**values)


def model_spec(prepared: Prepared) -> ModelSpec:
    info, resources, config = prepared.weights.info, prepared.resources, prepared.config.model
    return ModelSpec(
        weights=info.path or config.weights,
        revision=None if info.path else info.revision,
        num_codebooks=config.num_codebooks,
        precision=config.precision,
        device=resources.device,
        slots=resources.slots,
        chunk_frames=resources.chunk_frames,
        threads=resources.threads,
        decode_threads=resources.decode_threads,
    )


def _facts(config: JobConfig, dataset: CheckedInput, weights: CheckedWeights) -> dict[str, Any]:
    """What changes the rows, by the names that a user knows: nothing of speed is in it."""
    audio = config.audio
    return {
        "input": dataset.source.fingerprint_facts(),
        "audio": {
            "channels": audio.channels,
            "allow_truncated": audio.allow_truncated,
            "min_seconds": audio.min_seconds,
            "max_seconds": audio.max_seconds,
        },
        "model": {
            "weights_sha256": weights.sha256,
            "num_codebooks": config.model.num_codebooks,
            "precision": config.model.precision,
        },
    }


def create_run(prepared: Prepared) -> "RunDir":
    """The run directory of a checked job: manifest, plan and schema. Raises `RunDirError`."""
    from pipeline.run_dir import RunDir
    from pipeline.schema import output_schema

    config, info, resources = prepared.config, prepared.weights.info, prepared.resources
    weights = {
        "name": config.model.weights,
        "sha256": prepared.weights.sha256,
        "revision": info.revision,
        "random": info.is_random,
    }
    in_files = {
        "fingerprint": prepared.fingerprint,
        "weights": weights["name"],
        "weights_sha256": weights["sha256"],
        "random_weights": weights["random"],
        "num_codebooks": config.model.num_codebooks,
        "precision": config.model.precision,
    }
    manifest = make_manifest(
        config.written(),
        facts=prepared.facts,
        fingerprint=prepared.fingerprint,
        weights=weights,
        pinned={
            "input.revision": checked_revision(prepared.dataset, config.input.revision),
            "model.revision": info.revision,
        },
        resolved={"device": resources.device, "slots": resources.slots, "chunk_frames": resources.chunk_frames},
    )
    return RunDir.create(
        config.output.path,
        manifest=manifest,
        shards=prepared.dataset.shards,
        schema=output_schema(prepared.dataset.source.kept_schema, metadata=in_files),
        storage_options=config.output.storage_options,
    )


def _drive(prepared: Prepared, run: "RunDir", console: TextIO | None) -> "RunOutcome":
    from pipeline.cluster import RayPlan
    from pipeline.driver import RunRequest
    from pipeline.driver import run as drive

    config, resources = prepared.config, prepared.resources
    request = RunRequest(
        run=run,
        reader=prepared.dataset.source.reader,
        audio=audio_policy(config.audio),
        model=model_spec(prepared),
        output=OutputSpec(run.storage.root, config.output.checkpoint_seconds, config.output.storage_options),
        ray=RayPlan(
            address=config.ray.address,
            actors=resources.actors,
            cpus_per_actor=resources.cpus_per_actor,
            gpus_per_actor=resources.gpus_per_actor,
            wait_for_resources_s=config.ray.wait_for_resources_s,
        ),
        weights_sha256=prepared.weights.sha256,
        max_failed=config.audio.max_failed,
        retry_failed=prepared.retry_failed,
    )
    return drive(request, console=console)


def _finished(run: "RunDir") -> "RunOutcome":
    """The outcome of a run that has nothing left to do."""
    from pipeline.records import RunOutcome

    markers = run.markers().values()
    names = ("rows", "encoded", "failed", "skipped", "frames", "audio_seconds")
    sums = {name: sum(getattr(m, "rows_read" if name == "rows" else name) for m in markers) for name in names}
    return RunOutcome(finished=True, interrupted=False, message=None, seconds=0.0, **sums)
