"""Jobs that want a kind of device, and jobs of which it is known how long they take on each."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.instructions import Hold, Launch
from prefect_gpu.scheduling.model.jobs import Estimate, Job, Request, Status
from prefect_gpu.scheduling.model.kinds import ENDS_FIRST, Wants, fits
from prefect_gpu.scheduling.placement.kernels.assignment import assign
from prefect_gpu.scheduling.state.demand import Demand
from prefect_gpu.units import parse_bounds

A100, T4 = "NVIDIA A100-SXM4-40GB", "Tesla T4"
GAINS = (("A100", 1.0), ("T4", 5.0))
HARDLY = (("A100", 1.0), ("T4", 1.2))


def node(*kinds: str, name: str = "n", links: dict[int, list[int]] | None = None) -> Node:
    capability = {"A100": (8, 0), A100: (8, 0), "T4": (7, 5), T4: (7, 5)}
    devices = tuple(
        Device(
            f"{name}{at}", kind, 16 << 30, capability=capability.get(kind),
            links=tuple(f"{name}{other}" for other in (links or {}).get(at, [])),
        )
        for at, kind in enumerate(kinds)
    )  # fmt: skip
    return Node(name, devices, tuple(range(8)))


def scheduler(*nodes: Node, profile: str = "adaptive", preemption: Preemption = Preemption.NONE) -> Scheduler:
    made = Scheduler(profile, Abilities(preemption))
    made.handle(ev.NodesChanged(nodes), 0.0)
    return made


def submit(made: Scheduler, name: str, request: Request, estimate: Estimate | None = None, now: float = 0.0) -> object:
    """What is decided about a job at once: its devices, or why it waits."""
    event = ev.JobSubmitted(name, request, "q", now, now, name, estimate or Estimate())
    told = [one for one in made.handle(event, now) if one.job == name]
    return told[-1].placement.all_devices if isinstance(told[-1], Launch) else told[-1]


def wanting(**wants: object) -> Request:
    return Request(wants=Wants(**wants))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "kind", "fit"),
    [
        ("A100", A100, True),
        ("a100 40GiB", A100, True),
        ("A100-40GB", A100, True),
        ("A10", A100, False),
        ("A100 80GB", A100, False),
        ("a100 80 gb", "NVIDIA A100 80GB PCIe", True),
        ("T4", T4, True),
        ("A100", f"{A100} MIG 1g.5gb", False),
        ("1g.5gb", f"{A100} MIG 1g.5gb", True),
        ("A100 MIG", f"{A100} MIG 1g.5gb", True),
        ("", A100, False),
    ],
)
def test_a_name_fits_if_all_its_words_do(wanted: str, kind: str, fit: bool) -> None:
    assert fits(wanted, kind) is fit


def test_jobs_get_the_first_kind_of_their_list_that_has_room() -> None:
    made = scheduler(node("T4", A100))
    either = wanting(kinds=("H100", "A100", "T4"))
    assert submit(made, "a", either) == ("n1",)
    assert submit(made, "b", either) == ("n0",)
    assert isinstance(submit(made, "c", either), Hold)
    other = scheduler(node("T4", A100))
    assert submit(other, "a", wanting(without=("A100",))) == ("n0",)
    assert submit(other, "b", wanting(capability=parse_bounds(">=8.0"))) == ("n1",)


@pytest.mark.parametrize("profile", ["adaptive", "fifo", "easy", "srtf"])
def test_no_profile_gives_a_job_what_it_does_not_want(profile: str) -> None:
    made = scheduler(node("T4", "T4", A100), node("T4", "T4", name="m"), profile=profile, preemption=Preemption.INSTANT)
    assert submit(made, "a", wanting(kinds=("A100",))) == ("n2",)
    assert isinstance(submit(made, "b", wanting(kinds=("A100",))), Hold)
    assert submit(made, "c", replace(wanting(kinds=("T4",)), gpus=2, preemptible=True)) in (("n0", "n1"), ("m0", "m1"))
    made.state.check_invariants()


def test_room_is_made_for_a_kind_on_a_node_of_several() -> None:
    made = scheduler(node("T4", A100), preemption=Preemption.INSTANT)
    long = replace(wanting(kinds=("A100",)), preemptible=True)
    assert submit(made, "long", long, Estimate(100_000.0, restart_s=1.0)) == ("n1",)
    assert submit(made, "short", replace(long, kind="s"), Estimate(10.0, restart_s=1.0), 3600.0) == ("n1",)


def test_what_no_node_has_is_said_at_once() -> None:
    made = scheduler(node("T4", "T4", A100))
    for wants, words in (
        (wanting(kinds=("A10O",)), ["gpu_kind='A10O'", f"1 x {A100}, 2 x T4", "did you mean 'A100'?"]),
        (wanting(kinds=("H100",)), ["gpu_kind='H100'", "ask for one of these"]),
        (wanting(capability=parse_bounds(">=9")), ["compute_capability='>=9.0'", "at most 8.0"]),
        (replace(wanting(kinds=("A100",)), gpus=2), ["gpus=2", "the 1 of the kind that it asks for"]),
        (replace(wanting(nvlink=True), gpus=2), ["nvlink=True with gpus=2", "none"]),
    ):
        hold = submit(made, repr(wants), wants)
        assert isinstance(hold, Hold) and hold.code == "never"
        assert all(word in hold.reason for word in words), hold.reason


def test_devices_are_linked_and_the_larger_group_stays_whole() -> None:
    made = scheduler(node(*["A100"] * 6, links={0: [1, 2], 1: [0], 2: [0], 4: [5], 5: [4]}))
    pair = replace(wanting(nvlink=True), gpus=2)
    assert submit(made, "pair", pair) == ("n4", "n5")
    assert submit(made, "three", replace(pair, gpus=3)) == ("n0", "n1", "n2")
    assert isinstance(submit(made, "more", pair), Hold), "n3 is linked with nobody"
    gang = scheduler(node(*["A100"] * 3, links={0: [2], 2: [0]}))
    assert submit(gang, "gang", Request(workers=2, wants=Wants(nvlink=True))) == ("n0", "n2")


def told(seconds: float, by_kind: tuple[tuple[str, float], ...]) -> Estimate:
    return Estimate(seconds, kind="A100", by_kind=by_kind)


def test_the_fast_device_goes_to_whom_it_helps_most() -> None:
    made = scheduler(node("A100", "T4"))
    jobs = [
        ev.JobSubmitted("hardly", Request(kind="h"), "q", 0.0, 0.0, "hardly", told(100.0, HARDLY)),
        ev.JobSubmitted("gains", Request(kind="g"), "q", 0.0, 0.0, "gains", told(100.0, GAINS)),
    ]
    placed = {
        one.job: one.placement.devices for one in made.handle(ev.Together(tuple(jobs)), 0.0) if isinstance(one, Launch)
    }
    assert placed == {"hardly": ("n1",), "gains": ("n0",)}


def test_a_job_waits_for_a_fast_device_only_while_that_ends_it_sooner() -> None:
    for left_s, words in ((50.0, "ends sooner on A100"), (5000.0, "")):
        made = scheduler(node("A100", "T4"))
        assert submit(made, "first", Request(kind="f"), told(left_s, GAINS)) == ("n0",)
        found = submit(made, "second", wanting(kinds=("A100", "T4"), choice=ENDS_FIRST), told(100.0, GAINS))
        if words:
            assert isinstance(found, Hold) and words in found.reason and "T4" in found.reason
        else:
            assert found == ("n1",)


def test_seconds_are_those_of_the_kind_on_which_a_job_runs() -> None:
    job = Job("j", Request(), "q", 0.0, 0.0, estimate=told(100.0, GAINS), status=Status.STOPPING)
    job.done_s = 40.0
    job.expect(job.estimate.counted_on("T4"))
    assert (job.estimate.service_s, job.done_s) == (500.0, 200.0)
    job.expect(job.estimate.counted_on("A100"))
    assert (job.estimate.service_s, job.done_s) == pytest.approx((100.0, 40.0))
    made = scheduler(node("T4"))
    submit(made, "a", Request(), told(100.0, GAINS))
    assert made.state.jobs["a"].remaining_s(0.0) == 500.0


def test_a_kind_that_many_gain_from_has_a_price() -> None:
    demand = Demand()
    assert demand.prices({"A100": 1, "T4": 3}) == {"A100": 0.0, "T4": 0.0}
    for number, factors in enumerate(itertools.islice(itertools.cycle((GAINS, HARDLY)), 40)):
        job = Job(str(number), Request(kind=str(factors)), "q", 0.0, 0.0, estimate=told(100.0, factors))
        demand.submitted(job, 80.0 * number)
    prices = demand.prices({"A100": 1, "T4": 3})
    assert prices["A100"] > 4 * prices["T4"] > 0.0


def test_an_assignment_costs_least() -> None:
    chance = np.random.default_rng(0)
    for rows, columns in ((1, 1), (3, 7), (12, 12), (20, 90)):
        costs = chance.random((rows, columns))
        found, best = assign(costs), linear_sum_assignment(costs)
        assert len(set(found)) == rows
        assert costs[range(rows), found].sum() == pytest.approx(costs[best].sum())
    with pytest.raises(ValueError, match="2 rows"):
        assign(np.ones((2, 1)))


@pytest.mark.parametrize("wants", [None, Wants(kinds=("A100", "T4")), Wants(kinds=("A100", "T4"), choice=ENDS_FIRST)])
def test_a_job_that_no_kind_alone_has_devices_for_gets_those_of_several(wants: Wants | None) -> None:
    made = scheduler(node("A100", "A100", "T4", "T4"))
    known = Estimate(service_s=60.0, kind="A100", by_kind=GAINS)
    assert submit(made, "a", Request(4, wants=wants), known) == ("n0", "n1", "n2", "n3")


def test_a_job_does_not_wait_for_a_kind_that_has_not_enough_devices_on_one_node() -> None:
    half = ("A100", "A100", "T4", "T4")
    made = scheduler(node(*half, name="a"), node(*half, name="b"), node(*["T4"] * 4, name="c"))
    known = Estimate(service_s=60.0, kind="A100", by_kind=GAINS)
    assert submit(made, "a", Request(4), known) == ("c0", "c1", "c2", "c3")


def test_a_job_that_shares_joins_nobody_on_a_device_that_it_does_not_want() -> None:
    made = scheduler(node("T4", "A100"))
    shares = Request(gpu_memory_bytes=4 << 30, exclusive=False)
    assert submit(made, "a", replace(shares, wants=Wants(kinds=("T4",)))) == ("n0",)
    assert submit(made, "b", wanting(kinds=("A100",))) == ("n1",)
    assert isinstance(submit(made, "c", replace(shares, wants=Wants(kinds=("A100",)))), Hold)
