"""`mimi-jobs bench JOB.yaml`: what a job's own data and this machine give, stage by stage, and what to set.

Reads the job's first rows; writes to a temporary folder only, and starts no Ray. What the figures say of slots,
threads and actors is worded in `bench_advice.py`.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, cycle
from typing import TYPE_CHECKING

import numpy as np

from jobs.bench import Contender, Race, load, machine_lines, race
from jobs.bench_advice import Rates, advice, report
from jobs.bench_clips import Clips, first_samples
from jobs.bench_engine import Layout, our_encoder
from jobs.resources import Resources, this_machine
from pipeline.errors import AudioError, ConfigError, SourceError
from pipeline.records import SAMPLE_RATE, EncodedRow, FailedRow, Row

if TYPE_CHECKING:
    from jobs.checks import CheckedInput
    from jobs.config import AudioConfig, JobConfig

MAX_ROWS = 256
MAX_SECONDS = 120.0  # of audio decoded, in all
PATIENCE_S = 20.0  # for reading and decoding
ENCODE_SECONDS = 20.0  # of audio encoded with each setting, a slot of a GPU
ENCODE_CLIP_SECONDS = 5.0  # of each row: enough rows to fill slots and engines
WRITE_SECONDS = 3600.0  # of codes written: those at hand, over and over, since a shard has thousands of rows


@dataclass(frozen=True, slots=True)
class Sample:
    """The job's first rows: undecoded, and as sound. The times are of one thread."""

    rows: list[Row]
    clips: Clips
    read_s: float
    decode_s: float


def bench_job(job_file: str, overrides: Sequence[str] = (), *, say: Callable[[str], None] = print) -> Rates:
    """Measure and print; the last lines are advice. Raises ConfigError where the job can't be read or would fail."""
    config, resources, checked = checked_job(job_file, overrides)
    machine = this_machine()
    sample = take_sample(checked, config.audio)
    for line in (*machine_lines(machine.cpus), f"{job_file}: {sample.clips.what}", *sample.clips.skipped):
        say(line)
    tried = candidates(resources, machine.cpus)
    result = encode_race(config, tried, resources.device, sample.clips.samples)
    chosen = tried[0]
    rates = Rates(
        read=sample.clips.seconds / max(sample.read_s, 1e-6),
        decode=sample.clips.seconds / max(sample.decode_s, 1e-6),
        encode=result.contenders[0].rates[0],
        write=write_rate(checked, sample, result.contenders[0].codes, config.model.num_codebooks),
        encode_cores=chosen.engines * chosen.threads if resources.device == "cpu" else 0,
    )
    measured = dict(zip(tried, result.contenders, strict=True))
    for line in (*report(rates, measured, machine.cpus), *advice(rates, measured, machine)):
        say(line)
    return rates


def checked_job(job_file: str, overrides: Sequence[str]) -> "tuple[JobConfig, Resources, CheckedInput]":
    """The job, checked as far as a benchmark needs it: its output isn't looked at. Raises ConfigError."""
    from jobs.checks import check_input, check_resources, check_weights
    from jobs.job_file import read_job

    job = read_job(job_file, overrides)
    resources, checked, weights = check_resources(job), check_input(job), check_weights(job)
    if job.problems or checked is None or resources is None or weights is None:
        raise ConfigError(job.problems)
    return job.require(), resources, checked


# ------------------------------------------------------------ stages


def take_sample(checked: "CheckedInput", audio: "AudioConfig") -> Sample:
    """The first rows that decode, each up to `MAX_SECONDS`. Raises ConfigError where none does."""
    rows, clips, skipped = [], [], []
    read_s = decode_s = seconds = 0.0
    count, started = 0, time.perf_counter()
    reader = checked.source.reader
    for item, took in _timed(chain.from_iterable(reader.rows(shard) for shard in checked.shards)):
        begun = time.perf_counter()
        clip = _decoded(item, audio)
        if isinstance(clip, str):
            skipped.append(f"{item.key}: {clip}")
        elif isinstance(item, Row):
            read_s, decode_s = read_s + took, decode_s + time.perf_counter() - begun
            rows.append(item)
            clips.append(clip)
            seconds += len(clip) / SAMPLE_RATE
        count += 1
        if count >= MAX_ROWS or seconds >= MAX_SECONDS or time.perf_counter() - started > PATIENCE_S:
            break
    if not clips:
        why = skipped[0] if skipped else "it has no rows"
        raise ConfigError([f"input.path: none of the first {count} rows can be decoded ({why}); see mimi-jobs check"])
    more = [f"and {len(skipped) - 3} more rows that can't be decoded"] if len(skipped) > 3 else []
    what = f"the first {len(clips)} rows, {seconds:.0f} s of audio"
    return Sample(rows, Clips(what, clips, skipped[:3] + more), read_s, decode_s)


def _timed(items: "Iterator[Row | FailedRow]") -> Iterator[tuple[Row | FailedRow, float]]:
    begun = time.perf_counter()
    for item in items:
        yield item, time.perf_counter() - begun
        begun = time.perf_counter()


def _decoded(item: Row | FailedRow, audio: "AudioConfig") -> np.ndarray | str:
    """float32 [n], or why not."""
    from pipeline.audio import open_audio

    if isinstance(item, FailedRow):
        return item.message
    if item.audio is None:
        return "the audio is null"
    channel = "mix" if audio.channels == "mix" else 0
    try:
        with open_audio(item.audio, channel=channel, allow_truncated=audio.allow_truncated) as stream:
            return first_samples(stream, round(MAX_SECONDS * SAMPLE_RATE))
    except (AudioError, SourceError) as error:
        return str(error)


def candidates(resources: Resources, cpus: int) -> list[Layout]:
    """What the job would run with, first; then what may be faster."""
    engines = resources.actors if resources.device == "cpu" and resources.actors != "auto" else 1
    chosen = Layout(engines, resources.threads, resources.slots, resources.chunk_frames)
    if resources.device != "cpu":
        others = [replace(chosen, slots=slots) for slots in (16, 64, 256)]
    else:
        others = [replace(chosen, engines=cpus, threads=1), replace(chosen, engines=1, threads=cpus)]
        others += [replace(chosen, chunk_frames=frames) for frames in (13, 25, 50)]
        others += [replace(chosen, slots=4)]
    return list(dict.fromkeys([chosen, *others]))


def encode_race(config: "JobConfig", tried: Sequence[Layout], device: str, clips: Sequence[np.ndarray]) -> Race:
    """Each setting encodes as much of the rows as fills its slots for a while; codes are of the first setting."""
    import torch

    threads = max(layout.engines * layout.threads for layout in tried)
    torch.set_num_threads(threads)
    model = config.model
    mimi = load(model.weights, model.revision, model.precision, model.num_codebooks, device)
    most_slots = max(layout.slots for layout in tried) if device != "cpu" else 1
    chosen, seconds = [], 0.0
    for clip in cycle(clips):
        chosen.append(clip[: round(ENCODE_CLIP_SECONDS * SAMPLE_RATE)])
        seconds += len(chosen[-1]) / SAMPLE_RATE
        enough = seconds >= ENCODE_SECONDS * most_slots
        if enough and len(chosen) >= 2 * max(layout.engines for layout in tried):
            break
    done = []
    for layout in tried:  # one at a time: on a GPU each holds memory
        with our_encoder(mimi, layout) as encode:
            contender = Contender(layout.words, encode, ours=True)
            race([contender], chosen, repeats=1, threads=threads)
            done.append(contender)
    return Race(done, [], threads)


def write_rate(checked: "CheckedInput", sample: Sample, codes: Sequence[np.ndarray], num_codebooks: int) -> float:
    """Times real time of filing rows: parts, Parquet and checksum, on this machine's temporary folder."""
    from pipeline.records import Shard
    from pipeline.schema import output_schema
    from pipeline.storage import Storage
    from pipeline.writer import ShardWriter

    schema = output_schema(checked.source.kept_schema, metadata={"num_codebooks": num_codebooks, "num_shards": 1})
    with tempfile.TemporaryDirectory(prefix="mimi-bench-") as folder:
        shard = Shard(0, "train", ())
        writer = ShardWriter(Storage.at(folder), shard, schema, attempt=1, checkpoint_seconds=60)
        seconds, number, started = 0.0, 0, time.perf_counter()
        for row, made in cycle(zip(sample.rows, codes, strict=False)):
            duration = made.shape[1] / 12.5
            writer.add([EncodedRow(replace(row, shard=0, row=number), None, made, duration, SAMPLE_RATE, 1)])
            seconds, number = seconds + duration, number + 1
            if seconds >= WRITE_SECONDS:
                break
        writer.finish(number)
        return seconds / (time.perf_counter() - started)
