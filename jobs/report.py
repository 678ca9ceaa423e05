"""The report of a run: one HTML file that works offline. Gathers what is shown and fills the page in `templates/`.

Charts are drawn in `charts.py`, sounds and pictures in `report_clips.py`. All text is escaped by jinja2; the page's
policy lets nothing run or load but its own script and style.
"""

import base64
import contextlib
import hashlib
import os
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import yaml
from markupsafe import Markup

from jobs import charts
from jobs.inspection import Inspection, inspect
from jobs.locations import CodeFiles, find_code_files
from jobs.report_clips import ClipToHear, choose, prepare
from jobs.tables import bytes_text, duration_text
from jobs.yaml_text import one_line
from pipeline.errors import ConfigError
from pipeline.run_dir import RunDir

TEMPLATES = Path(__file__).parent / "templates"
MAX_FAILED_ROWS = 2000
FAILED_COLUMNS = ("key", "kind", "message", "stage", "shard", "row")


@dataclass(frozen=True, slots=True)
class Report:
    """What was written. `problems` are those of the inspection and of the clips."""

    output: str
    num_bytes: int
    num_clips: int
    inspection: Inspection
    problems: list[str]


class Chart(NamedTuple):
    title: str
    text: str
    svg: Markup


@dataclass(slots=True)
class FailedRows:
    """Rows of errors/ and skipped/ for the table."""

    rows: list[dict[str, str]] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    left_out: int = 0


def write_report(
    path: str, output: str, *, keys: Collection[str] = (), storage_options: dict[str, Any] | None = None
) -> Report:
    """Write the report of a run, a folder of parquet or one file; an older report of that name is replaced.

    keys: which clips to hear; a few from all over where none are given. Raises MimiJobsError, one line.
    """
    target = Path(output)
    if target.is_dir() or not target.parent.is_dir():
        raise ConfigError([f"{output}: isn't a file's name in a folder that is there, give one for the report"])
    found = find_code_files(path, storage_options)
    inspection = inspect(path, storage_options)
    run = RunDir.open(path, storage_options) if found.unfinished_shards is not None else None
    chosen, notes = choose(found, keys, storage_options)
    notes = [note for note in notes if not any(note.split(": ")[0] == p.split(": ")[0] for p in inspection.problems)]
    problems = inspection.problems + notes
    clips = prepare(found, chosen, run, storage_options)
    page = render(inspection, problems, clips, failed_rows(found), run)
    data = page.encode("utf-8", "replace")
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.partial")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, target)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise ConfigError([f"{output}: can't be written ({error.strerror}), choose another place"]) from error
    return Report(output, len(data), len(clips), inspection, problems)


def render(
    found: Inspection, problems: list[str], clips: list[ClipToHear], failed: FailedRows, run: RunDir | None
) -> str:
    """The whole page."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    style, script = ((TEMPLATES / name).read_text() for name in ("report.css", "report.js"))
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.jinja").render(
        title=Path(found.path.rstrip("/")).name or found.path,
        policy=_policy(style, script),
        style=Markup(style),
        script=Markup(script),
        found=found,
        problems=problems,
        pills=_pills(found, run),
        tiles=_tiles(found),
        charts=_charts(found, run),
        clips=clips,
        failed=failed,
        facts=_facts(found, run),
        job=yaml.safe_dump(run.manifest["job"], sort_keys=False, allow_unicode=True)
        if run and "job" in run.manifest
        else "",
        version=version("mimi-jobs"),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def failed_rows(found: CodeFiles) -> FailedRows:
    """The first rows of errors/ and skipped/; a file that can't be read is among the inspection's problems."""
    import pyarrow.parquet as pq

    failed = FailedRows()
    kinds: set[str] = set()
    for name in [*found.errors, *found.skipped]:
        try:
            with found.fs.open(name, "rb") as opened:
                file = pq.ParquetFile(opened)
                room = MAX_FAILED_ROWS - len(failed.rows)
                failed.left_out += max(0, file.metadata.num_rows - room)
                if room <= 0:
                    continue
                rows = file.read(columns=list(FAILED_COLUMNS)).slice(0, room).to_pylist()
        except (pa.ArrowException, OSError, ValueError, KeyError):
            continue
        for row in rows:
            failed.rows.append({column: one_line(row.get(column), 1000) for column in FAILED_COLUMNS})
            kinds.add(failed.rows[-1]["kind"])
    failed.kinds = sorted(kinds)
    return failed


def _policy(style: str, script: str) -> str:
    """Content-Security-Policy: this style and this script by their hashes, pictures and sound from the page itself."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "img-src data:; media-src data:; base-uri 'none'; form-action 'none'"
    )


def _pills(found: Inspection, run: RunDir | None) -> list[tuple[str, str]]:
    pills = []
    if run is not None:
        left = found.unfinished_shards or 0
        pills.append((f"{left:,} shards still to do", "warn") if left else ("finished", "good"))
    if found.weights:
        pills.append((f"weights {found.weights}", "warn" if found.random_weights else ""))
    if found.precision:
        pills.append((found.precision, ""))
    if found.num_codebooks:
        pills.append((f"{found.num_codebooks} codebooks", ""))
    if found.problems:
        pills.append((f"{len(found.problems):,} problems", "bad"))
    return pills


def _tiles(found: Inspection) -> list[tuple[str, str, str]]:
    failed, skipped = (sum(each.rows for each in kind) for kind in (found.failures, found.skipped))
    share = f"{failed / (found.rows + failed):.2%} of rows" if found.rows + failed else ""
    tiles = [
        ("audio", duration_text(found.hours * 3600), f"{found.hours:,.3f} hours"),
        ("rows of codes", f"{found.rows:,}", f"in {found.files:,} {'file' if found.files == 1 else 'files'}"),
        ("failed rows", f"{failed:,}", share),
        ("frames", charts.short(found.frames), f"{found.frames:,} at 12.5 a second"),
        ("stored", bytes_text(found.bytes), f"{found.bits_per_code:.2f} bits a code"),
    ]
    return [*tiles, ("skipped rows", f"{skipped:,}", "too short or too long")] if skipped else tiles


def _charts(found: Inspection, run: RunDir | None) -> list[Chart]:
    drawn = []
    if found.lengths:
        lengths = found.lengths
        words = [charts.span_text(each) for each in (lengths.min, lengths.median, lengths.p95, lengths.max)]
        text = f"clips; {words[0]} to {words[3]}, half under {words[1]}, 95% under {words[2]}"
        drawn.append(Chart("Lengths", text, charts.histogram(lengths.histogram)))
    if found.codebooks:
        used = [use.used for use in found.codebooks]
        text = f"of 2,048 in each codebook; the fewest {min(used):,}"
        svg = charts.per_codebook(used, 2048, "of 2048 entries", "Entries used of each codebook")
        drawn.append(Chart("Entries in use", text, svg))
        entropy = [use.entropy_bits for use in found.codebooks]
        text = f"bits a code; {sum(entropy) / len(entropy):.2f} on average, 11 at most"
        drawn.append(Chart("Entropy", text, charts.per_codebook(entropy, 11, "bits", "Entropy of each codebook")))
    kinds = [(each.kind, each.rows) for each in (*found.failures, *found.skipped)]
    if kinds:
        total = sum(rows for _, rows in kinds)
        text = f"{total:,} {'row' if total == 1 else 'rows'} without codes, by kind"
        drawn.append(Chart("What failed", text, charts.rows_by_kind(kinds)))
    spans = _spans(run) if run is not None else []
    if spans:
        workers = len({span.worker for span in spans})
        text = "times real time" + (f"; {workers} workers together, and each below" if workers > 1 else "")
        drawn.append(Chart("Speed", text, charts.throughput(spans)))
    return drawn


def _spans(run: RunDir) -> list[charts.Span]:
    """Who encoded how much when, from the markers."""
    return [
        charts.Span(marker.worker, marker.published - marker.seconds, marker.published, marker.audio_seconds)
        for marker in run.markers().values()
        if marker.seconds > 0 and marker.published > 0
    ]


def _facts(found: Inspection, run: RunDir | None) -> list[tuple[str, str]]:
    facts: list[tuple[str, Any]] = [
        ("weights", found.weights),
        ("weights sha256", found.weights_sha256),
        ("precision", found.precision),
        ("fingerprint", found.fingerprint),
        ("source rates", ", ".join(f"{rate:,} Hz: {rows:,}" for rate, rows in list(found.sample_rates.items())[:12])),
        ("source channels", ", ".join(f"{channels}: {rows:,}" for channels, rows in found.channels.items())),
        ("constant clips", f"{found.constant_clips:,}"),
        ("duplicate keys", _known(found.duplicate_keys)),
        ("duplicate codes", _known(found.duplicate_codes)),
        ("bits a second", f"{found.bits_per_second:,.0f}" if found.frames else None),
    ]
    if run is not None:
        facts.append(("made", run.manifest.get("created")))
        versions = run.manifest.get("versions") or {}
        facts.append(("with", ", ".join(f"{name} {number}" for name, number in versions.items())))
    return [(name, str(value)) for name, value in facts if value not in (None, "")]


def _known(count: int | None) -> str:
    return "too many rows to compare" if count is None else f"{count:,}"
