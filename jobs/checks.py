"""The checks of a job before it starts, each on its own: dataset, weights, resources, output. They write nothing.

Each notes what it finds wrong in the `Job` and goes on; `submission.py` runs them all and decides.
"""

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.config import SECTIONS, AudioConfig, InputConfig, ModelConfig, OutputConfig, RayConfig
from jobs.job_file import Job
from jobs.manifest import PASSWORD_IN_URL
from jobs.resources import Resources, resolve_resources, this_machine
from pipeline.errors import AudioError, RunDirError, SourceError
from pipeline.spec import InputSpec

if TYPE_CHECKING:
    from mimi.checkpoint import CheckpointInfo
    from pipeline.records import FailedRow, Row, Shard
    from pipeline.run_dir import RunDir
    from pipeline.source import Source

PEEK_ROWS = 8
PEEK_SECONDS = 60  # of audio decoded of each row peeked at
FEWEST_TO_REFUSE = 3  # rows that can't be decoded, and no other, say that the column is wrong; one may be bad luck
HEARTBEAT_STALE_S = 120.0
DOTTED_KEYS = re.compile(r"^([a-z_]+)\.([a-z_]+): (.*)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PeekedRow:
    """What a first row decodes to. `problem` is why it doesn't."""

    key: str
    sample_rate: int | None = None
    num_channels: int | None = None
    seconds: float | None = None  # None where it is longer than `PEEK_SECONDS`
    num_bytes: int | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class CheckedInput:
    """A dataset that can be read: its plan, and a look at its first rows."""

    spec: InputSpec
    source: "Source"
    shards: "tuple[Shard, ...]"
    peeked: tuple[PeekedRow, ...]


@dataclass(frozen=True, slots=True)
class CheckedWeights:
    """A checkpoint that fits the job."""

    info: "CheckpointInfo"
    sha256: str


def input_spec(config: InputConfig) -> InputSpec:
    values = config.model_dump()
    if config.keep_columns != "all":
        values["keep_columns"] = tuple(config.keep_columns)
    return InputSpec(**values)


def note(job: Job, default_key: str, message: str) -> None:
    """Note an error of the pipeline; the key that it names itself, `input.split: ...`, wins over the default."""
    match = DOTTED_KEYS.match(message)
    if match and match[1] in SECTIONS and match[2] in SECTIONS[match[1]].model_fields:
        job.add(f"{match[1]}.{match[2]}", match[3])
    else:
        job.add(default_key, message)


# ---- dataset


def check_input(job: Job) -> CheckedInput | None:
    """Find the dataset, plan it, decode its first rows."""
    config, audio = job.section(InputConfig), job.section(AudioConfig)
    if config is None:
        return None
    for name in ("path", "data_files", "data_dir"):
        if PASSWORD_IN_URL.search(str(getattr(config, name))):
            job.add(f"input.{name}", "a URL has a password in it, give credentials by the environment instead")
            return None
    from pipeline.source import open_source

    spec = input_spec(config)
    try:
        source = open_source(spec)
        shards = tuple(source.plan())
        peeked = tuple(_decode(row, audio) for row in source.peek(PEEK_ROWS)) if audio else ()
    except SourceError as error:
        note(job, "input.path", str(error))
        return None
    unreadable = [row for row in peeked if row.problem]
    if peeked and len(unreadable) == len(peeked) >= FEWEST_TO_REFUSE:
        first = f"{unreadable[0].key}: {unreadable[0].problem}"
        message = (
            f"none of the first {len(peeked)} rows can be decoded ({first}), choose the column that holds the audio"
        )
        job.add("input.audio_column", message)
    return CheckedInput(spec, source, shards, peeked)


def _decode(row: "Row | FailedRow", audio: AudioConfig) -> PeekedRow:
    from pipeline.audio import open_audio
    from pipeline.records import SAMPLE_RATE, FailedRow

    if isinstance(row, FailedRow):
        return PeekedRow(row.key, problem=f"{row.kind}: {row.message}")
    if row.audio is None:
        return PeekedRow(row.key, problem="unreadable: the audio is null")
    num_bytes = len(row.audio.data) if row.audio.data is not None else None
    channel = "mix" if audio.channels == "mix" else 0
    try:
        with open_audio(row.audio, channel=channel, allow_truncated=audio.allow_truncated) as stream:
            samples, whole = 0, True
            for block in stream:
                samples += len(block)
                if samples > PEEK_SECONDS * SAMPLE_RATE:
                    whole = False
                    break
            seconds = samples / SAMPLE_RATE if whole else None
            return PeekedRow(row.key, stream.sample_rate, stream.num_channels, seconds, num_bytes)
    except AudioError as error:
        return PeekedRow(row.key, num_bytes=num_bytes, problem=f"{error.kind}: {error}")


# ---- weights


def check_weights(job: Job) -> CheckedWeights | None:
    """Find the checkpoint; its config must have kv_repeat 1 and as many codebooks as the job asks for."""
    config = job.section(ModelConfig)
    if config is None or "model.weights" in job.faulty:
        return None
    from mimi.checkpoint import inspect_checkpoint, weights_sha256
    from mimi.errors import CheckpointError

    try:
        info = inspect_checkpoint(config.weights, config.revision)
        if "model.num_codebooks" not in job.faulty and config.num_codebooks > info.num_codebooks:
            have = f"the checkpoint has {info.num_codebooks}"
            job.add("model.num_codebooks", f"is {config.num_codebooks}, {have}, ask for {info.num_codebooks} or fewer")
        return CheckedWeights(info, weights_sha256(info))
    except CheckpointError as error:
        key, _, rest = str(error).partition(": ")
        if key in ModelConfig.model_fields:
            origin = "model.weights" if key == "kv_repeat" else f"model.{key}"
            note(job, origin, str(error) if key == "kv_repeat" else rest)
        else:
            note(job, "model.weights", str(error))
        return None


# ---- resources


def check_resources(job: Job) -> Resources | None:
    """Settle what runs where, on this machine or on the cluster that the job is for."""
    model, ray = job.section(ModelConfig), job.section(RayConfig)
    if model is None or ray is None:
        return None
    nodes = None
    if ray.address != "local":
        from pipeline.survey import survey

        try:
            nodes = survey(ray.address).nodes
        except RunDirError as error:
            note(job, "ray.address", str(error))
            return None
    resources, problems = resolve_resources(model, ray, this_machine(), nodes)
    for key, message in problems:
        job.add(key, message)
    return resources


# ---- output


def check_output(job: Job) -> "RunDir | None":
    """The run that is already there, if one is. Notes where nothing can be written, or something else lies there."""
    config = job.section(OutputConfig)
    if config is None or "output.path" in job.faulty:
        return None
    from pipeline.run_dir import RunDir, is_run
    from pipeline.storage import Storage

    if "://" not in config.path and not _check_local_folder(job, config.path):
        return None
    try:
        if is_run(config.path, config.storage_options):
            run = RunDir.open(config.path, config.storage_options)
            check_lock(run)
            return run
        storage = Storage.at(config.path, config.storage_options)
        strangers = [entry.name for entry in storage.list() if entry.name != "_state"]
        if strangers:
            listed = ", ".join(strangers[:3]) + (", ..." if len(strangers) > 3 else "")
            job.add("output.path", f"{config.path} holds something else ({listed}), choose another output.path")
    except RunDirError as error:
        note(job, "output.path", str(error))
    return None


def check_lock(run: "RunDir") -> None:
    """RunDirError where a living driver works on the run."""
    from pipeline.lock import is_alive_here, read_holder

    holder = read_holder(run.storage)
    if holder is None:
        return
    alive = is_alive_here(holder)
    if alive or (alive is None and time.time() - holder.heartbeat < HEARTBEAT_STALE_S):
        raise RunDirError(f"{run.storage.root}: is being worked on by {holder.words()}, wait for it or stop it first")


def _check_local_folder(job: Job, path: str) -> bool:
    """Whether a folder is there that can be written to, or can be made."""
    folder = Path(os.path.abspath(os.path.expanduser(path)))
    try:
        while not os.path.lexists(folder):
            folder = folder.parent
        folder.stat()
    except OSError as error:  # a name that is too long, a link that leads nowhere
        job.add("output.path", f"{path}: {(error.strerror or str(error)).lower()}, choose another output.path")
        return False
    if not folder.is_dir():
        job.add("output.path", f"{folder} is a file, choose another output.path")
    elif not os.access(folder, os.W_OK | os.X_OK):
        job.add("output.path", f"{folder} can't be written to by this user, choose another output.path")
    return "output.path" not in job.faulty


def checked_revision(checked: CheckedInput, spec_revision: str | None) -> str | None:
    """The commit that the dataset's revision stands for, where it has one."""
    return checked.source.info.revision or spec_revision


def audio_estimate(checked: CheckedInput) -> float | None:
    """Seconds of audio in the dataset, roughly, from its first rows; None where there's nothing to go by."""
    known: list[Any] = [row for row in checked.peeked if row.seconds is not None]
    if not known:
        return None
    seconds = sum(row.seconds for row in known)
    rows = [shard.num_rows for shard in checked.shards]
    if all(count is not None for count in rows):
        return sum(count for count in rows if count is not None) * seconds / len(known)
    sizes = [shard.num_bytes for shard in checked.shards]
    with_bytes = [row for row in known if row.num_bytes]
    if with_bytes and all(size is not None for size in sizes):
        rate = sum(row.seconds for row in with_bytes) / sum(row.num_bytes for row in with_bytes)
        return sum(size for size in sizes if size is not None) * rate
    return None
