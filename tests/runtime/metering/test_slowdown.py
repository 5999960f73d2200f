"""How much a run is slowed down by the one beside it, from the steps that both report."""

from __future__ import annotations

import pytest

from prefect_gpu.runtime.launch.launch import Launch
from prefect_gpu.runtime.metering.slowdown import SlowdownMeter
from prefect_gpu.scheduling.interference.sensitivity import Key
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.storage.row import ContentionRow
from prefect_gpu.training import protocol
from tests.runtime.launches import launched

DEVICE = Placement("n", ("d0",), (0, 1), 1 << 30, shared=True)


class Bench:
    """Runs whose steps take as long as the test says, on a clock of its own."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.runs: list[Launch] = []
        self.kept: list[ContentionRow] = []
        self.said: list[ev.SlowdownMeasured] = []

    def add(self, program: str, place: Placement = DEVICE, phase: str = protocol.TRAINING) -> Launch:
        request = Request(gpu_memory_bytes=1, exclusive=False, kind=program, workers=len(place.parts))
        run = launched(f"{program}{len(self.runs)}", place, request, phase=phase, progress={"step": 0})
        run.attach(SlowdownMeter(self.runs, self.kept.append))
        self.runs.append(run)
        return run

    def train(self, seconds: int, *speeds: tuple[Launch, int]) -> None:
        """Each makes so many steps in each second, and reports them."""
        for _ in range(seconds):
            self.now += 1.0
            for run, steps in speeds:
                run.record.progress["step"] += steps
                for follower in run.followers:
                    self.said += follower.reported(run, protocol.PROGRESS, self.now, {})


def test_it_is_the_speed_alone_before_divided_by_that_beside() -> None:
    bench = Bench()
    a = bench.add("a")
    bench.train(10, (a, 8))
    assert bench.said == []
    b = bench.add("b")
    bench.train(10, (a, 2), (b, 6))
    assert a.slowdowns == {"b": 4.0}
    assert b.slowdowns == {}, "it was never alone"
    assert set(bench.said) == {ev.SlowdownMeasured(a.run_id, 4.0, "b")}


def test_alone_may_come_after() -> None:
    bench = Bench()
    a, b = bench.add("a"), bench.add("b")
    bench.train(10, (a, 2), (b, 6))
    a.phase = protocol.SAVING
    bench.train(10, (b, 9))
    assert (a.slowdowns, b.slowdowns) == ({}, {"a": 1.5})


@pytest.mark.parametrize("why", ["elsewhere", "it prepares", "it pauses", "of no known program"])
def test_who_does_not_train_beside_it_is_no_company(why: str) -> None:
    bench = Bench()
    a = bench.add("a")
    bench.train(5, (a, 8))
    place = Placement("n", ("d1",), (0, 1), 1, shared=True) if why == "elsewhere" else DEVICE
    b = bench.add("" if "program" in why else "b", place, "preparing" if "prepares" in why else protocol.TRAINING)
    b.record.weight = 0.0 if why == "it pauses" else 1.0
    bench.train(10, (a, 4))
    assert a.slowdowns == {}


def test_nothing_is_measured_of_three_or_of_who_gives_way_or_on_other_cores() -> None:
    bench = Bench()
    a = bench.add("a")
    bench.train(5, (a, 8))
    b, c = bench.add("b"), bench.add("c")
    bench.train(10, (a, 1))
    assert a.slowdowns == {}, "which of the two is it?"
    c.phase = protocol.SAVING
    b.record.weight = 0.1
    bench.train(10, (a, 4))
    assert a.slowdowns == {}, "b does not do what it would"
    b.record.weight = 1.0
    a.record.placement = Placement("n", ("d0",), (0,), 1 << 30, shared=True)
    bench.train(10, (a, 4))
    assert a.slowdowns == {}, "it has other cores than it had alone"


def test_the_time_of_a_pause_is_not_counted() -> None:
    bench = Bench()
    a, b = bench.add("a"), bench.add("b")
    bench.train(5, (a, 4))
    a.weighed(0.0, bench.now)
    bench.now += 100.0
    a.weighed(1.0, bench.now)
    bench.train(5, (a, 4))
    b.phase = protocol.FINISHED
    bench.train(5, (a, 8))
    assert a.slowdowns == {"b": 2.0}


def test_a_try_that_begins_again_further_back_counts_from_there() -> None:
    bench = Bench()
    a = bench.add("a")
    bench.train(5, (a, 8))
    a.record.progress["step"] = 0
    bench.train(5, (a, 8))
    bench.add("b")
    bench.train(10, (a, 4))
    assert a.slowdowns == {"b": 2.0}


# -- on several nodes -----------------------------------------------------------------------------------------------


def gang(device: int, nodes: str = "mn", shared: bool = False) -> Placement:
    """An instance on each of these nodes, on its device of that number."""
    first, *others = [Placement(node, (f"{node}{device}",), (0, 1), shared=shared) for node in nodes]
    return Placement(first.node, first.devices, first.cpus, shared=shared, others=tuple(others))


A, B = Key("a", 2, 2), Key("b", 2, 2)


def pairs(bench: Bench) -> list[tuple[float, tuple[Key, Key] | None]]:
    return [(one.slowdown, one.pair) for one in bench.said]


def test_gangs_that_share_nodes_and_no_device_are_measured_as_they_are_placed() -> None:
    bench = Bench()
    a = bench.add("a", gang(0))
    bench.train(12, (a, 8))
    bench.add("b", gang(1, "no"))
    bench.train(9, (a, 4))
    assert bench.said == [], "a gang may be stopped for it, so it takes more to believe it than on a device"
    bench.train(10, (a, 4))
    assert pairs(bench) == [(2.0, (A, B))]
    assert a.slowdowns == {}, "nobody shares its device"
    bench.train(20, (a, 4))
    assert len(bench.said) == 1, "it is said again when it has changed"
    bench.train(60, (a, 2))
    assert len(bench.said) > 1 and bench.said[-1].slowdown > 2.5


def test_a_gang_may_be_alone_afterwards() -> None:
    bench = Bench()
    a, b = bench.add("a", gang(0)), bench.add("b", gang(1))
    bench.train(15, (a, 2), (b, 4))
    a.phase = protocol.FINISHED
    bench.train(15, (b, 10))
    assert pairs(bench) == [(2.5, (B, A))]


@pytest.mark.parametrize("why", ["on other nodes", "it pauses", "of no known program", "there are two", "weighed down"])
def test_of_such_company_nothing_is_said(why: str) -> None:
    bench = Bench()
    a = bench.add("a", gang(0))
    bench.train(15, (a, 8))
    b = bench.add("" if "program" in why else "b", gang(1, "op" if "other nodes" in why else "mn"))
    b.record.weight = {"it pauses": 0.0, "weighed down": 0.5}.get(why, 1.0)
    if why == "there are two":
        bench.add("c", gang(2))
    bench.train(30, (a, 4))
    assert bench.said == []


def test_runs_on_one_node_are_no_company_but_rates_are_compared_beside_the_same_ones_only() -> None:
    bench = Bench()
    a = bench.add("a", gang(0))
    bench.train(15, (a, 8))
    local = bench.add("local", Placement("m", ("m7",), (5,)))
    bench.train(15, (a, 6), (local, 3))
    bench.add("b", gang(1))
    bench.train(15, (a, 3), (local, 3))
    assert pairs(bench) == [(2.0, (A, B))], "not 8 / 3, for which the run beside it on its own node is to blame, too"


def test_gangs_that_share_devices_are_measured_there() -> None:
    bench = Bench()
    a = bench.add("a", gang(0, shared=True))
    bench.train(5, (a, 8))
    bench.add("b", gang(0, shared=True))
    bench.train(10, (a, 4))
    assert a.slowdowns == {"b": 2.0} and all(one.pair is None for one in bench.said)
