"""The command `mimi-jobs`: parses, calls, prints. Everything it does can be done from Python with `jobs`."""

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from jobs.yaml_text import one_line
from pipeline.errors import ConfigError, MimiJobsError

if TYPE_CHECKING:
    from rich.console import Console

    from jobs.submission import Prepared

FINISHED, UNFINISHED, REFUSED, INTERRUPTED = 0, 1, 2, 130

JobFile = Annotated[str, typer.Argument(metavar="JOB.yaml", help="The job file.")]
Run = Annotated[str, typer.Argument(metavar="OUT", help="The run: a job's output.path.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[key=value]...", help="Values that win over the file's: model.slots=4.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Key = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Show the rows with this key.")]

app = typer.Typer(
    name="mimi-jobs",
    help="Turn an audio dataset into Mimi codes: a job file goes in, parquet files come out.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"mimi-jobs {version('mimi-jobs')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback with an error (anywhere).")] = False,
) -> None:
    """What holds for every command; `main` looks for --debug itself."""
    del version, debug


@app.command()
def check(job_file: JobFile, overrides: Overrides = None) -> None:
    """Check a job and show its plan; start and write nothing."""
    from jobs.plan_text import print_plan
    from jobs.submission import check as check_job

    print_plan(check_job(job_file, overrides or ()), _console())


@app.command()
def submit(
    job_file: JobFile,
    overrides: Overrides = None,
    detach: Annotated[bool, typer.Option("--detach", help="Hand it to a Ray cluster and return.")] = False,
    address: Annotated[
        str | None, typer.Option("--address", metavar="URL", help="The cluster's dashboard: http://HOST:8265.")
    ] = None,
) -> None:
    """Check a job, then run it."""
    if detach:
        from jobs.detaching import dashboard_address, follow_lines, submit_detached

        for line in follow_lines(submit_detached(job_file, overrides or (), address=dashboard_address(address))):
            print(line)
        return
    if address is not None:
        raise ConfigError(
            [f"{COMMAND_LINE}: --address: goes with --detach; to run from here, use ray.address=HOST:PORT"]
        )
    from jobs.plan_text import summary
    from jobs.submission import check as check_job

    prepared = check_job(job_file, overrides or ())
    for line in summary(prepared):
        print(line, file=sys.stderr)
    _run_job(prepared)


@app.command()
def resume(
    out: Run,
    overrides: Overrides = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try the failed rows again.")] = False,
) -> None:
    """Carry on with a run; only what changes its speed may be overridden."""
    from jobs.submission import check_run

    prepared = check_run(out, overrides or (), retry_failed=retry_failed)
    if prepared is not None:
        _run_job(prepared)
    else:
        from jobs.status import status as read_status
        from jobs.tables import numbers_line

        result = read_status(out)
        print(f"nothing left to do: {numbers_line(result, result.hours * 3600)}", file=sys.stderr)


@app.command()
def status(out: Run, as_json: AsJson = False) -> None:
    """Show how far a run is, from its files alone."""
    from jobs.status import status as read_status

    result = read_status(out)
    if as_json:
        print(result.to_json())
    else:
        from jobs.tables import print_status

        print_status(result, _console())


@app.command()
def inspect(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A run, a folder of parquet files, or one file.")],
    as_json: AsJson = False,
    key: Key = None,
    html: Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write a report, one HTML file.")] = None,
    keys: Annotated[
        list[str] | None, typer.Option("--keys", metavar="KEY", help="A clip to hear in the report; may be repeated.")
    ] = None,
) -> None:
    """Show what is in parquet files of codes."""
    if html is not None:
        _write_report(path, html, keys or ([key] if key is not None else []))
        return
    if keys:
        raise ConfigError([f"{COMMAND_LINE}: --keys: is for a report, add --html FILE (or use --key to see one clip)"])
    if key is not None:
        _inspect_key(path, key, as_json)
        return
    from jobs.inspection import inspect as inspect_files

    result = inspect_files(path)
    if as_json:
        print(result.to_json())
    elif result.files:
        from jobs.tables import print_inspection

        print_inspection(result, _console())
    _complain(result.problems)
    if result.problems:
        raise typer.Exit(UNFINISHED)


@app.command()
def verify(
    out: Run,
    sample: Annotated[int, typer.Option(min=0, metavar="N", help="Encode N rows again from their source.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Check a run's files against its markers; with --sample, some codes against their source."""
    from jobs.verification import verify as verify_run

    result = verify_run(out, sample)
    _complain(result.problems)
    print(result.to_json() if as_json else one_line(result.verdict, 1000))
    if not result.sound:
        raise typer.Exit(UNFINISHED)


@app.command()
def decode(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A run, a folder of parquet files, or one file.")],
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="Which recording.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE.wav", help="Where the sound goes.")],
    start: Annotated[float | None, typer.Option(metavar="SECONDS", help="Begin here.")] = None,
    stop: Annotated[float | None, typer.Option(metavar="SECONDS", help="End here.")] = None,
    weights: Annotated[
        str | None, typer.Option(metavar="WEIGHTS", help="A hub id, folder, file or random:SEED; else as noted.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE.wav if it is there.")] = False,
) -> None:
    """Turn a recording's codes back to sound, in a WAV file."""
    from jobs.decoding import decode as decode_key
    from jobs.tables import RANDOM_WEIGHTS

    done = decode_key(path, key, output, weights=weights, start=start, stop=stop, overwrite=overwrite)
    _complain(list(done.notes))
    channels = f", {done.num_channels} channels" if done.num_channels > 1 else ""
    print(one_line(f"{done.output}: {done.seconds:.2f} s of {done.key}{channels}, decoded with {done.weights}", 1000))
    if done.random_weights:
        _complain([RANDOM_WEIGHTS.format(done.weights) + "; the sound is noise"])


@app.command()
def bench(
    job_file: Annotated[str | None, typer.Argument(metavar="[JOB.yaml]", help="Measure this job's own data.")] = None,
    overrides: Overrides = None,
    peers: Annotated[bool, typer.Option("--peers", help="Beside moshi, transformers and rustymimi.")] = False,
    batches: Annotated[bool, typer.Option("--batches", help="With --peers: their sorted batches of 8 too.")] = False,
    agreement: Annotated[bool, typer.Option("--agreement", help="How many codes other precisions change.")] = False,
    weights: Annotated[
        str | None, typer.Option(metavar="WEIGHTS", help="A hub id, folder, file or random:SEED (random:0).")
    ] = None,
    audio: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Recordings to encode, instead of made ones.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, metavar="N", help="In all; every CPU by default.")] = None,
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="Turns of each contender.")] = 3,
) -> None:
    """Measure the speed here, against the machine's own matrix-multiply rate and installed peers."""
    from jobs.bench_command import BenchOptions, run_bench

    options = BenchOptions(
        job_file, tuple(overrides or ()), peers, batches, agreement, weights, audio, threads, repeats
    )
    run_bench(options)


def _write_report(path: str, output: str, keys: list[str]) -> None:
    from jobs.report import write_report
    from jobs.tables import RANDOM_WEIGHTS, bytes_text

    report = write_report(path, output, keys=keys)
    _complain(report.problems)
    print(one_line(f"{output}: {bytes_text(report.num_bytes)}, {report.num_clips} clips to hear", 1000))
    if report.inspection.random_weights:
        _complain([RANDOM_WEIGHTS.format(report.inspection.weights)])
    if report.problems:
        raise typer.Exit(UNFINISHED)


def _inspect_key(path: str, key: str, as_json: bool) -> None:
    from jobs.inspection import inspect_key

    clips, problems = inspect_key(path, key)
    if as_json:
        import json

        print(json.dumps([clip.to_dict() for clip in clips], default=str, ensure_ascii=False))
    else:
        from jobs.tables import print_clip

        for clip in clips:
            print_clip(clip, _console())
    _complain(problems)
    if not clips:
        _complain([f"{path}: no row has the key {key!r}, see the column `key`"])
    if problems or not clips:
        raise typer.Exit(UNFINISHED)


def _run_job(prepared: "Prepared") -> None:
    """Run to the end, say how it ended, and leave with the status that says the same."""
    from jobs.submission import start
    from jobs.tables import RANDOM_WEIGHTS, outcome_line

    path = prepared.config.output.path
    try:
        outcome = start(prepared, console=sys.stderr)
    except MimiJobsError as error:  # it had begun, so it isn't refused but unfinished
        _complain([str(error)])
        raise typer.Exit(UNFINISHED) from None
    print(outcome_line(outcome), file=sys.stderr)
    if prepared.weights.info.is_random:
        print(RANDOM_WEIGHTS.format(prepared.config.model.weights), file=sys.stderr)
    if outcome.finished:
        return
    reason = "interrupted" if outcome.interrupted else outcome.message or "the job did not finish"
    _complain([f"{reason}; carry on with: mimi-jobs resume {path}"])
    raise typer.Exit(INTERRUPTED if outcome.interrupted else UNFINISHED)


def _console() -> "Console":
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def _complain(lines: list[str]) -> None:
    for line in lines:
        print(one_line(line), file=sys.stderr)


def main(arguments: list[str] | None = None) -> NoReturn:
    """The console script: one line for each error, a traceback only with --debug."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    code = _run([argument for argument in arguments if argument != "--debug"], debug)
    sys.exit(code)


def console() -> NoReturn:
    """What the command `mimi-jobs` runs: `main`, and out at once.

    All is closed and flushed by then. A check that was given up may still wait for the network, and threads of native
    libraries have been seen to abort the process while the interpreter winds down, with the status of a crash.
    """
    try:
        main()
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else 0 if end.code is None else 1)


def _run(arguments: list[str], debug: bool) -> int:
    usage_error: Any = typer.BadParameter.__base__  # of whichever click typer brings
    try:
        result = app(arguments or ["--help"], prog_name="mimi-jobs", standalone_mode=False)
        return result if isinstance(result, int) else FINISHED
    except usage_error as error:
        _complain([f"{COMMAND_LINE}: {error.format_message()} (see mimi-jobs --help)"])
        return REFUSED
    except (KeyboardInterrupt, typer.Abort):
        _complain(["interrupted"])
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNFINISHED
    except MimiJobsError as error:
        if debug:
            raise
        _complain(error.problems if isinstance(error, ConfigError) else [str(error)])
        return REFUSED
    except Exception as error:
        if debug:
            raise
        _complain([f"internal error: {type(error).__name__}: {error} (--debug shows where; please report it)"])
        return UNFINISHED


COMMAND_LINE = "command line"

if __name__ == "__main__":
    console()
