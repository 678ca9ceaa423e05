"""The one schema of all data files of a run, and the names of its files. Fixed at submission, carried in each file."""

import json
import re
from typing import Any

import pyarrow as pa

from pipeline.records import FRAME_SAMPLES, SAMPLE_RATE, Shard

COLUMNS = (
    pa.field("key", pa.string()),
    pa.field("codes", pa.list_(pa.list_(pa.uint16()))),
    pa.field("num_frames", pa.int32()),
    pa.field("duration", pa.float64()),
    pa.field("sample_rate", pa.int32()),
    pa.field("num_channels", pa.int16()),
    pa.field("channel", pa.int16()),
    pa.field("shard", pa.int32()),
    pa.field("row", pa.int64()),
)
FOLDERS = ("data", "errors", "skipped")


def output_schema(kept: pa.Schema, *, metadata: dict[str, Any]) -> pa.Schema:
    """The columns that every run has, then the kept ones; ValueError where a kept name is taken.

    The metadata has `huggingface` (features, so that `datasets` reads the same types back) and `mimi_jobs`: the given
    facts (fingerprint, weights, num_codebooks) with the layout of the codes and the frame rate.
    """
    taken = {field.name for field in COLUMNS}
    for name in kept.names:
        if name in taken:
            raise ValueError(f"a kept column can't be called {name!r}: the name is taken")
        taken.add(name)
    facts = {
        **metadata,
        "layout": "K,T",
        "frame_rate": SAMPLE_RATE / FRAME_SAMPLES,
        "sample_rate": SAMPLE_RATE,
        "frame_samples": FRAME_SAMPLES,
    }
    schema = pa.schema([*COLUMNS, *kept])
    features = _features(schema, kept)
    own = {b"mimi_jobs": json.dumps(facts, sort_keys=True).encode()}
    return schema.with_metadata({**features, **own})


def run_facts(schema: pa.Schema) -> dict[str, Any]:
    """What `mimi_jobs` says in a file's metadata; empty where another tool wrote the file."""
    return json.loads((schema.metadata or {}).get(b"mimi_jobs", b"{}"))


def with_facts(schema: pa.Schema, **facts: Any) -> pa.Schema:
    """The schema with more in its `mimi_jobs` metadata."""
    merged = json.dumps({**run_facts(schema), **facts}, sort_keys=True).encode()
    return schema.with_metadata({**(schema.metadata or {}), b"mimi_jobs": merged})


def file_split(split: str) -> str:
    """A split as it may stand in a file name and in a dataset card: word characters, single dots."""
    return re.sub(r"\.+", ".", re.sub(r"[^\w.]", "_", split, flags=re.ASCII)).strip(".") or "train"


def shard_file(shard: Shard, num_shards: int) -> str:
    return f"{file_split(shard.split)}-{shard.index:05d}-of-{num_shards:05d}.parquet"


def _features(schema: pa.Schema, kept: pa.Schema) -> dict[bytes, bytes]:
    from datasets import Features

    try:
        features = Features.from_arrow_schema(schema.remove_metadata())
        if kept.metadata and b"huggingface" in kept.metadata:  # the source knows more: class labels, translations
            known = Features.from_arrow_schema(kept)
            features.update({name: known[name] for name in kept.names if name in known})
        described = {"info": {"features": features.to_dict()}}
    except (ValueError, TypeError, KeyError, NotImplementedError):  # a type that `datasets` has no word for
        return {}
    return {b"huggingface": json.dumps(described).encode()}
