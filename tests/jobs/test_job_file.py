"""What a job file may say, and the line that each mistake gets."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

import jobs
from jobs.config import SECTIONS, JobConfig
from jobs.job_file import MAX_FILE_BYTES, Job, build_job, read_job
from pipeline.errors import ConfigError

MINIMAL = {"input": {"path": "data"}, "output": {"path": "out"}}


def problems(values: dict[str, Any], *overrides: str, environ: dict[str, str] | None = None) -> list[str]:
    return build_job(Job("job.yaml"), values, overrides, environ or {"HOME": "/home/me"}).problems


def with_value(section: str, **values: Any) -> dict[str, Any]:
    merged = {name: dict(given) for name, given in MINIMAL.items()}
    merged.setdefault(section, {}).update(values)
    return merged


def write(folder: Path, text: str | bytes) -> str:
    path = folder / "job.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_a_minimal_job_has_the_documented_defaults():
    config = build_job(Job("job.yaml"), MINIMAL).require()
    assert config.model_dump() == {
        "input": {
            "path": "data", "name": None, "split": "train", "data_files": None, "data_dir": None, "revision": None,
            "audio_column": None, "id_column": None, "keep_columns": "all", "rows_per_shard": None, "limit": None,
        },
        "audio": {
            "channels": "mix", "allow_truncated": False, "min_seconds": None, "max_seconds": None,
            "row_timeout_s": 600, "max_failed": None,
        },
        "model": {
            "weights": "kyutai/mimi", "revision": None, "kv_repeat": 1, "num_codebooks": 8, "precision": "float32",
            "device": "auto", "slots": "auto", "chunk_seconds": "auto",
        },
        "output": {"path": "out", "checkpoint_seconds": 60, "storage_options": {}},
        "ray": {
            "address": "local", "actors": "auto", "cpus_per_actor": "auto", "gpus_per_actor": "auto",
            "wait_for_resources_s": 0,
        },
    }  # fmt: skip


def test_every_key_says_what_its_value_must_be():
    fields = [info for kind in SECTIONS.values() for info in kind.model_fields.values()]
    assert all(info.description for info in fields)


@pytest.mark.parametrize("value", [2, 0, 8, -1, True, False, "1", 1.0, None, [1], "${ONE}x"])
def test_kv_repeat_is_refused_unless_it_is_the_integer_one(value):
    (line,) = problems(with_value("model", kv_repeat=value), environ={"ONE": "1"})
    assert line.startswith("job.yaml: model.kv_repeat: is ")
    assert "must be the integer 1" in line
    assert "grouped-query" in line and "inside the transformer" in line


def test_kv_repeat_of_one_is_accepted():
    assert problems(with_value("model", kv_repeat=1)) == []


def test_a_refused_override_says_that_the_command_line_set_it():
    (line,) = problems(MINIMAL, "model.kv_repeat=2")
    assert line.startswith("command line: model.kv_repeat: is 2, must be the integer 1")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("model.num_codebooks", 0, "whole number from 1 to 32"),
        ("model.num_codebooks", 33, "whole number from 1 to 32"),
        ("model.num_codebooks", True, "whole number from 1 to 32"),
        ("model.num_codebooks", "8", "whole number from 1 to 32"),
        ("model.precision", "float16", "float32, tf32 or bfloat16"),
        ("model.device", "gpu", "auto, cpu or cuda"),
        ("model.slots", 0, "auto, or a whole number"),
        ("model.chunk_seconds", 0.01, "0.08"),
        ("model.chunk_seconds", float("nan"), "0.08"),
        ("model.revision", 12345, "in quotes"),
        ("model.weights", " ", "hub id"),
        ("input.path", "", "hub id"),
        ("input.path", ["a"], "hub id"),
        ("input.limit", 0, "whole number of 1 or more"),
        ("input.keep_columns", "text", "all, or a list"),
        ("input.data_files", 3, "path or glob"),
        ("input.data_files", [], "path or glob"),
        ("audio.channels", "left", "mix, first or each"),
        ("audio.allow_truncated", "yes", "true or false"),
        ("audio.allow_truncated", 1, "true or false"),
        ("audio.min_seconds", -1, "above 0"),
        ("audio.row_timeout_s", float("inf"), "above 0"),
        ("audio.max_failed", 1.5, "share"),
        ("audio.max_failed", -1, "share"),
        ("audio.max_failed", True, "share"),
        ("output.checkpoint_seconds", 0, "above 0"),
        ("output.storage_options", "key", "mapping"),
        ("ray.address", "10.0.0.1", "HOST:PORT"),
        ("ray.actors", None, "auto"),
        ("ray.gpus_per_actor", -1, "0 or more"),
    ],
)
def test_a_wrong_value_is_one_line_that_says_what_it_must_be(key, value, words):
    section, _, name = key.partition(".")
    (line,) = problems(with_value(section, **{name: value}))
    assert line.startswith(f"job.yaml: {key}: is ")
    assert words in line


@pytest.mark.parametrize(
    ("section", "values"),
    [
        ("input", {"data_files": {"train": ["a.parquet", "b.parquet"], "test": "c.parquet"}}),
        ("input", {"keep_columns": []}),
        ("audio", {"max_failed": 0}),
        ("audio", {"max_failed": 0.01}),
        ("audio", {"min_seconds": 1, "max_seconds": 2.5}),
        ("model", {"chunk_seconds": 2}),
        ("ray", {"address": "head.example:6379", "gpus_per_actor": 0.25}),
        ("ray", {"address": "[::1]:6379"}),
    ],
)
def test_documented_values_are_accepted(section, values):
    assert problems(with_value(section, **values)) == []


def test_an_unknown_key_names_the_nearest_known_one():
    (line,) = problems(with_value("model", num_codebook=8))
    assert line == "job.yaml: model.num_codebook: unknown key, did you mean model.num_codebooks?"


def test_an_unknown_key_like_no_other_lists_the_known_ones():
    (line,) = problems(with_value("output", zzz=8))
    assert "use one of path, checkpoint_seconds, storage_options" in line


def test_an_unknown_section_names_the_nearest_known_one():
    assert problems({**MINIMAL, "modle": {}}) == ["job.yaml: modle: unknown section, did you mean model?"]


def test_a_section_that_is_no_mapping_is_refused():
    (line,) = problems({**MINIMAL, "model": ["kyutai/mimi"]})
    assert line == "job.yaml: model: is a list, must be a mapping such as `model: {...}`"


def test_missing_paths_are_each_reported():
    lines = problems({})
    assert [line.split(": is")[0] for line in lines] == ["job.yaml: input.path", "job.yaml: output.path"]


def test_all_problems_are_reported_together():
    values = {"input": {"pth": "x"}, "model": {"kv_repeat": 4, "num_codebook": 8}, "output": {"path": "out"}}
    lines = problems(values, "ray.actors=none", "audio.chanels=mix")
    assert {line.split(": ")[1] for line in lines} == {
        "input.pth", "input.path", "model.kv_repeat", "model.num_codebook", "ray.actors", "audio.chanels",
    }  # fmt: skip


def test_a_section_with_a_faulty_key_keeps_its_other_values():
    job = build_job(Job("job.yaml"), with_value("model", kv_repeat=2, weights="random:7"))
    assert job.sections["model"].model_dump()["weights"] == "random:7"
    assert job.faulty == {"model.kv_repeat"}


def test_seconds_that_leave_nothing_are_refused():
    (line,) = problems(with_value("audio", min_seconds=5, max_seconds=3))
    assert line == "job.yaml: audio.min_seconds: is 5, must be below max_seconds (3)"


def test_tf32_on_a_cpu_is_refused():
    (line,) = problems(with_value("model", precision="tf32", device="cpu"))
    assert line.startswith("job.yaml: model.precision: ") and "GPU" in line


# ---- overrides


def test_overrides_are_parsed_as_yaml():
    overrides = ("model.num_codebooks=32", "input.keep_columns=[text, id]", "audio.allow_truncated=true", "input.name=")
    config = build_job(Job("job.yaml"), MINIMAL, overrides).require()
    assert config.model.num_codebooks == 32
    assert config.input.keep_columns == ["text", "id"]
    assert config.audio.allow_truncated is True
    assert config.input.name is None


def test_an_override_may_name_an_entry_of_a_mapping():
    values = with_value("output", storage_options={"anon": False})
    config = build_job(Job("job.yaml"), values, ["output.storage_options.endpoint_url=http://here"]).require()
    assert config.output.storage_options == {"anon": False, "endpoint_url": "http://here"}
    assert values["output"]["storage_options"] == {"anon": False}


def test_an_override_mends_what_the_file_has_wrong():
    assert problems(with_value("model", kv_repeat=2), "model.kv_repeat=1") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model", "section.key=value"),
        ("model=3", "section.key=value"),
        ("modle.slots=3", "did you mean model?"),
        ("model.slot=3", "did you mean model.slots?"),
        ("model.slots.x=3", "write model.slots=value"),
        ("input.name=a: b: c", "in quotes"),
        ("input.name={a", "in quotes"),
    ],
)
def test_a_wrong_override_is_one_line(text, words):
    (line,) = problems(MINIMAL, text)
    assert line.startswith("command line: ") and words in line


# ---- environment references


def test_references_are_expanded_and_kept_as_written():
    values = with_value(
        "output", path="${ROOT}/${NAME}", storage_options={"secret": "${SECRET}", "n": {"k": "${NAME}"}}
    )
    environ = {"ROOT": "/data", "NAME": "x", "SECRET": "s3cr3t"}
    config = build_job(Job("job.yaml"), values, (), environ).require()
    assert config.output.path == "/data/x"
    assert config.output.storage_options == {"secret": "s3cr3t", "n": {"k": "x"}}
    assert config.written()["output"]["path"] == "${ROOT}/${NAME}"
    assert config.written()["output"]["storage_options"]["secret"] == "${SECRET}"
    assert config.written()["model"]["num_codebooks"] == 8


def test_a_reference_may_stand_for_a_number_where_a_number_belongs():
    values = with_value("model", num_codebooks="${K}", revision="${K}")
    config = build_job(Job("job.yaml"), values, (), {"K": "16"}).require()
    assert (config.model.num_codebooks, config.model.revision) == (16, "16")


def test_a_reference_that_is_not_set_is_named():
    (line,) = problems(with_value("output", path="${NOWHERE}/x"), environ={})
    assert line == "job.yaml: output.path: ${NOWHERE} is not set in the environment, export it"


# ---- files


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("- a\n- b\n", "is a list and not a mapping"),
        ("just words", "is text and not a mapping"),
        ("input: {path: a\noutput: 3", "line 2"),
        ("input: {path: a, path: b}\noutput: {path: o}\n", "path is given twice (first in line 1)"),
        ("input: {path: a}\noutput: {path: o}\ninput: {path: b}\n", "line 3: input is given twice"),
        ("input: {path: ${HOME}}\n", "put quotes around ${...}"),
        ("input: {path: 2024-13-45}\n", "not valid YAML"),
        ("input: &a {path: *a}\n", "own anchor"),
        ("a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
            f"{n}: &{n} [{','.join([f'*{p}'] * 10)}]\n" for p, n in zip("abcdefg", "bcdefgh", strict=True)), "aliases"),
        ("[" * 5000, "nested too deeply"),
        ("input: {path: !!python/object/apply:os.getcwd []}\n", "could not determine a constructor"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"input: {path: \x00}\n", "not valid YAML"),
        (b"#" * (MAX_FILE_BYTES + 1), "1 MiB"),
    ],
    ids=lambda value: None if isinstance(value, bytes) or len(value) > 60 else value.strip(),
)  # fmt: skip
def test_a_file_that_is_no_job_is_one_line(tmp_path, text, words):
    path = write(tmp_path, text)
    (line,) = read_job(path).problems
    assert line.startswith(f"{path}: ") and words in line


def test_a_missing_file_and_a_folder_are_one_line_each(tmp_path):
    assert read_job(str(tmp_path / "no.yaml")).problems == [
        f"{tmp_path}/no.yaml: no such file, give the path of a job file"
    ]
    (line,) = read_job(str(tmp_path)).problems
    assert line.startswith(f"{tmp_path}: can't be read")


def test_a_broken_file_still_has_its_overrides_checked(tmp_path):
    lines = read_job(write(tmp_path, "input: {"), ["model.kv_repeat=2"]).problems
    assert len(lines) == 2 and lines[1].startswith("command line: model.kv_repeat")


def test_load_returns_the_config_or_raises_every_problem(tmp_path):
    path = write(tmp_path, yaml.safe_dump(MINIMAL))
    assert JobConfig.load(path, ["model.num_codebooks=4"]).model.num_codebooks == 4
    with pytest.raises(ConfigError) as raised:
        JobConfig.load(path, ["model.kv_repeat=2", "model.slots=no"])
    assert len(raised.value.problems) == 2


def test_a_job_can_be_made_in_python():
    config = JobConfig.model_validate({**MINIMAL, "model": {"num_codebooks": 4}})
    assert config.model_dump() == build_job(Job("job.yaml"), config.written()).require().model_dump()
    assert jobs.JobConfig is JobConfig
    with pytest.raises(ValidationError, match="kv_repeat"):
        JobConfig.model_validate({**MINIMAL, "model": {"kv_repeat": 2}})
