"""How many allocations there should be: what holds whatever waits and whatever there is."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.runtime.drivers.base import Wanted
from prefect_gpu.runtime.drivers.slurm.demand import Decision, Held, decide
from prefect_gpu.runtime.drivers.slurm.parts import Part
from prefect_gpu.runtime.drivers.slurm.shapes import Plan, Shape
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.scheduling.model.kinds import Wants

SMALL = Shape("small", 60, (Part(gres="gpu:2", cpus=8),), maximum=4)
LARGE = Shape("large", 600, (Part(nodes=2, gres="gpu:4", cpus=8),), maximum=2)
PLAN = Plan((SMALL, LARGE), idle_s=100.0, worth_s=60.0)

requests = st.builds(Request, gpus=st.integers(1, 5), workers=st.integers(1, 6))
waiting = st.lists(st.builds(Wanted, requests, st.none() | st.floats(0, 1e4), st.floats(0, 7200)), max_size=12)
limits = st.tuples(st.integers(0, 3), st.integers(0, 3))
plans = st.builds(
    lambda small, large: dataclasses.replace(
        PLAN,
        shapes=tuple(
            dataclasses.replace(shape, minimum=least, maximum=max(1, least + more))
            for shape, (least, more) in ((SMALL, small), (LARGE, large))
        ),
    ),
    limits,
    limits,
)
allocations = st.lists(
    st.builds(
        Held,
        name=st.text("abcdef", min_size=3, max_size=6),
        shape=st.sampled_from(["small", "large", "forgotten"]),
        busy=st.booleans(),
        idle_s=st.floats(0, 500),
        left_s=st.floats(0, 36000) | st.just(math.inf),
    ),
    max_size=8,
    unique_by=lambda one: one.name,
)


def run(gpus: int = 1, expected_s: float | None = None, **more: int) -> Wanted:
    return Wanted(Request(gpus=gpus, **more), expected_s)


def of_kind(shape: Shape, kind: str) -> Shape:
    return dataclasses.replace(shape, parts=tuple(dataclasses.replace(part, gpu_kind=kind) for part in shape.parts))


def after(plan: Plan, held: list[Held], decision: Decision) -> list[Held]:
    """What there is once the decision has been carried out."""
    new = [Held(f"new-{name}-{n}", name) for name, count in decision.submit.items() for n in range(count)]
    return [one for one in held if one.name not in decision.give_back] + new


@given(plans, waiting, allocations)
def test_limits_hold_and_nobody_who_works_is_sent_away(plan: Plan, runs: list[Wanted], held: list[Held]) -> None:
    decision = decide(plan, runs, held)
    known = {one.name: one for one in held}
    assert not any(known[name].busy for name in decision.give_back)
    assert len(set(decision.give_back)) == len(decision.give_back)
    left = after(plan, held, decision)
    for shape in plan.shapes:
        before, now = (sum(one.shape == shape.name for one in some) for some in (held, left))
        assert now <= max(before, shape.maximum)
        assert now >= min(before, shape.minimum) or any(known[name].left_s < 7200 for name in decision.give_back)
        assert decision.submit.get(shape.name, 1) > 0


@given(plans, waiting, allocations)
def test_it_comes_to_rest(plan: Plan, runs: list[Wanted], held: list[Held]) -> None:
    """What was decided once is enough: the same queue asks for nothing more."""
    left = after(plan, held, decide(plan, runs, held))
    assert decide(plan, runs, left).submit == {}


@given(plans, waiting)
def test_whoever_waits_and_fits_a_shape_gets_one(plan: Plan, runs: list[Wanted]) -> None:
    decision = decide(plan, runs, [])
    for one in runs:
        shape = plan.shape_for(one)
        if shape is not None:
            assert decision.submit.get(shape.name, 0) >= shape.taken(one.request)


@given(plans, waiting, st.lists(st.sampled_from(["small", "large"]), max_size=4))
def test_more_work_never_asks_for_less(plan: Plan, runs: list[Wanted], shapes: list[str]) -> None:
    held = [Held(str(number), name, busy=True) for number, name in enumerate(shapes)]
    fewer, all_ = (decide(plan, some, held).submit for some in (runs[:-1], runs))
    assert all(all_.get(name, 0) >= count for name, count in fewer.items())


@pytest.mark.parametrize(
    ("runs", "held", "submit"),
    [
        ([], [], {}),
        ([run()], [], {"small": 1}),
        ([run()] * 2, [], {"small": 1}),  # two devices
        ([run()] * 3, [], {"small": 2}),
        ([run(expected_s=3.0)] * 40, [], {"small": 1}),  # 40 x 3 s on two devices: a minute
        ([run(expected_s=6.0)] * 40, [], {"small": 2}),
        ([run(expected_s=3.0)], [Held("a", "small", busy=True)], {}),  # it waits for what is there
        ([run(expected_s=3.0)], [Held("a", "small", busy=True, used=True)], {"small": 1}),  # whose node is drained
        ([run()], [Held("a", "small", busy=True)], {"small": 1}),
        ([run()], [Held("a", "small")], {}),  # it is on its way, or free
        ([run()] * 100, [], {"small": 4}),
        ([run(gpus=3)], [], {"large": 1}),
        ([run(gpus=4, workers=4)], [], {"large": 2}),
        ([run(gpus=5)], [], {}),  # fits none
    ],
)
def test_as_many_as_the_work_is_worth(runs: list[Wanted], held: list[Held], submit: dict[str, int]) -> None:
    assert decide(PLAN, runs, held).submit == submit


def test_who_wants_a_kind_of_device_gets_a_shape_of_that_kind() -> None:
    small = of_kind(SMALL, "NVIDIA T4")
    plan = dataclasses.replace(PLAN, shapes=(small, of_kind(LARGE, "NVIDIA A100-SXM4-80GB")))
    wants = Wanted(Request(wants=Wants(kinds=("A100",))))
    assert decide(plan, [wants, run()], []).submit == {"large": 1, "small": 1}
    assert decide(plan, [Wanted(Request(wants=Wants(kinds=("H100",))))], []).submit == {}


def test_who_needs_longer_than_a_shape_is_there_gets_a_longer_one() -> None:
    assert decide(PLAN, [Wanted(Request(), None, needs_s=4000.0)], []).submit == {"large": 1}


def test_the_longest_idle_goes_first_and_the_minimum_stays() -> None:
    plan = dataclasses.replace(PLAN, shapes=(dataclasses.replace(SMALL, minimum=1),))
    held = [Held("a", "small", idle_s=120.0), Held("b", "small", idle_s=300.0), Held("c", "small", idle_s=50.0)]
    assert decide(plan, [], held).give_back == ("b", "a")
    assert decide(plan, [], held[:1]).give_back == ()


def test_one_that_is_about_to_end_makes_room_for_its_successor() -> None:
    plan = dataclasses.replace(PLAN, shapes=(dataclasses.replace(SMALL, maximum=1),))
    ending = Held("a", "small", left_s=60.0)
    decision = decide(plan, [Wanted(Request(), None, needs_s=120.0)], [ending])
    assert (decision.submit, decision.give_back) == ({"small": 1}, ("a",))


MIXED = Shape("mixed", 60, (Part(nodes=2, gres="gpu:2", cpus=8), Part(nodes=1, cpus=4)), maximum=2)


@pytest.mark.parametrize(
    ("request_", "taken"),
    [
        (Request(gpus=1), 1 / 4),
        (Request(gpus=2), 1 / 2),
        (Request(gpus=2, workers=2, servers=4), 1.0),  # the servers are where there are no GPUs
        (Request(gpus=2, workers=2, servers=5), 7 / 6),
        (Request(gpus=2, workers=3), 3 / 2),  # and workers are not
        (Request(gpus=1, cpus=4, workers=4, servers=1), 1.0),
        (Request(gpus=1, cpus=5), 1 / 2),  # a core for four of eight: one instance on each node
        (Request(gpus=0), 1 / 20),
        (Request(gpus=3), math.inf),
    ],
)
def test_nodes_without_gpus_hold_parameter_servers(request_: Request, taken: float) -> None:
    assert MIXED.taken(request_) == pytest.approx(taken)
    assert MIXED.holds(request_) == (taken <= 2)


ONE_EACH = dataclasses.replace(PLAN, one_run=True)


@pytest.mark.parametrize(
    ("runs", "held", "submit", "give_back"),
    [
        ([run(expected_s=1.0)] * 3, [], {"small": 3}, ()),  # short ones, too
        ([run()] * 9, [], {"small": 4}, ()),
        ([run()], [Held("a", "small", busy=True, used=True)], {"small": 1}, ()),
        ([run()], [Held("a", "small")], {}, ()),  # it is on its way
        ([], [Held("a", "small", busy=True, used=True)], {}, ()),
        ([run()], [Held("a", "small", used=True)], {"small": 1}, ("a",)),  # its run has ended
        ([run(gpus=1, workers=2)], [], {"small": 1}, ()),
        ([run(gpus=2, workers=2)], [], {"large": 1}, ()),
        ([run(gpus=4, workers=4)], [], {}, ()),  # no one allocation holds it
    ],
)
def test_each_run_has_an_allocation_of_its_own(
    runs: list[Wanted], held: list[Held], submit: dict[str, int], give_back: tuple[str, ...]
) -> None:
    decision = decide(ONE_EACH, runs, held)
    assert (decision.submit, decision.give_back) == (submit, give_back)
