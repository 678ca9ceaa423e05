"""What `auto` means for device, slots, chunk, threads and actors, and whether there is what a job asks for.

Looks at this machine only; what a running cluster has is given as its nodes.
"""

import os
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Literal

from jobs.config import ModelConfig, RayConfig
from pipeline.nodes import Node, actors_that_fit, held_text
from pipeline.records import FRAME_SAMPLES, SAMPLE_RATE

CPU_CHUNK_FRAMES = 50  # 4 s: products long enough for full speed; longer ones gain nothing
GPU_CHUNK_FRAMES = 25
GPU_SLOTS = 64
ACTOR_BYTES = 2 << 30  # of a CPU actor: interpreter and model, and the 1.2 GB that encoding may take
TIMES_REAL_TIME = {"cpu": 20.0, "cuda": 1000.0}  # of one thread, of one GPU: for the estimate in `check` alone


@dataclass(frozen=True, slots=True)
class Machine:
    """What may be used here."""

    cpus: int
    gpus: int
    memory_bytes: int | None = None  # available now


@dataclass(frozen=True, slots=True)
class Resources:
    """How a job runs, with nothing left open but the number of actors on a cluster."""

    device: str
    slots: int
    chunk_frames: int
    threads: int  # torch threads of one actor
    actors: int | Literal["auto"]
    cpus_per_actor: float
    gpus_per_actor: float

    @property
    def decode_threads(self) -> int:
        """Of one actor. Beside a GPU its CPUs decode, but for the one that drives the steps; else they encode."""
        return max(1, int(self.cpus_per_actor) - 1) if self.device == "cuda" else 1

    def times_real_time(self, actors: int) -> float:
        """A rough rate of so many actors, for an estimate."""
        each = TIMES_REAL_TIME[self.device]
        return actors * each * (self.gpus_per_actor if self.device == "cuda" else self.threads)


Problem = tuple[str, str]  # key, message


def this_machine() -> Machine:
    """CPUs that this process may use, GPUs that torch sees, memory that is free."""
    return Machine(_usable_cpus(), _usable_gpus(), _free_memory())


def resolve_resources(
    model: ModelConfig, ray: RayConfig, machine: Machine, nodes: tuple[Node, ...] | None = None
) -> tuple[Resources | None, list[Problem]]:
    """Settle every `auto`; problems name the key that asks for what isn't there.

    nodes: of the cluster that the job is for, where it is for one and they're known.
    """
    problems: list[Problem] = []
    local = ray.address == "local"
    device = _device(model, ray, machine, nodes, problems)
    if device is None:
        return None, problems
    on_gpu = device == "cuda"
    if model.precision == "tf32" and not on_gpu:
        problems.append(("model.precision", "tf32 is of GPUs only and there is none here, use float32"))
    if ray.gpus_per_actor != "auto" and (ray.gpus_per_actor > 0) != on_gpu:
        problems.append(
            ("ray.gpus_per_actor", f"is {ray.gpus_per_actor:g} with model.device {device}, set one of them")
        )
        return None, problems
    gpus_each = (1.0 if ray.gpus_per_actor == "auto" else ray.gpus_per_actor) if on_gpu else 0.0
    if ray.cpus_per_actor != "auto":
        cpus_each = ray.cpus_per_actor
    else:  # beside a GPU the decoders want what there is
        cpus_each = _cpus_beside_a_gpu(machine, None if local else nodes or ()) if on_gpu else 1.0
    actors = ray.actors
    if local:
        actors = _local_actors(ray, machine, cpus_each, gpus_each, problems)
    elif nodes is not None and not ray.wait_for_resources_s:
        _check_cluster(ray, nodes, cpus_each, gpus_each, problems)
    chunk = GPU_CHUNK_FRAMES if on_gpu else CPU_CHUNK_FRAMES
    if model.chunk_seconds != "auto":
        chunk = max(1, round(model.chunk_seconds * SAMPLE_RATE / FRAME_SAMPLES))
    slots = model.slots if model.slots != "auto" else GPU_SLOTS if on_gpu else 1
    resources = Resources(device, slots, chunk, max(1, int(cpus_each)), actors, cpus_each, gpus_each)
    return (None if problems else resources), problems


def _device(
    model: ModelConfig, ray: RayConfig, machine: Machine, nodes: tuple[Node, ...] | None, problems: list[Problem]
) -> str | None:
    if ray.address == "local":
        if model.device == "cuda" and not machine.gpus:
            problems.append(("model.device", "is cuda and torch finds no GPU here, use cpu or auto"))
            return None
        return model.device if model.device != "auto" else "cuda" if machine.gpus else "cpu"
    if model.device != "auto":
        return model.device
    if ray.gpus_per_actor != "auto":
        return "cuda" if ray.gpus_per_actor > 0 else "cpu"
    if nodes is not None:
        return "cuda" if any(node.gpus for node in nodes) else "cpu"
    problems.append(("model.device", "is auto, which a cluster doesn't settle before it is joined, set cpu or cuda"))
    return None


def _cpus_beside_a_gpu(machine: Machine, nodes: tuple[Node, ...] | None) -> float:
    """A GPU's share of its machine's CPUs; on a cluster the smallest, so that every GPU gets an actor."""
    machines = [(machine.cpus, machine.gpus)] if nodes is None else [(node.cpus, node.gpus) for node in nodes]
    return float(min((max(1, int(cpus / gpus)) for cpus, gpus in machines if gpus), default=1))


def _check_cluster(
    ray: RayConfig, nodes: tuple[Node, ...], cpus_each: float, gpus_each: float, problems: list[Problem]
) -> None:
    """Whether the cluster has room for what is asked for; one that grows has `ray.wait_for_resources_s`."""
    fits = actors_that_fit(nodes, cpus_each, gpus_each)
    grows = "or set ray.wait_for_resources_s if the cluster grows"
    each = f"{cpus_each:g} CPUs" + (f" and {gpus_each:g} GPUs" if gpus_each else "")
    if fits < 1:
        key = (
            "ray.gpus_per_actor" if gpus_each and not any(n.gpus >= gpus_each for n in nodes) else "ray.cpus_per_actor"
        )
        has = f"the cluster has {held_text(nodes)}, none with {each}"
        problems.append((key, f"an actor asks for {each} and {has}, ask for less {grows}"))
    elif ray.actors != "auto" and ray.actors > fits:
        message = f"{ray.actors} actors of {each} don't fit into the cluster's {held_text(nodes)}"
        problems.append(("ray.actors", f"{message}, ask for {fits} or fewer {grows}"))


def _local_actors(
    ray: RayConfig, machine: Machine, cpus_each: float, gpus_each: float, problems: list[Problem]
) -> int | Literal["auto"]:
    """As many as fit, or as many as asked for if they fit."""
    fits = int(machine.cpus / cpus_each + 1e-6)
    if fits < 1:
        problems.append(("ray.cpus_per_actor", f"is {cpus_each:g}, this machine has {machine.cpus}, ask for less"))
    if gpus_each:
        by_gpu = int(machine.gpus / gpus_each + 1e-6)
        if by_gpu < 1:
            problems.append(("ray.gpus_per_actor", f"is {gpus_each:g}, this machine has {machine.gpus}, ask for less"))
        fits = min(fits, by_gpu)
    if problems:
        return ray.actors
    if ray.actors == "auto":
        if machine.memory_bytes is not None and not gpus_each:
            fits = min(fits, machine.memory_bytes // ACTOR_BYTES)
        return max(1, fits)
    if ray.actors > fits:
        need = f"{ray.actors} actors of {cpus_each:g} CPUs" + (f" and {gpus_each:g} GPUs" if gpus_each else "")
        has = f"{machine.cpus} CPUs" + (f" and {machine.gpus} GPUs" if gpus_each else "")
        problems.append(("ray.actors", f"{need} don't fit into this machine's {has}, ask for {fits} or less an actor"))
    return ray.actors


def _usable_cpus() -> int:
    """By affinity, and by the container's quota where there is one."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cpus, int(int(quota) / int(period))))
    except (OSError, ValueError):  # no cgroup, or "max"
        return cpus


def _usable_gpus() -> int:
    """Torch is asked only where a driver's device is there: importing it takes seconds."""
    if not any(glob(pattern) for pattern in ("/dev/nvidia[0-9]*", "/dev/dxg", "/dev/kfd")):
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _free_memory() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        return None
    return None
