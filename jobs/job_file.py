"""Reads job files: YAML, overrides, environment references; every problem becomes one line. Looks nothing up."""

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from jobs.config import KV_REPEAT_WHY, MAPPING_KEYS, SECTIONS, JobConfig, Section
from jobs.yaml_text import kind_of, one_line, parse_mapping, parse_yaml
from pipeline.errors import ConfigError

COMMAND_LINE = "command line"
MAX_FILE_BYTES = 1 << 20
REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

Values = dict[str, Any]
SectionT = TypeVar("SectionT", bound=Section)


@dataclass(slots=True)
class Job:
    """A job file as read: what of it is valid, and what isn't.

    `sections` are built without their faulty keys, so that everything else about the job can still be checked.
    """

    source: str  # what problems call the job file
    sections: dict[str, Section] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    faulty: set[str] = field(default_factory=set)  # dotted keys
    origins: dict[str, str] = field(default_factory=dict)  # dotted key -> where it was set, if not in the job file
    written: Values = field(default_factory=dict)  # section -> key -> value, references unexpanded

    def where(self, key: str) -> str:
        """Where a value was set: `job.yaml: model.kv_repeat`."""
        return f"{self.origins.get(key, self.source)}: {key}"

    def add(self, key: str, message: str) -> None:
        """Note a problem of the value at `key`."""
        self.problems.append(f"{self.where(key)}: {one_line(message)}")
        self.faulty.add(key)

    def section(self, kind: type[SectionT]) -> SectionT | None:
        """The section of this kind, or None where it lacks what it can't do without."""
        return next((s for s in self.sections.values() if isinstance(s, kind)), None)

    def require(self) -> JobConfig:
        """The whole job; raises `ConfigError` with every problem found so far."""
        if self.problems:
            raise ConfigError(self.problems)
        config = JobConfig.model_validate(self.sections)
        config._written = self.written
        return config


def read_job(path: str, overrides: Iterable[str] = (), environ: Mapping[str, str] | None = None) -> Job:
    """Read a job file and its overrides; problems are in the result and nothing is raised."""
    job = Job(source=one_line(path))
    try:
        values = parse_mapping(_read_text(path))
    except ConfigError as error:
        job.problems += [f"{job.source}: {problem}" for problem in error.problems]
        values = {}
        job.faulty.update(SECTIONS)  # what the file would have said isn't known: its lack is no problem of its own
    return build_job(job, values, overrides, environ)


def build_job(job: Job, values: Values, overrides: Iterable[str] = (), environ: Mapping[str, str] | None = None) -> Job:
    """Merge overrides into `values` (a mapping of sections), expand references and validate, into `job`."""
    sections = _sections_of(job, values)
    for text in overrides:
        _apply_override(job, sections, text)
    for name, kind in SECTIONS.items():
        given = sections.get(name, {})
        job.written[name] = given
        expanded = {key: _expand(job, f"{name}.{key}", value, environ or os.environ) for key, value in given.items()}
        built = _validate(job, name, kind, expanded)
        if built is not None:
            job.sections[name] = built
    return job


def override_keys(overrides: Iterable[str]) -> list[str]:
    """The `section.key` that each override sets."""
    return [".".join(text.partition("=")[0].strip().split(".")[:2]) for text in overrides]


def _read_text(path: str) -> str:
    try:
        if Path(path).exists() and not Path(path).is_file():  # a named pipe would be waited for
            raise ConfigError(["can't be read (not a regular file), give a job file"])
        with Path(path).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(["no such file, give the path of a job file"]) from None
    except (OSError, ValueError) as error:
        raise ConfigError([f"can't be read ({getattr(error, 'strerror', None) or error}), give a job file"]) from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError([f"is over {MAX_FILE_BYTES >> 20} MiB, which no job file is; give a job file"])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError([f"is not UTF-8 text (byte {error.start}), give a job file in YAML"]) from None


# ---- sections, overrides, references


def _sections_of(job: Job, values: Values) -> dict[str, Values]:
    sections: dict[str, Values] = {}
    for name, value in values.items():
        if name not in SECTIONS:
            job.problems.append(f"{job.source}: {one_line(name, 80)}: {_unknown(str(name), SECTIONS, 'section')}")
        elif isinstance(value, dict):
            sections[name] = dict(value)
        elif value is not None:
            message = f"is {kind_of(value)}, must be a mapping such as `{name}: {{...}}`"
            job.problems.append(f"{job.source}: {name}: {message}")
            job.faulty.add(name)
    return sections


def _apply_override(job: Job, sections: dict[str, Values], text: str) -> None:
    key, equals, value_text = text.partition("=")
    key = key.strip()
    parts = key.split(".")
    dotted = ".".join(parts[:2])
    if not equals or len(parts) < 2 or not all(parts):
        message = "is not an override, write section.key=value"
        job.problems.append(f"{COMMAND_LINE}: {one_line(text if not equals else key, 80)}: {message}")
        return
    if parts[0] not in SECTIONS:
        job.problems.append(f"{COMMAND_LINE}: {one_line(key, 80)}: {_unknown(parts[0], SECTIONS, 'section')}")
        return
    if len(parts) > 2 and dotted not in MAPPING_KEYS:
        job.problems.append(f"{COMMAND_LINE}: {one_line(key, 80)}: {dotted} holds one value, write {dotted}=value")
        return
    job.origins[dotted] = COMMAND_LINE
    try:
        value = parse_yaml(value_text)
    except ConfigError as error:
        job.add(dotted, f"{'; '.join(error.problems)}, or put the value in quotes")
        sections.setdefault(parts[0], {}).pop(parts[1], None)
        return
    target = sections.setdefault(parts[0], {})
    for part in parts[1:-1]:
        inner = target.get(part)
        target[part] = target = dict(inner) if isinstance(inner, dict) else {}
    target[parts[-1]] = value


def _expand(job: Job, key: str, value: Any, environ: Mapping[str, str]) -> Any:
    """The value with `${NAME}` replaced from the environment, in text at any depth."""
    if isinstance(value, dict):
        return {k: _expand(job, key, v, environ) for k, v in value.items()}
    if isinstance(value, list):
        return [_expand(job, key, v, environ) for v in value]
    if not isinstance(value, str) or "${" not in value:
        return value
    missing = [name for name in dict.fromkeys(REFERENCE.findall(value)) if name not in environ]
    if missing:
        job.add(key, f"{', '.join(f'${{{name}}}' for name in missing)} is not set in the environment, export it")
        return value
    expanded = REFERENCE.sub(lambda match: environ[match[1]], value)
    if REFERENCE.fullmatch(value) and not _takes_text(key):
        try:
            return parse_yaml(expanded)  # a number or a switch that stands in the environment
        except ConfigError:
            return expanded
    return expanded


def _takes_text(key: str) -> bool:
    section, _, name = key.partition(".")
    info = SECTIONS[section].model_fields.get(name)
    return info is None or key in MAPPING_KEYS or str in _leaf_types(info.annotation)


def _leaf_types(annotation: Any) -> Iterator[Any]:
    args = get_args(annotation)
    yield annotation
    for arg in args:
        yield from _leaf_types(arg)


# ---- validation


def _validate(job: Job, name: str, kind: type[Section], given: Values) -> Section | None:
    """The section, built without its faulty keys; None where a key that it can't do without is missing or faulty."""
    usable = {key: value for key, value in given.items() if f"{name}.{key}" not in job.faulty}
    try:
        return kind.model_validate(usable)
    except ValidationError as error:
        whole = _note_errors(job, name, kind, usable, error)
    if whole:
        return None
    return _validate(job, name, kind, {k: v for k, v in usable.items() if f"{name}.{k}" not in job.faulty})


def _note_errors(job: Job, name: str, kind: type[Section], given: Values, error: ValidationError) -> bool:
    """Word each faulty key once; True where what's left can't be a section."""
    whole = False
    for key in dict.fromkeys(str(detail["loc"][0]) if detail["loc"] else "" for detail in error.errors()):
        dotted = f"{name}.{key}"
        if not key:  # a rule about several keys, which words itself
            subject, _, message = error.errors()[0]["msg"].removeprefix("Value error, ").partition(": ")
            job.add(subject, message)
        elif key not in kind.model_fields:
            job.add(dotted, _unknown(key, kind.model_fields, "key", prefix=f"{name}."))
        elif key not in given:
            whole = True
            if not {name, dotted} & job.faulty:
                job.add(dotted, f"is missing, give {kind.model_fields[key].description}")
        else:
            job.add(dotted, _must_be(dotted, given[key], str(kind.model_fields[key].description)))
    return whole


def _must_be(key: str, value: Any, expected: str) -> str:
    if key == "model.kv_repeat":
        return f"is {_show(value)}, must be the integer 1, set it to 1 or leave it out: {KV_REPEAT_WHY}"
    shown = f"is {kind_of(value)}" if key in MAPPING_KEYS else f"is {_show(value)}"
    return f"{shown}, must be {expected}"


def _unknown(name: str, known: Iterable[str], what: str, prefix: str = "") -> str:
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"unknown {what}, did you mean {prefix}{close[0]}?"
    return f"unknown {what}, use one of {', '.join(known)}"


def _show(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return one_line(repr(value), 80)
