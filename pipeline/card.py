"""The dataset card of a run: front matter that `datasets` loads by, and a page for whoever finds the folder."""

import hashlib
from collections import Counter
from collections.abc import Collection
from typing import Any

import pyarrow as pa
import yaml

from pipeline.marker import Marker
from pipeline.records import FRAME_SAMPLES, SAMPLE_RATE
from pipeline.schema import run_facts

LICENCES = {"kyutai/": "CC BY 4.0 (Kyutai)"}
MEANINGS = {
    "key": "the recording's own name",
    "codes": "`[num_codebooks][num_frames]`: codebooks first, entries 0 to 2047",
    "num_frames": "frames, 12.5 a second",
    "duration": "seconds of source audio",
    "sample_rate": "of the source, Hz",
    "num_channels": "of the source",
    "channel": "which channel of the source this is; null where channels were mixed or only the first was taken",
    "shard": "where the row came from: the planned shard",
    "row": "and the row within it",
}


def card(
    manifest: dict[str, Any], schema: pa.Schema, markers: Collection[Marker], num_shards: int, splits: list[str]
) -> str:
    """README.md of a run, from what is published so far."""
    sections = [
        _front_matter(manifest, markers, splits),
        "# Mimi codes\n",
        _weights(manifest, schema),
        _statistics(markers, num_shards),
        _columns(schema),
        _loading(manifest, splits),
        _job(manifest),
    ]
    return "\n".join(sections)


def uses_random_weights(manifest: dict[str, Any]) -> bool:
    """Whether the codes of a run mean nothing."""
    return _name_of(manifest).startswith("random:")


def _name_of(manifest: dict[str, Any]) -> str:
    return str(((manifest.get("job") or {}).get("model") or {}).get("weights") or "")


def _front_matter(manifest: dict[str, Any], markers: Collection[Marker], splits: list[str]) -> str:
    """A configuration for each folder that has files: `datasets` refuses one that has none.

    The description changes with the content, because `datasets` names its cache by the card alone: without it a folder
    of the same name, or this one an hour ago, would be loaded from the cache instead.
    """
    contents = hashlib.sha256(f"{manifest.get('created')}{manifest.get('fingerprint')}".encode())
    for marker in markers:
        for file in marker.files:
            contents.update(f"{file.path}{file.sha256}".encode())
    description = f"mimi-jobs run {str(manifest.get('fingerprint'))[:12]}, contents {contents.hexdigest()[:16]}"
    configs = []
    for folder, name in (("data", "default"), ("errors", "errors"), ("skipped", "skipped")):
        paths = [file.path for marker in markers if (file := marker.file(folder))]
        present = [split for split in splits if any(path.startswith(f"{folder}/{split}-") for path in paths)]
        if folder == "data" and not present:
            present = splits or ["train"]
        if present:
            files = [{"split": split, "path": f"{folder}/{split}-*.parquet"} for split in present]
            configs.append({"config_name": name, "description": description, "data_files": files})
    configs[0]["default"] = True
    facts = {"tags": ["audio", "mimi", "codec"], "configs": configs}
    return f"---\n{yaml.safe_dump(facts, sort_keys=False)}---\n"


def _weights(manifest: dict[str, Any], schema: pa.Schema) -> str:
    facts = run_facts(schema)
    model = (manifest.get("job") or {}).get("model") or {}
    weights = manifest.get("weights")
    known = weights if isinstance(weights, dict) else {}
    name = _name_of(manifest) or str(facts.get("weights") or "unknown")
    lines = []
    if name.startswith("random:"):
        lines.append(
            f"> **These codes mean nothing.** They were made with random weights (`{name}`), to try the machinery. "
            "They can't be decoded to sound and are no use for training.\n"
        )
    licence = known.get("licence") or next((text for start, text in LICENCES.items() if name.startswith(start)), None)
    rows = {
        "weights": f"`{name}`",
        "revision": known.get("revision") or model.get("revision"),
        "weights sha256": known.get("sha256") or manifest.get("weights_sha256"),
        "licence of the weights": licence,
        "codebooks": facts.get("num_codebooks"),
        "precision": model.get("precision"),
        "frames a second": f"{SAMPLE_RATE / FRAME_SAMPLES:g}, of {FRAME_SAMPLES} samples at {SAMPLE_RATE} Hz",
        "fingerprint": manifest.get("fingerprint"),
    }
    lines += ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items() if value is not None), ""]
    return "\n".join(lines)


def _statistics(markers: Collection[Marker], num_shards: int) -> str:
    failures: Counter[str] = Counter()
    for marker in markers:
        failures.update(marker.failures)
    rows, failed, skipped, clips, frames = (
        sum(getattr(marker, name) for marker in markers) for name in ("encoded", "failed", "skipped", "clips", "frames")
    )
    num_bytes = sum(file.num_bytes for marker in markers for file in marker.files)
    hours = sum(marker.audio_seconds for marker in markers) / 3600
    lines = ["## What is in it", ""]
    if len(markers) < num_shards:
        lines += [
            f"**Not finished**: {len(markers)} of {num_shards} shards are done. `mimi-jobs resume` carries on.",
            "",
        ]
    lines += [
        "| recordings | rows of codes | audio hours | frames | failed | skipped | bytes |",
        "|---|---|---|---|---|---|---|",
        f"| {rows:,} | {clips:,} | {hours:,.3f} | {frames:,} | {failed:,} | {skipped:,} | {num_bytes:,} |",
        "",
    ]
    if failures:
        lines += [
            "Rows without codes are listed in `errors/` (configuration `errors`), with the reason: "
            + ", ".join(f"{count:,} {kind}" for kind, count in failures.most_common())
            + ".",
            "",
        ]
    if skipped:
        lines += ["Rows outside the wanted lengths are listed in `skipped/` (configuration `skipped`).", ""]
    return "\n".join(lines)


def _columns(schema: pa.Schema) -> str:
    lines = ["## Columns", "", "| column | type | meaning |", "|---|---|---|"]
    for field in schema:
        kind = str(field.type).replace("item: ", "").replace("element: ", "").replace("|", "\\|").replace("\n", " ")
        lines.append(f"| `{field.name}` | {kind} | {MEANINGS.get(field.name, 'kept from the source')} |")
    return "\n".join([*lines, ""])


def _loading(manifest: dict[str, Any], splits: list[str]) -> str:
    split = splits[0] if splits else "train"
    lines = [
        "## How to load it\n",
        "```python",
        "from datasets import load_dataset\n",
        f'rows = load_dataset("THIS_FOLDER", split="{split}").with_format("torch")',
        'rows[0]["codes"]  # int64 [num_codebooks, num_frames]; codes[:8] is the 8-codebook encoding',
        "```\n",
    ]
    if not uses_random_weights(manifest):
        lines += [
            "and back to sound, with `mimi-jobs decode THIS_FOLDER --key KEY -o FILE.wav` or:\n",
            "```python",
            "from mimi import Mimi\n",
            'codes = rows[0]["codes"]',
            f'mimi = Mimi.load("{_name_of(manifest)}", num_codebooks=len(codes))',
            "sound = mimi.decode(codes[None])  # float32 [1, 1, samples] at 24 kHz",
            "```\n",
        ]
    return "\n".join(lines)


def _job(manifest: dict[str, Any]) -> str:
    job = manifest.get("job")
    if not job:
        return ""
    text = yaml.safe_dump(job, sort_keys=False, allow_unicode=True)
    fence = "`" * max(3, 1 + max((len(run) for run in text.split() if set(run) == {"`"}), default=0))
    return f"## How it was made\n\nBy mimi-jobs, with this job file:\n\n{fence}yaml\n{text}{fence}\n"
