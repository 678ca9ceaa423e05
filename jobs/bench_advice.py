"""What measured rates of a job's stages say: which stage the job waits for, and what to set. Measures nothing."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jobs.bench import Contender
from jobs.bench_engine import Layout
from jobs.resources import Machine

WORTH_IT = 1.05  # how much faster another setting must be: less is the noise of one short run


@dataclass(frozen=True, slots=True)
class Rates:
    """Times real time of each stage by itself: of one core (read, decode, write), of all that encodes (encode)."""

    read: float
    decode: float
    encode: float
    write: float
    encode_cores: int  # that encoding kept busy; 0 on a GPU

    def costs(self) -> dict[str, float]:
        """Core seconds an audio second, of what runs on the CPU's cores."""
        costs = {"read": 1 / self.read, "decode": 1 / self.decode}
        if self.encode_cores:
            costs["encode"] = self.encode_cores / self.encode
        return costs | {"write": 1 / self.write}

    def whole(self, cpus: int) -> float:
        """Times real time of all stages together: they share the cores, and a GPU is one more limit."""
        on_cores = cpus / sum(self.costs().values())
        return on_cores if self.encode_cores else min(on_cores, self.encode)

    def bottleneck(self, cpus: int) -> str:
        """The stage that the whole waits for."""
        costs = self.costs()
        if not self.encode_cores and self.encode <= cpus / sum(costs.values()):
            return "encode"
        return max(costs, key=lambda stage: costs[stage])

    def cores_for_gpu(self) -> int:
        """Cores that keep up with the GPU."""
        return max(1, math.ceil(self.encode * sum(self.costs().values())))


def report(rates: Rates, measured: Mapping[Layout, Contender], cpus: int) -> Iterator[str]:
    """Markdown tables: the stages by themselves, and the settings tried."""
    costs = rates.costs()
    yield ""
    yield "| stage | times real time | core ms an audio second | of the cores' time |"
    yield "|---|---|---|---|"
    by_itself = {"read": rates.read, "decode": rates.decode, "encode": rates.encode, "write": rates.write}
    for stage, rate in by_itself.items():
        what = "one core" if stage != "encode" else next(iter(measured.values())).name
        cost, share = "on the GPU", ""
        if stage in costs:
            cost, share = f"{1e3 * costs[stage]:.2f}", f"{costs[stage] / sum(costs.values()):.0%}"
        yield f"| {stage}, {what} | {rate:,.1f} | {cost} | {share} |"
    yield ""
    yield "| encoding with | times real time | of sgemm |"
    yield "|---|---|---|"
    for contender in sorted(measured.values(), key=lambda contender: -contender.rates[0]):
        share = f"{contender.shares[0]:.0%}" if rates.encode_cores else ""  # of the CPU's products
        yield f"| {contender.name} | {contender.rates[0]:.1f} | {share} |"
    yield ""


def advice(rates: Rates, measured: Mapping[Layout, Contender], machine: Machine) -> Iterator[str]:
    """What the job waits for, and what to set: one line each, keys as the command line takes them."""
    cpus = machine.cpus
    stage = rates.bottleneck(cpus)
    yield f"bottleneck: {stage}; all stages together about {rates.whole(cpus):,.0f} times real time here"
    chosen = next(iter(measured))
    best = max(measured, key=lambda layout: measured[layout].rates[0])
    gain = measured[best].rates[0] / measured[chosen].rates[0]
    if gain >= WORTH_IT:
        yield f"set {_keys(best, bool(rates.encode_cores))}: {gain:.2f} times as fast as the job's own setting"
    else:
        best = chosen
        yield f"slots, chunk, threads and actors are right as they are: {_keys(best, bool(rates.encode_cores))}"
    if not rates.encode_cores:
        need = rates.cores_for_gpu()
        enough = "they are here" if cpus >= need * max(1, machine.gpus) else f"here are {cpus} for {machine.gpus} GPUs"
        yield f"a GPU wants {need} cores to read, decode and write for it: {enough}"
    elif stage != "encode":
        yield f"more actors don't help while {stage} takes most of the cores: {REMEDIES[stage]}"


REMEDIES = {
    "read": "put the data nearer, or into fewer and larger files",
    "decode": "store recordings at 24 kHz, as FLAC or WAV, if they are encoded more than once",
    "write": "keep fewer columns (input.keep_columns)",
}


def _keys(layout: Layout, on_cpu: bool) -> str:
    keys = f"model.slots={layout.slots} model.chunk_seconds={layout.chunk_frames / 12.5:g}"
    return keys + (f" ray.actors={layout.engines} ray.cpus_per_actor={layout.threads}" if on_cpu else "")
