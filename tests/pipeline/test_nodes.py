"""How many actors fit on a cluster's nodes, and what Ray's description of them comes to."""

import pytest

from pipeline.nodes import Node, actors_that_fit, held_text, nodes_of


@pytest.mark.parametrize(
    ("cpus", "gpus", "count"),
    [(1.0, 0.0, 6), (2.0, 0.0, 2), (1.0, 1.0, 2), (0.5, 1 / 3, 6), (4.0, 1.0, 0), (5.0, 0, 0)],
)
def test_actors_fit_node_by_node(cpus, gpus, count):
    nodes = (Node("a", 3, 2), Node("b", 3, 0))
    assert actors_that_fit(nodes, cpus, gpus) == count


def test_dead_nodes_are_left_out_and_a_head_without_cpus_is_not():
    found = [
        {"Alive": alive, "NodeManagerHostname": host, "NodeManagerAddress": address, "Resources": resources}
        for alive, host, address, resources in (
            (True, "b", "10.0.0.2", {"CPU": 8.0, "GPU": 2.0}),
            (False, "c", "10.0.0.3", {"CPU": 8.0}),
            (True, "a", "10.0.0.1", {}),
        )
    ]
    nodes = nodes_of(found)
    assert nodes == (Node("a (10.0.0.1)", 0, 0), Node("b (10.0.0.2)", 8, 2))
    assert held_text(nodes) == "2 nodes with 8 CPUs and 2 GPUs"
