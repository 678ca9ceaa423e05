"""The job file's shape: its sections, keys, defaults and what each value must be. `job_file.py` reads files."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

KV_REPEAT_WHY = "a grouped-query Mimi would fail, or give wrong codes, hours later inside the transformer"

Text = Annotated[str, Field(min_length=1, pattern=r"\S")]
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Auto = Literal["auto"]

AS_TEXT = "as text (in quotes if it looks like a number)"
COUNT = "a whole number of 1 or more"
SECONDS = "a number of seconds above 0"


class Section(BaseModel):
    """A part of the job file. Each field's description is what its value must be, as error messages say it."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)


class InputConfig(Section):
    """Which dataset."""

    path: Text = Field(description="a hub id, a folder, a file or a builder's name")
    name: Text | None = Field(default=None, description=f"a configuration of the dataset, {AS_TEXT}")
    split: Text = Field(default="train", description=f"a split, or several as train+validation, {AS_TEXT}")
    data_files: Text | Annotated[list[Text], Field(min_length=1)] | dict[Text, Text | list[Text]] | None = Field(
        default=None, description="a path or glob, a list of them, or a mapping of split to either"
    )
    data_dir: Text | None = Field(default=None, description=f"a folder within the dataset, {AS_TEXT}")
    revision: Text | None = Field(default=None, description=f"a branch, tag or commit, {AS_TEXT}")
    audio_column: Text | None = Field(default=None, description=f"a column's name, {AS_TEXT}")
    id_column: Text | None = Field(default=None, description=f"a column's name, {AS_TEXT}")
    keep_columns: Literal["all"] | list[Text] = Field(default="all", description="all, or a list of column names")
    rows_per_shard: Count | None = Field(default=None, description=COUNT)
    limit: Count | None = Field(default=None, description=COUNT)


class AudioConfig(Section):
    """What is done with each recording."""

    channels: Literal["mix", "first", "each"] = Field(default="mix", description="mix, first or each")
    allow_truncated: bool = Field(default=False, description="true or false")
    min_seconds: Seconds | None = Field(default=None, description=SECONDS)
    max_seconds: Seconds | None = Field(default=None, description=SECONDS)
    row_timeout_s: Seconds = Field(default=600.0, description=SECONDS)
    max_failed: Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] | None = Field(
        default=None, description="a whole number of rows, or a share such as 0.01"
    )

    @model_validator(mode="after")
    def _window_is_open(self) -> "AudioConfig":
        if self.min_seconds is not None and self.max_seconds is not None and self.min_seconds >= self.max_seconds:
            raise ValueError(
                f"audio.min_seconds: is {self.min_seconds:g}, must be below max_seconds ({self.max_seconds:g})"
            )
        return self


class ModelConfig(Section):
    """Which model, and how it runs."""

    weights: Text = Field(default="kyutai/mimi", description="a hub id, a folder, a file or random:SEED")
    revision: Text | None = Field(default=None, description=f"a branch, tag or commit, {AS_TEXT}")
    kv_repeat: Annotated[int, Field(ge=1, le=1)] = Field(default=1, description=f"the integer 1 ({KV_REPEAT_WHY})")
    num_codebooks: Annotated[int, Field(ge=1, le=32)] = Field(default=8, description="a whole number from 1 to 32")
    precision: Literal["float32", "tf32", "bfloat16"] = Field(
        default="float32", description="float32, tf32 or bfloat16"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto, cpu or cuda")
    slots: Auto | Annotated[int, Field(ge=1, le=65536)] = Field(
        default="auto", description="auto, or a whole number of 1 or more"
    )
    chunk_seconds: Auto | Annotated[float, Field(ge=0.08, le=600, allow_inf_nan=False)] = Field(
        default="auto", description="auto, or seconds from 0.08 (one frame) to 600"
    )

    @model_validator(mode="after")
    def _tf32_needs_a_gpu(self) -> "ModelConfig":
        if self.precision == "tf32" and self.device == "cpu":
            raise ValueError("model.precision: tf32 is of GPUs only, use float32 or device: cuda")
        return self


class OutputConfig(Section):
    """Where the run directory is."""

    path: Text = Field(description="a local path or an fsspec URL")
    checkpoint_seconds: Seconds = Field(default=60.0, description=SECONDS)
    storage_options: dict[Text, Any] = Field(
        default_factory=dict, description="a mapping of options for fsspec", repr=False
    )


class RayConfig(Section):
    """Which machines, and how much of them."""

    address: Annotated[str, Field(pattern=r"^(local|auto|[^\s/:]+:[0-9]{1,5}|\[[0-9a-fA-F:]+\]:[0-9]{1,5})$")] = Field(
        default="local", description="local, auto or HOST:PORT"
    )
    actors: Auto | Count = Field(default="auto", description=f"auto, or {COUNT}")
    cpus_per_actor: Auto | Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default="auto", description="auto, or a number above 0"
    )
    gpus_per_actor: Auto | Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default="auto", description="auto, or a number of 0 or more, 0.5 for half a GPU"
    )
    wait_for_resources_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.0, description="a number of seconds of 0 or more"
    )


class JobConfig(Section):
    """A whole job, its environment references expanded.

    Made by `JobConfig.load`, or in Python from dictionaries: `JobConfig(input={"path": ...}, output={"path": ...})`.
    """

    input: InputConfig
    audio: AudioConfig = Field(default_factory=lambda: AudioConfig())
    model: ModelConfig = Field(default_factory=lambda: ModelConfig())
    output: OutputConfig
    ray: RayConfig = Field(default_factory=lambda: RayConfig())

    # As the user wrote it, references unexpanded; what the manifest keeps. None: built in Python, so the values are it.
    _written: dict[str, Any] | None = PrivateAttr(default=None)

    @classmethod
    def load(cls, path: str, overrides: "tuple[str, ...] | list[str]" = ()) -> "JobConfig":
        """Read a job file with `key=value` overrides; raises `ConfigError` with every problem of it."""
        from jobs.job_file import read_job

        return read_job(path, overrides).require()

    def written(self) -> dict[str, Any]:
        """All keys with their values, references such as `${HOME}` unexpanded."""
        values = self.model_dump()
        for section, given in (self._written or {}).items():
            values[section].update(given)
        return values


SECTIONS: dict[str, type[Section]] = {
    "input": InputConfig,
    "audio": AudioConfig,
    "model": ModelConfig,
    "output": OutputConfig,
    "ray": RayConfig,
}
# Keys that take a mapping: an override may name an entry of it, `output.storage_options.key=...`.
MAPPING_KEYS = frozenset({"output.storage_options", "input.data_files"})
# What resume may change: it changes speed and never the rows.
THROUGHPUT_KEYS = frozenset(
    {"model.slots", "model.chunk_seconds", "model.device", "audio.row_timeout_s", "audio.max_failed"}
    | {"output.checkpoint_seconds", "output.storage_options"}
    | {f"ray.{name}" for name in RayConfig.model_fields}
)
