"""Runs that have converged make way: what the reaction does on two devices that runs share."""

from __future__ import annotations

import pytest

from prefect_gpu.papers.specon.rebalance import rebalance
from prefect_gpu.papers.specon.round_robin import RoundRobin
from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import EVERYTHING, NOTHING_SPECIAL, Abilities, Preemption
from prefect_gpu.scheduling.model.cluster import Device, Node, Quotas
from prefect_gpu.scheduling.model.instructions import Instruction, Launch, Move, SetShare
from prefect_gpu.scheduling.model.jobs import Request, Status
from prefect_gpu.scheduling.placement.base import PlacementPolicy
from prefect_gpu.scheduling.placement.spread import Spread
from prefect_gpu.scheduling.profiles import Profile
from prefect_gpu.scheduling.sharing.speculation import Speculation

SHARES = Request(gpu_memory_bytes=1, exclusive=False, preemptible=True)
FALLS = [1.0, 0.5, 0.25, 0.12, 0.06, 0.03, 0.01, 0.0, -0.1]
FLATTENS = [1.0, 0.1, 0.095, 0.091, 0.088, 0.086, 0.085, 0.0845, 0.0842]


class Cluster:
    """Devices ``d0``, ``d1`` and so on, one to a node, and runs that report a loss every 30 seconds."""

    def __init__(
        self,
        reaction: Speculation,
        devices: int = 2,
        able: Abilities = EVERYTHING,
        placement: PlacementPolicy | None = None,
    ) -> None:
        profile = Profile("test", placement=placement or RoundRobin(), reactions=(reaction,))
        self.scheduler = Scheduler(profile, able)
        self.said: list[Instruction] = []
        self.now = 0.0
        self.send(ev.NodesChanged(tuple(Node(f"n{d}", (Device(f"d{d}", "x", 100),), ()) for d in range(devices))))

    def send(self, event: ev.Event) -> None:
        said = self.scheduler.handle(event, self.now)
        self.scheduler.state.check_invariants()
        self.said += said

    def run(self, *jobs: str, request: Request = SHARES) -> None:
        for job in jobs:
            self.send(ev.JobSubmitted(job, request, "q", self.now, self.now))
            self.send(ev.PhaseEntered(job, Status.TRAINING))

    def report(self, **losses: list[float]) -> None:
        for at in range(max(map(len, losses.values()))):
            self.now += 30.0
            for job, values in losses.items():
                if at < len(values):
                    self.send(ev.LossReported(job, values[at]))
                    self.send(ev.PhaseEntered(job, Status.TRAINING))  # one that moved trains again

    def of(self, kind: type) -> list[tuple[str, object]]:
        """What was said of one kind: (job, where to or which share)."""
        return [
            (one.job, one.placement.devices[0] if isinstance(one, Launch | Move) else one.weight)
            for one in self.said
            if isinstance(one, kind) and isinstance(one, Launch | Move | SetShare)
        ]


def printed() -> Speculation:
    return Speculation(learners=1, evens_out=rebalance, favour=1.0)


def test_runs_are_placed_in_turns() -> None:
    cluster = Cluster(printed(), devices=3)
    cluster.run("a", "b", "c", "d")
    assert cluster.of(Launch) == [("a", "d0"), ("b", "d1"), ("c", "d2"), ("d", "d0")]


def test_runs_go_to_idle_devices_and_then_where_nobody_has_come_for_longest() -> None:
    cluster = Cluster(printed(), placement=Spread())
    cluster.run("a", "b")
    cluster.send(ev.JobEnded("b", "completed"))
    cluster.run("c", "d")
    assert cluster.of(Launch) == [("a", "d0"), ("b", "d1"), ("c", "d1"), ("d", "d0")]


def test_a_converged_run_makes_way_for_one_that_learns() -> None:
    cluster = Cluster(printed())
    cluster.run("a", "b", "c")  # a and c share d0
    cluster.send(ev.JobEnded("b", "completed"))
    cluster.report(a=FLATTENS, c=FALLS)
    assert cluster.of(Move) == [("a", "d1")]
    (move,) = [one for one in cluster.said if isinstance(one, Move)]
    assert move.reason == "it has converged and moves away: d0 has score 3, d1 0"


@pytest.mark.parametrize(
    ("why", "able", "request_"),
    [
        ("nobody can be moved here", NOTHING_SPECIAL, SHARES),
        ("the runs do not allow it", EVERYTHING, Request(gpu_memory_bytes=1, exclusive=False)),
    ],
)
def test_nobody_is_moved_against_the_rules(why: str, able: Abilities, request_: Request) -> None:
    cluster = Cluster(Speculation(favour=1.0), able=able)
    cluster.run("a", "b", "c", request=request_)
    cluster.send(ev.JobEnded("b", "completed"))
    cluster.report(a=FLATTENS, c=FALLS)
    assert cluster.of(Move) == [], why


def test_an_idle_device_is_left_to_those_who_wait() -> None:
    cluster = Cluster(Speculation(favour=1.0))
    cluster.run("a", "b", "c")
    cluster.send(ev.QuotasChanged(Quotas(pool_paused=True)))
    cluster.run("waits")
    cluster.send(ev.JobEnded("b", "completed"))
    cluster.report(a=FLATTENS, c=FALLS)
    assert cluster.of(Move) == []


def test_a_run_without_losses_is_left_alone_and_counts_as_learning() -> None:
    cluster = Cluster(printed())
    cluster.run("a", "b", "c")
    cluster.send(ev.JobEnded("b", "completed"))
    cluster.report(a=FLATTENS)
    assert cluster.of(Move) == [("a", "d1")]  # it makes way for c


def test_once_all_have_converged_the_devices_are_evened_out() -> None:
    cluster = Cluster(printed())
    cluster.run("a", "b", "c", "d")
    cluster.report(a=FLATTENS, b=FLATTENS, c=FLATTENS, d=FLATTENS)
    cluster.send(ev.JobEnded("b", "completed"))
    cluster.send(ev.JobEnded("d", "completed"))
    assert [where for _, where in cluster.of(Move)] == ["d1"]


def test_an_idle_device_takes_a_run_at_once_and_the_one_that_learns_least() -> None:
    cluster = Cluster(Speculation(favour=1.0))
    cluster.run("a", "b", "c")
    cluster.report(a=FALLS[:5], c=FLATTENS[:5])
    cluster.send(ev.JobEnded("b", "completed"))
    assert cluster.of(Move) == [("c", "d1")]


def test_the_share_of_a_run_grows_as_it_converges() -> None:
    cluster = Cluster(Speculation(evens_out=rebalance, favour=4.0), devices=1)
    cluster.run("a", "b")
    cluster.report(a=FLATTENS, b=FALLS)
    assert cluster.of(SetShare) == [("b", 1 / 4), ("b", 1 / 16)]
    cluster.send(ev.JobEnded("a", "completed"))
    assert cluster.of(SetShare)[-1] == ("b", 1.0)


def test_a_factor_below_one_demotes_converged_runs() -> None:
    cluster = Cluster(Speculation(evens_out=rebalance, favour=0.5), devices=1)
    cluster.run("a", "b")
    cluster.report(a=FLATTENS, b=FALLS)
    assert cluster.of(SetShare) == [("a", 0.5), ("a", 0.25)]


def test_shares_are_left_alone_where_they_cannot_be_set() -> None:
    cluster = Cluster(Speculation(), devices=1, able=Abilities(Preemption.INSTANT))
    cluster.run("a", "b")
    cluster.report(a=FLATTENS, b=FALLS)
    assert cluster.of(SetShare) == []


@pytest.mark.parametrize(("knob", "value"), [("favour", 0.0), ("favour", -1.0), ("learners", 0)])
def test_a_bad_knob_is_named(knob: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{knob} is {value}"):
        Speculation(**{knob: value})  # type: ignore[arg-type]
