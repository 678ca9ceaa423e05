"""Which benchmark `mimi-jobs bench` was asked for. Refuses what doesn't go together; measures nothing itself."""

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.errors import ConfigError

DEFAULT_WEIGHTS = "random:0"  # as fast as trained ones, and everywhere at hand


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The command's arguments."""

    job_file: str | None = None
    overrides: tuple[str, ...] = ()
    peers: bool = False
    batches: bool = False
    agreement: bool = False
    weights: str | None = None
    audio: str | None = None
    threads: int | None = None
    repeats: int = 3


def run_bench(options: BenchOptions, say: Callable[[str], None] = print) -> None:
    """Measure and print. Raises ConfigError, and other MimiJobsErrors of the job's data."""
    _check(options)
    if options.agreement:
        _agreement(options, say)
    elif options.job_file is not None:
        from jobs.bench_job import bench_job

        bench_job(options.job_file, options.overrides, say=say)
    else:
        from jobs.bench import bench
        from jobs.bench_clips import clips_of_folder, made_clips

        bench(
            made_clips() if options.audio is None else clips_of_folder(options.audio),
            options.weights or DEFAULT_WEIGHTS,
            peers=options.peers,
            batches=options.batches,
            threads=options.threads,
            repeats=options.repeats,
            say=say,
        )


def _agreement(options: BenchOptions, say: Callable[[str], None]) -> None:
    from jobs.bench_agreement import agreement
    from jobs.bench_clips import clips_of_folder, made_clips

    if options.job_file is None:
        clips = made_clips() if options.audio is None else clips_of_folder(options.audio)
        agreement(clips, options.weights or DEFAULT_WEIGHTS, threads=options.threads, say=say)
        return
    from jobs.bench_job import checked_job, take_sample

    config, _, checked = checked_job(options.job_file, options.overrides)
    agreement(
        take_sample(checked, config.audio).clips,
        config.model.weights,
        revision=config.model.revision,
        num_codebooks=config.model.num_codebooks,
        threads=options.threads,
        say=say,
    )


def _check(options: BenchOptions) -> None:
    problems = []
    if options.job_file is not None:
        if options.peers or options.batches:
            problems.append("--peers: is measured on made recordings or those of --audio, leave out the job file")
        if options.audio is not None:
            problems.append("--audio: the job file names the recordings, leave one of them out")
        if options.weights is not None:
            problems.append("--weights: the job file names them, say model.weights=... instead")
    if options.batches and not options.peers:
        problems.append("--batches: is of peers, add --peers")
    if options.agreement and options.peers:
        problems.append("--agreement: compares precisions of ours alone, leave out --peers")
    if problems:
        raise ConfigError([f"command line: {problem}" for problem in problems])
