"""Where the encoder's time goes: by layer, with each layer's share of the machine's own rate, and by kind of work.

Layers are timed from outside: each object of the codec that is called gets a stopwatch in front, for this run alone.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.records import FRAME_SAMPLES, SAMPLE_RATE

if TYPE_CHECKING:
    from mimi import Mimi
    from mimi.config import MimiConfig

PROFILE_SECONDS = 20.0
CALLED = ("__call__", "encode")  # methods that do a layer's work
# what torch calls it -> what it is
KINDS = {
    "products": ("mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_", "matmul", "linear"),
    "ELU": ("exp", "exp_", "expm1", "clamp", "maximum", "elu", "elu_"),
    "attention": ("_scaled_dot_product_flash_attention_for_cpu", "softmax", "_softmax"),
    "GELU and norms": ("gelu", "native_layer_norm"),
    "nearest entry": ("argmin", "index", "index_select"),
    "sums": ("add", "add_", "sub", "sub_", "mul", "mul_"),
    "copies": ("copy_", "cat", "clone", "where", "stack", "fill_", "masked_fill_"),
}


def nominal_gflop(config: "MimiConfig", num_codebooks: int) -> dict[str, float]:
    """GFLOP an audio second of each layer, as its definition has it: two for each weight at each place."""
    rate, width = config.sample_rate, config.num_filters
    found = {"seanet.first": 2e-9 * rate * config.kernel * width}
    for stage, ratio in enumerate(config.ratios):
        hidden = width // config.compress
        found[f"seanet.residuals.{stage}"] = 2e-9 * rate * width * hidden * (config.residual_kernel + 1)
        rate /= ratio
        found[f"seanet.strided.{stage}"] = 2e-9 * rate * 2 * ratio * width * 2 * width
        width *= 2
    found["seanet.last"] = 2e-9 * rate * config.last_kernel * width * config.dimension
    d = config.dimension
    layer = 4 * d * d + 2 * d * config.feed_forward + 2 * d * config.context
    found["transformer"] = 2e-9 * rate * config.num_layers * layer
    rate /= config.resample
    found["downsample"] = 2e-9 * rate * 2 * config.resample * d * d
    splits = min(2, num_codebooks)
    entries = num_codebooks * config.codebook_size * config.codebook_dim
    found["quantizer"] = 2e-9 * rate * (splits * d * config.codebook_dim + entries)
    return found


@dataclass(slots=True)
class Stopwatch:
    """Seconds of each layer, those of the layers within it taken off."""

    seconds: dict[str, float] = field(default_factory=dict)
    _within: list[float] = field(default_factory=list)

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self._within.append(0.0)
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.perf_counter() - started
                self.seconds[name] = self.seconds.get(name, 0.0) + took - self._within.pop()
                if self._within:
                    self._within[-1] += took

        return run


class _Timed:
    """Stands before an object of the codec: what is called on it is timed, the rest passed on."""

    def __init__(self, inner: Any, name: str, watch: Stopwatch):
        self._inner = inner
        for method in CALLED:
            if hasattr(inner, method):
                setattr(self, method, watch.timed(name, getattr(inner, method)))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["__call__"](*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@contextmanager
def stopwatch(mimi: "Mimi") -> Iterator[Stopwatch]:
    """Time the encoder's layers, and SEANet's own, while this lasts."""
    watch, undo = Stopwatch(), []
    encoder: Any = mimi._encoder
    for owner, prefix in ((encoder.seanet, "seanet."), (encoder, "")):
        for name, value in list(vars(owner).items()):
            if isinstance(value, list) and value and _is_layer(value[0]):
                timed: Any = [_Timed(layer, f"{prefix}{name}.{i}", watch) for i, layer in enumerate(value)]
            elif _is_layer(value):
                timed = _Timed(value, prefix + name, watch)
            else:
                continue
            undo.append((owner, name, value))
            setattr(owner, name, timed)
    try:
        yield watch
    finally:
        for owner, name, value in undo:
            setattr(owner, name, value)


def _is_layer(value: Any) -> bool:
    return type(value).__module__.startswith("mimi.") and any(hasattr(type(value), method) for method in CALLED)


def profile_lines(mimi: "Mimi", clips: Sequence[np.ndarray], chunk_frames: int) -> Iterator[str]:
    """Two Markdown tables: layers, and kinds of work, of one engine's steps on one thread."""
    import torch

    from jobs.bench import sgemm_rate

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        chunks = _chunks(clips, chunk_frames)
        audio_seconds = sum(chunk.shape[2] for chunk in chunks) / SAMPLE_RATE
        _run(mimi, chunks[:2])
        with stopwatch(mimi) as watch:
            _run(mimi, chunks)
        peak = sgemm_rate()
        yield from _layer_table(watch, nominal_gflop(mimi.config, mimi.num_codebooks), audio_seconds, peak)
        yield ""
        yield from _kind_table(mimi, chunks, audio_seconds)
    finally:
        torch.set_num_threads(before)


def _chunks(clips: Sequence[np.ndarray], chunk_frames: int) -> list[Any]:
    import torch

    whole = np.concatenate(clips)[: round(PROFILE_SECONDS * SAMPLE_RATE)]
    size = chunk_frames * FRAME_SAMPLES
    whole = whole[: len(whole) // size * size] if len(whole) > size else np.resize(whole, size)
    return list(torch.from_numpy(whole)[None, None].split(size, 2))


def _run(mimi: "Mimi", chunks: Sequence[Any]) -> None:
    state = mimi.new_state(1)
    for chunk in chunks:
        mimi.encode_step(chunk, state)


def _layer_table(watch: Stopwatch, gflop: dict[str, float], audio_seconds: float, peak: float) -> Iterator[str]:
    total = sum(watch.seconds.values())
    yield "| layer (one thread) | ms an audio second | of all | GFLOP an audio second | of sgemm |"
    yield "|---|---|---|---|---|"
    for name, seconds in watch.seconds.items():
        each = seconds / audio_seconds
        work, share = "", ""
        if name in gflop:
            work, share = f"{gflop[name]:.2f}", f"{gflop[name] / each / peak:.0%}"
        label = "seanet, between its layers" if name == "seanet" else name
        yield f"| {label} | {1e3 * each:.2f} | {seconds / total:.0%} | {work} | {share} |"
    each, work = total / audio_seconds, sum(gflop.values())
    yield f"| all | {1e3 * each:.2f} | 100% | {work:.2f} | {work / each / peak:.0%} |"


def _kind_table(mimi: "Mimi", chunks: Sequence[Any], audio_seconds: float) -> Iterator[str]:
    import torch

    with torch.autograd.profiler.profile(use_kineto=False) as profiler:
        _run(mimi, chunks)
    assert profiler is not None
    kind_of = {operation: kind for kind, operations in KINDS.items() for operation in operations}
    spent: dict[str, float] = dict.fromkeys([*KINDS, "the rest"], 0.0)
    for event in profiler.key_averages():
        kind = kind_of.get(event.key.removeprefix("aten::"), "the rest")
        spent[kind] += event.self_cpu_time_total * 1e-6
    total = sum(spent.values())
    yield "| work (one thread) | ms an audio second | of all |"
    yield "|---|---|---|"
    for kind, seconds in spent.items():
        yield f"| {kind} | {1e3 * seconds / audio_seconds:.2f} | {seconds / total:.0%} |"
