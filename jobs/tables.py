"""What `inspect` and `status` say to a person: rich tables and lines. Looks nothing up and decides nothing."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jobs.yaml_text import one_line

if TYPE_CHECKING:
    from jobs.inspection import ClipView, Failure, Inspection
    from jobs.status import Status
    from pipeline.driver import RunOutcome

RANDOM_WEIGHTS = "weights are RANDOM ({}): these codes mean nothing, they only show that the machinery works"
BLOCKS = " ▁▂▃▄▅▆▇█"


def duration_text(seconds: float) -> str:
    """Seconds as a person says them: 0.25 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


def bytes_text(num_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.1f} TB"


def print_inspection(result: "Inspection", console: Console) -> None:
    facts = _facts_table()
    facts.add_row("rows", f"{result.rows:,} in {result.files:,} files")
    facts.add_row("audio", f"{duration_text(result.hours * 3600)} ({result.hours:,.3f} hours)")
    facts.add_row("frames", f"{result.frames:,} of {result.num_codebooks} codebooks")
    if result.frames:
        stored = f"{result.bits_per_second:,.0f} bits a second, {result.bits_per_code:.2f} bits a code"
        facts.add_row("stored", f"{bytes_text(result.bytes)}; codes {bytes_text(result.code_bytes)}: {stored}")
    if result.lengths:
        lengths = result.lengths
        bars = [clips for _, _, clips in lengths.histogram]
        spark = "".join(BLOCKS[max(1, round(8 * n / max(bars)))] if n else " " for n in bars)
        shown = [duration_text(s) for s in (lengths.min, lengths.median, lengths.p95, lengths.max)]
        facts.add_row("lengths", "min {}, median {}, 95% {}, max {}".format(*shown) + f"  [dim]{spark}[/dim]")
    facts.add_row("sample rates", _counts_text(result.sample_rates, "Hz"))
    facts.add_row("channels", _counts_text(result.channels, ""))
    facts.add_row("constant clips", f"{result.constant_clips:,}")
    example = f", such as {one_line(result.duplicate_key_example, 60)}" if result.duplicate_key_example else ""
    facts.add_row("duplicate keys", _count_or_unknown(result.duplicate_keys) + escape(example))
    facts.add_row("duplicate codes", _count_or_unknown(result.duplicate_codes))
    if result.weights is not None:
        sha = f", sha256 {result.weights_sha256[:12]}" if result.weights_sha256 else ""
        facts.add_row("weights", escape(f"{result.weights}, {result.precision or 'precision unknown'}{sha}"))
    if result.fingerprint:
        facts.add_row("fingerprint", result.fingerprint[:12])
    console.print(facts)
    if result.codebooks:
        console.print(_codebook_table(result))
    for title, failures in (("failed", result.failures), ("skipped", result.skipped)):
        if failures:
            console.print(_failure_table(title, failures))
    if result.unfinished_shards:
        console.print(f"not finished: {result.unfinished_shards} shards are still to be done, run `mimi-jobs resume`")
    if result.random_weights:
        console.print(f"[bold yellow]{escape(RANDOM_WEIGHTS.format(result.weights))}[/bold yellow]")


def outcome_line(outcome: "RunOutcome") -> str:
    """How a run ended, in numbers."""
    took = f" in {duration_text(outcome.seconds)}" if outcome.seconds else ""
    return numbers_line(outcome, outcome.audio_seconds) + took


def numbers_line(counts: "RunOutcome | Status", audio_seconds: float) -> str:
    """Rows, frames and audio of a run."""
    skipped = f", {counts.skipped:,} skipped" if counts.skipped else ""
    rows = f"{counts.rows:,} rows: {counts.encoded:,} encoded, {counts.failed:,} failed{skipped}"
    return f"{rows}; {counts.frames:,} frames, {duration_text(audio_seconds)} of audio"


def print_clip(clip: "ClipView", console: Console) -> None:
    facts = _facts_table()
    facts.add_row("file", escape(clip.file))
    for name, value in clip.columns.items():
        facts.add_row(escape(one_line(name, 40)), escape(one_line(value, 300)))
    console.print(facts)
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("codebook", justify="right", style="dim")
    table.add_column("codes")
    for codebook, codes in enumerate(clip.codes):
        shown = " ".join(f"{code:4d}" for code in codes[:16])
        table.add_row(str(codebook), shown + (f" ... {len(codes) - 16} more" if len(codes) > 16 else ""))
    console.print(table)


def print_status(result: "Status", console: Console) -> None:
    facts = _facts_table()
    facts.add_row("state", result.state + (f", by {escape(result.holder)}" if result.holder else ""))
    running = f", {len(result.running)} at work" if result.running else ""
    failing = f", {result.shards_with_failures:,} with failed rows" if result.shards_with_failures else ""
    facts.add_row("shards", f"{result.shards_done:,} of {result.shards:,} done{running}{failing}")
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in result.failures.items())
    skipped = f", {result.skipped:,} skipped" if result.skipped else ""
    facts.add_row("rows", f"{result.rows:,}, {result.failed:,} failed{f' ({kinds})' if kinds else ''}{skipped}")
    facts.add_row("audio", f"{duration_text(result.hours * 3600)} ({result.hours:,.3f} hours)")
    if result.times_real_time:
        actors = f" by {result.actors} actors" if result.actors else ""
        facts.add_row("rate", f"{result.times_real_time:,.1f} times real time{actors}")
    if result.seconds_left is not None:
        facts.add_row("time left", duration_text(result.seconds_left))
    if result.weights:
        facts.add_row("weights", escape(result.weights))
    console.print(facts)
    if len(result.slowest) > 1:
        console.print(_slowest_table(result))
    for line in result.redo:
        console.print(escape(line), soft_wrap=True)
    if result.state == "stopped":
        console.print(f"carry on with: mimi-jobs resume {escape(result.path)}", soft_wrap=True)
    if result.random_weights:
        console.print(f"[bold yellow]{escape(RANDOM_WEIGHTS.format(result.weights))}[/bold yellow]")


def _facts_table() -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _slowest_table(result: "Status") -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("slowest shard", "took", "rows", "audio", "times real time"):
        table.add_column(name, justify="right")
    table.add_column("by", overflow="fold")
    for each in result.slowest:
        rate = f"{each.audio_seconds / each.seconds:,.1f}" if each.seconds else "?"
        took, audio = duration_text(each.seconds), duration_text(each.audio_seconds)
        table.add_row(str(each.shard), took, f"{each.rows:,}", audio, rate, escape(each.worker))
    return table


def _counts_text(counts: dict[int, int], unit: str) -> str:
    if not counts:
        return "not recorded"
    shown = [f"{value} {unit}".rstrip() + f": {count:,}" for value, count in list(counts.items())[:8]]
    return ", ".join(shown) + (f", {len(counts) - 8} more" if len(counts) > 8 else "")


def _count_or_unknown(count: int | None) -> str:
    return "too many rows to compare" if count is None else f"{count:,}"


def _codebook_table(result: "Inspection") -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("codebook", "entries used", "entropy", "most frequent", "its share"):
        table.add_column(name, justify="right")
    for use in result.codebooks:
        table.add_row(
            str(use.codebook),
            f"{use.used} of 2048",
            f"{use.entropy_bits:.2f} bits",
            str(use.most_frequent),
            f"{use.most_frequent_share:.2%}",
        )
    return table


def _failure_table(title: str, failures: "list[Failure]") -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(title, justify="right")
    table.add_column("kind")
    table.add_column("such as", overflow="fold")
    for failure in failures:
        example = f"{one_line(failure.example_key, 60)}: {one_line(failure.example_message, 200)}"
        table.add_row(f"{failure.rows:,}", escape(failure.kind), escape(example))
    return table
