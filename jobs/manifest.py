"""What a run remembers of its job (`job.json`): the job file as written, what it resolved to, versions, no secrets."""

import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from jobs.job_file import REFERENCE

FORMAT = 1
LIBRARIES = (
    *("mimi-jobs", "torch", "numpy", "safetensors", "huggingface_hub", "datasets", "pyarrow", "fsspec"),
    *("soundfile", "soxr", "av", "ray", "pydantic"),
)
# Options of filesystems that are no secret; whatever else is given literally is taken for one.
HARMLESS_OPTIONS = frozenset(
    {"anon", "endpoint_url", "region_name", "use_ssl", "verify", "requester_pays", "project", "location", "profile"}
    | {"account_name", "account_host", "default_block_size", "default_cache_type", "version_aware", "max_concurrency"}
    | {"batch_size", "consistency", "timeout", "connect_timeout", "read_timeout", "requests_timeout", "max_attempts"}
    | {"mode", "signature_version", "addressing_style", "max_pool_connections", "use_listings_cache", "access"}
)
PASSWORD_IN_URL = re.compile(r"://[^/@\s]*:[^/@\s]*@")


def make_manifest(
    written: dict[str, Any],
    *,
    facts: dict[str, Any],
    fingerprint: str,
    weights: dict[str, Any],
    pinned: dict[str, str | None],
    resolved: dict[str, Any],
) -> dict[str, Any]:
    """The content of job.json.

    written: section -> key -> value with references unexpanded. facts: what the fingerprint is of. pinned: commits that
    revisions stood for. resolved: what `auto` came to.
    """
    job, withheld = without_secrets(written)
    return {
        "format": FORMAT,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "job": with_absolute_paths(job),
        "withheld": withheld,
        "pinned": pinned,
        "resolved": resolved,
        "facts": facts,
        "fingerprint": fingerprint,
        "weights": weights,
        "weights_sha256": weights["sha256"],
        "random_weights": weights["random"],
        "versions": library_versions(),
    }


def without_secrets(written: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The job without literal values of `storage_options` that may be secrets, and the names of those."""
    options = written.get("output", {}).get("storage_options") or {}
    names: list[str] = []
    kept = _harmless(options, "output.storage_options", names)
    return {**written, "output": {**written.get("output", {}), "storage_options": kept}}, names


def missing_secrets(manifest: dict[str, Any], written: dict[str, Any]) -> list[str]:
    """Names of values that the manifest doesn't keep and that haven't been given again."""
    given = set(_names(written.get("output", {}).get("storage_options") or {}, "output.storage_options"))
    return [name for name in manifest.get("withheld") or [] if name not in given]


def with_absolute_paths(job: dict[str, Any]) -> dict[str, Any]:
    """The job with local paths made absolute, so that `resume` finds them from any folder; references stay."""
    given, model, output = dict(job["input"]), dict(job["model"]), dict(job["output"])
    if os.path.exists(os.path.expanduser(given["path"])):
        given["path"] = _absolute(given["path"])
    elif "/" not in given["path"] and given.get("data_files") is not None:  # a builder's name
        given["data_files"] = _absolute(given["data_files"])
    elif "/" not in given["path"] and given.get("data_dir") is not None:
        given["data_dir"] = _absolute(given["data_dir"])
    if os.path.exists(os.path.expanduser(model["weights"])):
        model["weights"] = _absolute(model["weights"])
    output["path"] = _absolute(output["path"])
    return {**job, "input": given, "model": model, "output": output}


def library_versions() -> dict[str, str]:
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _harmless(options: dict[str, Any], prefix: str, names: list[str]) -> dict[str, Any]:
    kept = {}
    for key, value in options.items():
        name = f"{prefix}.{key}"
        if isinstance(value, dict):
            kept[key] = _harmless(value, name, names)
        elif value is None or isinstance(value, bool) or _is_harmless(key, value):
            kept[key] = value
        else:
            names.append(name)
    return kept


def _is_harmless(key: str, value: Any) -> bool:
    if isinstance(value, str) and REFERENCE.sub("", value) == "":
        return True
    return key in HARMLESS_OPTIONS and not PASSWORD_IN_URL.search(str(value))


def _names(options: dict[str, Any], prefix: str) -> Iterator[str]:
    for key, value in options.items():
        yield f"{prefix}.{key}"
        if isinstance(value, dict):
            yield from _names(value, f"{prefix}.{key}")


def _absolute(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _absolute(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_absolute(each) for each in value]
    if "://" in value or value.startswith("${"):
        return value
    return os.path.abspath(os.path.expanduser(value))
