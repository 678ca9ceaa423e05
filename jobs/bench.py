"""`mimi-jobs bench`: the engine's speed on this machine, beside its matrix-multiply rate and the installed peers.

Contenders take turns on the same recordings in one process, on the same number of threads; the machine's own rate is
measured between them, so that a share of it holds however busy the machine is. Profiles are in `bench_profile.py`.
"""

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from jobs.bench_clips import Clips
from jobs.bench_engine import layouts, our_encoder
from pipeline.errors import ConfigError
from pipeline.records import SAMPLE_RATE

if TYPE_CHECKING:
    from jobs.peers import Encode
    from mimi import Mimi

GFLOP_A_SECOND = 5.5  # of Mimi's encoder, an audio second: 4.0 in SEANet, 1.4 in the transformer, 0.1 in the rest
NUM_CODEBOOKS = 8
PRODUCT_SIZE = 2048  # of the square matrices that are the measure of the machine
PRODUCTS = 3  # of which the fastest counts


@dataclass(slots=True)
class Contender:
    """Who takes part, and what was measured: times real time and share of sgemm, one of each a repeat."""

    name: str
    encode: "Encode" = field(repr=False)
    ours: bool = False
    rates: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    codes: list[np.ndarray] = field(default_factory=list, repr=False)


@dataclass(frozen=True, slots=True)
class Race:
    """The outcome. sgemm: GFLOP/s, every reading. contenders: the first is ours, as the pipeline runs it."""

    contenders: list[Contender]
    sgemm: list[float]
    threads: int

    def verdict(self) -> str:
        """The last line."""
        ours, peers = self.contenders[0], [c for c in self.contenders if not c.ours]
        share = f"{median(ours.shares):.0%} of sgemm"
        if not peers:
            return f"{median(ours.rates):.1f} times real time, {share}"
        return f"{median(ours.rates) / max(median(peer.rates) for peer in peers):.2f} times the fastest peer, {share}"

    def table(self) -> Iterator[str]:
        """A Markdown table, fastest first, and the limit."""
        yield f"| {'':46} | times real time | spread | of sgemm | codes unlike ours |"
        yield f"|{'-' * 48}|---|---|---|---|"
        for contender in sorted(self.contenders, key=lambda c: -median(c.rates)):
            low, high = min(contender.rates), max(contender.rates)
            unlike, total = differences(self.contenders[0].codes, contender.codes)
            told = f"{unlike} of {total}" if contender is not self.contenders[0] else "-"
            yield (
                f"| {contender.name:46} | {median(contender.rates):.1f} | {low:.1f} to {high:.1f} | "
                f"{median(contender.shares):.0%} | {told} |"
            )
        rate = median(self.sgemm)
        limit = f"the limit: {rate:.0f} GFLOP/s ({min(self.sgemm):.0f} to {max(self.sgemm):.0f})"
        low, high = (reading / GFLOP_A_SECOND for reading in (min(self.sgemm), max(self.sgemm)))
        yield f"| {limit:46} | {rate / GFLOP_A_SECOND:.1f} | {low:.1f} to {high:.1f} | 100% | |"


def differences(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> tuple[int, int]:
    """(codes that differ, codes in all), clip by clip."""
    pairs = list(zip(ours, theirs, strict=True))
    return sum(int((a != b).sum()) for a, b in pairs), sum(a.size for a in ours)


def race(contenders: list[Contender], clips: Sequence[np.ndarray], *, repeats: int, threads: int) -> Race:
    """Each contender encodes all clips, in turns, `repeats` times; sgemm is measured before and after each turn."""
    seconds = sum(map(len, clips)) / SAMPLE_RATE
    for contender in contenders:
        contender.encode(clips[:1])  # what is allocated and compiled at first use isn't speed
    sgemm = [sgemm_rate()]
    for _ in range(repeats):
        for contender in contenders:
            started = time.perf_counter()
            contender.codes = contender.encode(clips)
            rate = seconds / (time.perf_counter() - started)
            sgemm.append(sgemm_rate())
            contender.rates.append(rate)
            contender.shares.append(rate * GFLOP_A_SECOND / ((sgemm[-2] + sgemm[-1]) / 2))
    return Race(contenders, sgemm, threads)


def sgemm_rate(device: str = "cpu") -> float:
    """GFLOP/s of float32 matrix products, on torch's threads now."""
    import torch

    a, b = (torch.rand(PRODUCT_SIZE, PRODUCT_SIZE, device=device) for _ in range(2))
    out = torch.mm(a, b)
    times = []
    for _ in range(PRODUCTS):
        started = time.perf_counter()
        torch.mm(a, b, out=out)
        times.append(time.perf_counter() - started)
    return 2e-9 * PRODUCT_SIZE**3 / min(times)


# ------------------------------------------------------------ the command


def bench(
    clips: Clips,
    weights: str = "random:0",
    *,
    revision: str | None = None,
    peers: bool = False,
    batches: bool = False,
    threads: int | None = None,
    repeats: int = 3,
    say: Callable[[str], None] = print,
) -> Race:
    """Measure, print as it goes, and return the race; the last line printed is its verdict. Raises ConfigError."""
    threads = threads or usable_threads()
    os.environ["RAYON_NUM_THREADS"] = str(threads)  # rustymimi's; read at its first import
    import torch

    from jobs.bench_profile import profile_lines
    from jobs.peers import Checkpoints, installed_peers, missing_peers

    torch.set_num_threads(threads)
    mimi = load(weights, revision)
    for line in (*machine_lines(threads), f"{clips.what}, {clips.seconds:.0f} s in all; {weights}", *clips.skipped):
        say(line)
    with ExitStack() as stack:
        checkpoints = stack.enter_context(Checkpoints(weights, revision))
        contenders = []
        for layout in layouts(threads):
            encode = stack.enter_context(our_encoder(mimi, layout))
            contenders.append(Contender(f"mimi-jobs, {layout.words}", encode, ours=True))
        if peers:
            for line in missing_peers():
                say(line)
            found = installed_peers(checkpoints, NUM_CODEBOOKS, threads, batches=batches)
            contenders += [Contender(peer.name, peer.encode) for peer in found]
        result = race(contenders, clips.samples, repeats=repeats, threads=threads)
    for line in ("", *result.table(), "", *profile_lines(mimi, clips.samples, layouts(threads)[0].chunk_frames), ""):
        say(line)
    say(result.verdict())
    return result


def load(
    weights: str,
    revision: str | None,
    precision: str = "float32",
    num_codebooks: int = NUM_CODEBOOKS,
    device: str = "cpu",
) -> "Mimi":
    """The model, and torch set to the precision; ConfigError where it can't be had."""
    from mimi import CheckpointError, Mimi
    from mimi.graph import use_precision

    try:
        return Mimi.load(
            weights,
            revision=revision,
            num_codebooks=num_codebooks,
            device=device,
            dtype=use_precision(precision),
        )
    except CheckpointError as error:
        raise ConfigError([f"command line: --weights: {str(error).removeprefix('weights: ')}"]) from error


def usable_threads() -> int:
    """As many as there are CPUs for this process."""
    from jobs.resources import this_machine

    return this_machine().cpus


def machine_lines(threads: int) -> list[str]:
    """What the figures are of."""
    import torch

    cpu = cpu_name()
    capability = torch.backends.cpu.get_cpu_capability()
    return [f"{cpu}, {threads} threads, {capability}, torch {torch.__version__}, Python {platform.python_version()}"]


def cpu_name() -> str:
    """The processor's own name."""
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
