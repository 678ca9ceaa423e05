"""What `check` says of a job that may start: dataset, first rows, model, actors, an estimate. Decides nothing."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jobs.checks import PEEK_SECONDS, audio_estimate
from jobs.tables import RANDOM_WEIGHTS, bytes_text, duration_text
from jobs.yaml_text import one_line
from pipeline.records import FRAME_SAMPLES, SAMPLE_RATE

if TYPE_CHECKING:
    from jobs.checks import PeekedRow
    from jobs.submission import Prepared

MAX_COLUMNS = 40
FRAME_SECONDS = FRAME_SAMPLES / SAMPLE_RATE


def summary(prepared: "Prepared") -> list[str]:
    """The plan in a line or two, before a run starts."""
    config = prepared.config
    shards = len(prepared.dataset.shards)
    line = f"{config.input.path}: {_count(shards, 'shard')} to {config.output.path}, {_actors(prepared)}"
    lines = [line + (", carrying on with the run that is there" if prepared.existing is not None else "")]
    if prepared.weights.info.is_random:
        lines.append(RANDOM_WEIGHTS.format(config.model.weights))
    return lines


def print_plan(prepared: "Prepared", console: Console) -> None:
    config, source = prepared.config, prepared.dataset.source
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("dataset", escape(_dataset_text(prepared)))
    facts.add_row("plan", _plan_text(prepared))
    facts.add_row("audio column", escape(f"{source.info.audio_column}: {source.info.how_audio_column_was_chosen}"))
    facts.add_row("kept columns", escape(_columns_text(prepared)))
    facts.add_row("first rows", escape("\n".join(_row_text(row) for row in prepared.dataset.peeked) or "none"))
    facts.add_row("weights", escape(_weights_text(prepared)))
    facts.add_row("actors", f"{_actors(prepared)}: {_engine(prepared)}")
    facts.add_row("output", escape(_output_text(prepared)))
    facts.add_row("estimate", _estimate(prepared))
    console.print(facts)
    for line in source.info.notes:
        console.print(f"note: {escape(line)}", soft_wrap=True)
    if prepared.weights.info.is_random:
        words = escape(RANDOM_WEIGHTS.format(config.model.weights))
        console.print(f"[bold yellow]{words}[/bold yellow]", soft_wrap=True)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _dataset_text(prepared: "Prepared") -> str:
    info = prepared.dataset.source.info
    size = f", {bytes_text(info.num_bytes)}" if info.num_bytes is not None else ""
    splits = ", ".join(f"{split} ({_count(files, 'file')})" for split, files in info.splits.items())
    lines = [f"{info.path}, read as {info.builder}", f"{splits}{size}"]
    if info.revision:
        lines.append(f"commit {info.revision}")
    if info.other_splits:
        lines.append(f"not read: split {', '.join(info.other_splits)}")
    return "\n".join(lines)


def _plan_text(prepared: "Prepared") -> str:
    shards = prepared.dataset.shards
    rows = [shard.num_rows for shard in shards]
    text = _count(len(shards), "shard")
    if shards and all(count is not None for count in rows):
        text += f", {_count(sum(count for count in rows if count is not None), 'row')}"
    if not shards:
        text += ": the dataset is empty, the run will finish at once"
    return text


def _columns_text(prepared: "Prepared") -> str:
    info = prepared.dataset.source.info
    lines = []
    for name, out in list(info.kept_columns.items())[:MAX_COLUMNS]:
        renamed = f" as {out}" if out != name else ""
        lines.append(f"{one_line(name, 60)}{renamed}: {one_line(info.columns.get(name, ''), 100)}")
    if len(info.kept_columns) > MAX_COLUMNS:
        lines.append(f"and {len(info.kept_columns) - MAX_COLUMNS} more")
    return "\n".join([*lines, f"key: {info.key_rule}"])


def _row_text(row: "PeekedRow") -> str:
    key = one_line(row.key, 60)
    if row.problem is not None:
        return f"{key}: {one_line(row.problem, 200)}"
    channels = {1: "mono", 2: "stereo"}.get(row.num_channels or 0, f"{row.num_channels} channels")
    seconds = f"over {PEEK_SECONDS} s" if row.seconds is None else duration_text(row.seconds)
    return f"{key}: {row.sample_rate} Hz, {channels}, {seconds}"


def _weights_text(prepared: "Prepared") -> str:
    model, info = prepared.config.model, prepared.weights.info
    parts = [model.weights, f"{info.layout} layout", f"{model.num_codebooks} of {info.num_codebooks} codebooks"]
    parts += [model.precision, *([f"revision {info.revision[:12]}"] if info.revision else [])]
    return ", ".join([*parts, f"sha256 {prepared.weights.sha256[:12]}"])


def _actors(prepared: "Prepared") -> str:
    resources, count = prepared.resources, prepared.num_actors
    each = [f"{resources.cpus_per_actor:g} CPU" + ("" if resources.cpus_per_actor == 1 else "s")]
    if resources.gpus_per_actor:
        each.append(f"{resources.gpus_per_actor:g} GPU" + ("" if resources.gpus_per_actor == 1 else "s"))
    number = "as many actors as fit" if count is None else _count(count, "actor")
    return f"{number} with {' and '.join(each)} each"


def _engine(prepared: "Prepared") -> str:
    resources = prepared.resources
    chunk = f"{resources.chunk_frames * FRAME_SECONDS:g} s a chunk"
    decoding = f", {resources.decode_threads} of them decode" if resources.decode_threads > 1 else ""
    threads = _count(resources.threads, "thread") + decoding
    return f"{resources.device}, {_count(resources.slots, 'slot')}, {chunk}, {threads}"


def _output_text(prepared: "Prepared") -> str:
    path = prepared.config.output.path
    return f"{path} (the same job's run is there: submit carries on with it)" if prepared.existing is not None else path


def _estimate(prepared: "Prepared") -> str:
    seconds = audio_estimate(prepared.dataset)
    if seconds is None:
        return "no telling how much audio there is"
    frames = seconds / FRAME_SECONDS
    codes_bytes = frames * prepared.config.model.num_codebooks * 11 / 8
    text = f"about {duration_text(seconds)} of audio, {bytes_text(codes_bytes)} of codes"
    if prepared.num_actors is None:
        return text
    rate = prepared.resources.times_real_time(prepared.num_actors)
    return f"{text}, {duration_text(seconds / rate)} of encoding if it goes at {rate:,.0f} times real time"
