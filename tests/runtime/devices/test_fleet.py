"""Which nodes there are and were, and in what state."""

from __future__ import annotations

from prefect_gpu.runtime.devices import fleet
from prefect_gpu.runtime.devices.fleet import CLOSED, GONE, UP, Fleet
from prefect_gpu.scheduling.model.cluster import Device, Node


def a_node(name: str) -> Node:
    return Node(name, (Device(f"{name}/virtual-0", "virtual", 1, virtual=True),), (0,))


def states(known: Fleet) -> dict[str, str]:
    return {node.id: state for node, state in known.known}


def test_a_node_that_takes_no_work_any_more_is_still_known() -> None:
    a, b, c = map(a_node, "abc")
    known = Fleet([b, a])
    assert states(known) == {"a": UP, "b": UP}
    known.change([a], [b, c])
    assert states(known) == {"a": UP, "b": CLOSED, "c": CLOSED}
    assert [node.id for node in known.nodes] == ["a"] and [device.id for device in known.devices] == ["a/virtual-0"]
    assert [device.id for device in known.named(["c/virtual-0"])] == ["c/virtual-0"], "a run may be adopted there"
    known.change([b, c])
    assert states(known) == {"a": GONE, "b": UP, "c": UP}
    known.change([a, b, c])
    assert states(known) == {"a": UP, "b": UP, "c": UP}


def test_nodes_that_are_gone_do_not_pile_up() -> None:
    known = Fleet()
    for number in range(fleet._GONE_KEPT + 5):
        known.change([a_node(f"n{number:02}")])
    known.change([])
    assert list(states(known)) == [f"n{number:02}" for number in range(5, fleet._GONE_KEPT + 5)]
    assert set(states(known).values()) == {GONE}
