"""What the machines of a cluster have, and how many actors fit on them. Knows no Ray: `survey.py` asks it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ROUNDING = 1e-6  # shares of a GPU don't add up exactly


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of a cluster, with all that it has, in use or not."""

    name: str  # as people know it: host and address
    cpus: float
    gpus: float

    def fits(self, cpus_each: float, gpus_each: float) -> int:
        """How many actors of this size."""
        counts = [have / each for have, each in ((self.cpus, cpus_each), (self.gpus, gpus_each)) if each > 0]
        return int(min(counts) + ROUNDING) if counts else 0


def actors_that_fit(nodes: Iterable[Node], cpus_each: float, gpus_each: float) -> int:
    """Actors of this size on all nodes: counted by node, since none lies across two."""
    return sum(node.fits(cpus_each, gpus_each) for node in nodes)


def nodes_of(found: Iterable[Mapping[str, Any]]) -> tuple[Node, ...]:
    """The living nodes among what `ray.nodes()` returned."""
    nodes = []
    for each in found:
        if each["Alive"]:
            have = each.get("Resources", {})
            name = f"{each.get('NodeManagerHostname', '?')} ({each['NodeManagerAddress']})"
            nodes.append(Node(name, float(have.get("CPU", 0)), float(have.get("GPU", 0))))
    return tuple(sorted(nodes, key=lambda node: node.name))


def held_text(nodes: Iterable[Node]) -> str:
    """What a cluster has, in words: 3 nodes with 24 CPUs and 4 GPUs."""
    all_nodes = tuple(nodes)
    count = f"{len(all_nodes)} node" + ("" if len(all_nodes) == 1 else "s")
    return f"{count} with {sum(n.cpus for n in all_nodes):g} CPUs and {sum(n.gpus for n in all_nodes):g} GPUs"
