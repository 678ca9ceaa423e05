"""Runs on a cluster of several nodes, all on this machine: to Ray, raylets of other addresses are other machines."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mimi.checkpoints import SMALL, write_random
from tests.torture.killing import Run, difference, markers_of, parts_of, rows_of, wait_until
from tests.torture.torture import make_dataset

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
BIN = Path(sys.executable).parent
ROWS = 60
STORE = 100 << 20


class Cluster:
    """A head without CPUs, as clusters have, and nodes that are added and killed."""

    def __init__(self):
        from ray.cluster_utils import Cluster as RaysOwn

        head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False}
        self._cluster = RaysOwn(initialize_head=True, head_node_args=head)
        self.address = str(self._cluster.address)
        self._nodes = []

    def add_node(self) -> None:
        address = f"127.0.0.{len(self._nodes) + 2}"
        self._nodes.append(
            self._cluster.add_node(num_cpus=1, object_store_memory=STORE, node_ip_address=address, wait=False)
        )

    def busy_nodes(self) -> list[int]:
        """The pids of those raylets that have an actor which has started."""
        raylets = [info.process.pid for node in self._nodes for info in node.all_processes["raylet"]]
        return [pid for pid in raylets if any(command.startswith("ray::EncodeWorker") for command in _children(pid))]

    def close(self) -> None:
        self._cluster.shutdown()


def _children(parent: int) -> list[str]:
    """The command lines of a process' children; Ray writes there what a worker does."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cluster")
    write_random(folder / "weights", 0, "transformers", SMALL)
    make_dataset(folder / "data", ROWS, seed=1, longest_s=60)
    return folder


@pytest.fixture
def cluster():
    cluster = Cluster()
    yield cluster
    cluster.close()


@pytest.fixture
def launch(folder: Path):
    runs = []

    def start(out: Path, address: str, *more: str) -> Run:
        path = folder / f"{out.name}.yaml"
        path.write_text(
            f'input: {{path: "{folder / "data"}", id_column: id}}\n'
            f'model: {{weights: "{folder / "weights"}", num_codebooks: 4}}\n'
            f'output: {{path: "{out}", checkpoint_seconds: 1}}\nray: {{address: "{address}"}}\n'
        )
        runs.append(Run(["submit", str(path), *more], folder / f"{out.name}.log"))
        return runs[-1]

    yield start
    for run in runs:
        run.kill_rest()


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> dict:
    out = folder / "undisturbed"
    command = [str(BIN / "mimi-jobs"), "submit", str(folder / "local.yaml")]
    (folder / "local.yaml").write_text(
        f'input: {{path: "{folder / "data"}", id_column: id}}\n'
        f'model: {{weights: "{folder / "weights"}", num_codebooks: 4}}\noutput: {{path: "{out}"}}\n'
    )
    subprocess.run(command, check=True, capture_output=True)
    return rows_of(out)


def has_begun(run: Run, out: Path) -> bool:
    """Waits until something is in the run directory's parts; ends with the run at the latest."""
    wait_until(lambda: parts_of(out) or markers_of(out) or run.process.poll() is not None)
    return run.process.poll() is None


def test_a_run_over_three_nodes_survives_the_loss_of_all_but_one(cluster, launch, folder, undisturbed):
    for _ in range(3):
        cluster.add_node()
    out = folder / "three"
    run = launch(out, cluster.address)
    assert wait_until(lambda: len(cluster.busy_nodes()) > 1 or run.process.poll() is not None)
    assert has_begun(run, out), run.log.read_text()
    for raylet in cluster.busy_nodes()[:-1]:  # as if their machines had lost power
        os.kill(raylet, signal.SIGKILL)
    assert run.wait() == 0, run.log.read_text()
    assert difference(undisturbed, rows_of(out)).total() == 0


def test_a_run_that_nodes_join_has_exact_rows(cluster, launch, folder, undisturbed):
    cluster.add_node()
    out = folder / "joining"
    run = launch(out, cluster.address)
    assert has_begun(run, out), run.log.read_text()
    cluster.add_node()
    assert run.wait() == 0, run.log.read_text()
    assert difference(undisturbed, rows_of(out)).total() == 0
