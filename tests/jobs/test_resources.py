"""What `auto` comes to on given machines, and what is asked for in vain."""

import pytest

from jobs.config import ModelConfig, RayConfig
from jobs.resources import ACTOR_BYTES, Machine, Resources, resolve_resources, this_machine
from pipeline.nodes import Node

LAPTOP = Machine(cpus=8, gpus=0)
STATION = Machine(cpus=16, gpus=2)
CLUSTER = RayConfig(address="head:6379")


def settled(machine: Machine, ray: RayConfig | None = None, **model) -> Resources:
    resources, problems = resolve_resources(ModelConfig(**model), ray or RayConfig(), machine)
    assert problems == [] and resources is not None
    return resources


def refused(machine: Machine, ray: RayConfig | None = None, **model) -> tuple[str, str]:
    resources, (problem,) = resolve_resources(ModelConfig(**model), ray or RayConfig(), machine)
    assert resources is None
    return problem


def test_a_cpu_gets_an_actor_of_one_slot_and_one_thread_for_each_core():
    assert settled(LAPTOP) == Resources("cpu", 1, 50, 1, 8, 1.0, 0.0)


def test_actors_fit_into_the_memory():
    machine = Machine(cpus=8, gpus=0, memory_bytes=3 * ACTOR_BYTES + 1)
    assert settled(machine).actors == 3
    assert settled(Machine(cpus=8, gpus=0, memory_bytes=1)).actors == 1


def test_a_gpu_gets_an_actor_of_many_slots_and_its_share_of_the_cores():
    assert settled(STATION) == Resources("cuda", 64, 25, 8, 2, 8.0, 1.0)


@pytest.mark.parametrize(
    ("machine", "ray", "threads"),
    [
        (STATION, {}, 7),  # 8 CPUs for each GPU: one drives the steps
        (STATION, {"cpus_per_actor": 3.0}, 2),
        (STATION, {"gpus_per_actor": 0.5, "cpus_per_actor": 1.5}, 1),
        (Machine(cpus=2, gpus=2), {}, 1),
        (LAPTOP, {}, 1),
        (LAPTOP, {"cpus_per_actor": 4.0}, 1),  # whose threads encode
    ],
)
def test_beside_a_gpu_all_cpus_of_an_actor_but_one_decode(machine, ray, threads):
    assert settled(machine, RayConfig(**ray)).decode_threads == threads


def test_a_share_of_a_gpu_makes_more_actors():
    assert settled(STATION, RayConfig(gpus_per_actor=0.5, cpus_per_actor=2.0)).actors == 4


def test_what_is_given_is_kept():
    ray = RayConfig(actors=2, cpus_per_actor=4.0)
    assert settled(LAPTOP, ray, slots=3, chunk_seconds=4.0) == Resources("cpu", 3, 50, 4, 2, 4.0, 0.0)
    assert settled(STATION, device="cpu").device == "cpu"


@pytest.mark.parametrize(("seconds", "frames"), [(0.08, 1), (0.1, 1), (1.0, 12), (2, 25), (10.0, 125)])
def test_a_chunk_is_whole_frames(seconds, frames):
    assert settled(LAPTOP, chunk_seconds=seconds).chunk_frames == frames


def test_a_cluster_settles_the_number_of_actors_and_not_the_device():
    assert settled(LAPTOP, CLUSTER, device="cuda") == Resources("cuda", 64, 25, 1, "auto", 1.0, 1.0)
    assert settled(LAPTOP, RayConfig(address="auto", gpus_per_actor=0.0)).device == "cpu"
    assert settled(LAPTOP, RayConfig(address="auto", gpus_per_actor=0.5)).device == "cuda"
    key, message = refused(LAPTOP, CLUSTER)
    assert key == "model.device" and "set cpu or cuda" in message


@pytest.mark.parametrize(
    ("machine", "ray", "model", "key"),
    [
        (LAPTOP, {}, {"device": "cuda"}, "model.device"),
        (LAPTOP, {}, {"precision": "tf32"}, "model.precision"),
        (LAPTOP, {"actors": 9}, {}, "ray.actors"),
        (LAPTOP, {"cpus_per_actor": 9.0}, {}, "ray.cpus_per_actor"),
        (LAPTOP, {"gpus_per_actor": 1.0}, {}, "ray.gpus_per_actor"),
        (STATION, {"gpus_per_actor": 3.0}, {}, "ray.gpus_per_actor"),
        (STATION, {"gpus_per_actor": 0.0}, {"device": "cuda"}, "ray.gpus_per_actor"),
        (STATION, {"actors": 3}, {}, "ray.actors"),
    ],
)
def test_what_the_machine_lacks_is_named_by_its_key(machine, ray, model, key):
    found, message = refused(machine, RayConfig(**ray), **model)
    assert found == key and message


GPU_NODES = (Node("head", 8, 0), Node("a", 16, 4), Node("b", 30, 8))


def on_cluster(ray: RayConfig, **model) -> tuple[Resources | None, list[tuple[str, str]]]:
    return resolve_resources(ModelConfig(**model), ray, LAPTOP, GPU_NODES)


def test_a_known_cluster_settles_the_device_and_the_cpus_beside_a_gpu():
    assert on_cluster(CLUSTER) == (Resources("cuda", 64, 25, 3, "auto", 3.0, 1.0), [])
    resources, problems = resolve_resources(ModelConfig(), CLUSTER, STATION, (Node("a", 4, 0),))
    assert resources is not None and (resources.device, problems) == ("cpu", [])


@pytest.mark.parametrize(
    ("ray", "model", "key", "words"),
    [
        ({"actors": 13}, {}, "ray.actors", "13 actors of 3 CPUs and 1 GPUs don't fit"),
        ({"gpus_per_actor": 9.0}, {}, "ray.gpus_per_actor", "3 nodes with 54 CPUs and 12 GPUs"),
        ({"cpus_per_actor": 31.0}, {}, "ray.cpus_per_actor", "3 nodes with 54 CPUs"),
        ({"cpus_per_actor": 20.0, "actors": 2}, {"device": "cpu"}, "ray.actors", "ask for 1 or fewer"),
    ],
)
def test_what_a_cluster_lacks_is_refused_unless_it_may_grow(ray, model, key, words):
    config = RayConfig(address="auto", **ray)
    resources, ((found, message),) = on_cluster(config, **model)
    assert resources is None and found == key and words in message
    growing = config.model_copy(update={"wait_for_resources_s": 600.0})
    resources, problems = on_cluster(growing, **model)
    assert resources is not None and problems == []


def test_this_machine_has_something_to_run_on():
    machine = this_machine()
    assert machine.cpus >= 1 and machine.gpus >= 0
