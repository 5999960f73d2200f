"""Runs on several nodes that slow each other down: one is stopped, and goes elsewhere, away from that one."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_gpu.papers.deepshare.profiles import greedy, hybrid
from prefect_gpu.papers.deepshare.traffic import TRAFFIC
from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling import record as log
from prefect_gpu.scheduling.forecast import forecast
from prefect_gpu.scheduling.interference.preempt_on_slowdown import MOST_STOPS
from prefect_gpu.scheduling.interference.sensitivity import Key, SensitivityTable, Traffic, placed_key
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.cluster import Device, Node, Quotas
from prefect_gpu.scheduling.model.instructions import Hold, Instruction, Launch, Preempt
from prefect_gpu.scheduling.model.jobs import Estimate, Request, Status
from tests.support import examples

GRACEFUL = Abilities(Preemption.GRACEFUL)
PER_NODE = 4
LOUD = Key("loud", 6, 3)


class Cluster:
    """Nodes of four devices, and gangs of three instances with two each: they need three nodes."""

    def __init__(self, nodes: int = 6, network_bps: float = 0.0, greedily: bool = False) -> None:
        self.table = SensitivityTable()
        self.scheduler = Scheduler((greedy if greedily else hybrid)(self.table), GRACEFUL)
        self.now = 0.0
        self.log: list[str] = []
        shapes = [tuple(Device(f"{n}{g}", "test", 8) for g in range(PER_NODE)) for n in "abcdef"[:nodes]]
        self.handle(ev.NodesChanged(tuple(Node(d[0].id[0], d, (), network_bps=network_bps) for d in shapes)))

    def handle(self, event: ev.Event) -> list[Instruction]:
        self.now += 1.0
        self.log.append(log.encode(event, self.now))
        said = self.scheduler.handle(event, self.now)
        self.scheduler.state.check_invariants()
        return said

    def submit(self, job: str, program: str = "loud", **asks: object) -> list[Instruction]:
        request = Request(**{"gpus": 2, "workers": 3, "kind": program, "preemptible": True, **asks})  # type: ignore[arg-type]
        return self.handle(ev.JobSubmitted(job, request, "q", self.now, 0.0, job, Estimate(service_s=100.0)))

    def measure(self, job: str, beside: str, slowdown: float) -> list[Instruction]:
        return self.handle(ev.SlowdownMeasured(job, slowdown, pair=(self.key(job), self.key(beside))))

    def key(self, job: str) -> Key:
        found = self.scheduler.state.running[job]
        assert found.placement is not None
        return placed_key(found.request, found.placement)

    @property
    def places(self) -> dict[str, str]:
        running = self.scheduler.state.running.values()
        return {job.id: "".join(sorted(job.placement.nodes)) for job in running if job.placement}


def side_by_side(nodes: int = 6, **asks: object) -> Cluster:
    """Gangs one and two on the same three nodes, of which nothing was known; the other nodes are nearly full."""
    cluster = Cluster(nodes)
    for number in range(nodes - 3):
        cluster.submit(f"filler {number}", "", gpus=3, workers=1)
    for job, program in (("one", "loud"), ("two", "other")):
        cluster.submit(job, program, **asks)
        cluster.handle(ev.PhaseEntered(job, Status.TRAINING))
    assert cluster.places["one"] == cluster.places["two"]
    return cluster


def stopped(said: list[Instruction]) -> list[str]:
    return [one.job for one in said if isinstance(one, Preempt)]


def test_one_that_is_slowed_down_too_much_goes_elsewhere() -> None:
    cluster = side_by_side()
    for number in range(3):
        cluster.handle(ev.JobEnded(f"filler {number}", "ended"))
    said = cluster.measure("one", "two", 1.8)
    assert stopped(said) == ["one"]
    assert "slow it down by a factor of 1.80; the limit is 1.67" in said[0].reason
    cluster.handle(ev.JobStopped("one"))
    assert set(cluster.places["one"]).isdisjoint(cluster.places["two"])


def test_it_waits_for_room_elsewhere_even_where_going_back_would_be_worth_it() -> None:
    cluster = side_by_side()
    assert stopped(cluster.measure("one", "two", 1.8)) == ["one"]
    [held] = [one for one in cluster.handle(ev.JobStopped("one")) if isinstance(one, Hold)]
    assert held.code == "contention" and "it and two slowed each other down" in held.reason
    assert cluster.places.keys() == {"filler 0", "filler 1", "filler 2", "two"}
    cluster.handle(ev.JobEnded("two", "ended"))
    assert "one" in cluster.places, "whom it was parted from is gone"


def test_a_forecast_knows_who_was_parted() -> None:
    cluster = side_by_side()
    cluster.measure("one", "two", 1.8)
    cluster.handle(ev.JobStopped("one"))
    found = forecast(cluster.scheduler, cluster.now)
    ends = {job: outlook.end for job, outlook in found.items() if job != "one"}
    assert found["one"].start == ends["two"], "there is room beside it, and the fillers leave too few nodes"


def test_where_nothing_else_could_ever_hold_it_it_may_go_back() -> None:
    cluster = side_by_side(nodes=3)
    assert stopped(cluster.measure("one", "two", 1.8)) == ["one"]
    cluster.handle(ev.JobStopped("one"))
    assert cluster.places["one"] == cluster.places["two"]
    assert stopped(cluster.measure("one", "two", 1.8)) == [], "now it was foreseen"


def test_what_was_remembered_keeps_apart_from_the_beginning() -> None:
    cluster = Cluster()
    cluster.handle(ev.ContentionLearned(((LOUD, LOUD, 2.0), (LOUD, LOUD, math.inf))))
    for number in range(3):
        cluster.submit(f"filler {number}", "", gpus=3, workers=1)
    cluster.submit("one")
    [held] = [one for one in cluster.submit("two") if isinstance(one, Hold)]
    assert held.code == "contention"


def test_what_was_found_out_since_they_are_together_was_not_foreseen() -> None:
    cluster = side_by_side()
    assert stopped(cluster.measure("one", "two", 1.6)) == []
    assert stopped(cluster.measure("one", "two", 1.7)) == ["one"], "of 1.6 the table knows by now"


@pytest.mark.parametrize(
    "why", ["too little", "no number", "may not be stopped", "left meanwhile", "not yet training", "another limit"]
)
def test_nobody_is_stopped_who(why: str) -> None:
    cluster = side_by_side(preemptible=why != "may not be stopped")
    pair = (cluster.key("one"), cluster.key("two"))
    if why == "left meanwhile":
        cluster.handle(ev.JobEnded("two", "ended"))
    if why == "not yet training":
        cluster.handle(ev.PhaseEntered("two", Status.PREPARING))
    if why == "another limit":
        cluster.handle(ev.QuotasChanged(Quotas(slowdown_limit=2.5)))
    slowdown = {"too little": 1.6, "no number": math.inf}.get(why, 2.0)
    assert stopped(cluster.handle(ev.SlowdownMeasured("one", slowdown, pair=pair))) == []


def test_a_lower_limit_keeps_apart_what_is_known_to_exceed_it() -> None:
    cluster = side_by_side()
    cluster.handle(ev.QuotasChanged(Quotas(slowdown_limit=1.2)))
    assert stopped(cluster.measure("one", "two", 1.3)) == ["one"]
    for number in range(3):
        cluster.handle(ev.JobEnded(f"filler {number}", "ended"))
    cluster.handle(ev.JobStopped("one"))
    assert set(cluster.places["one"]).isdisjoint(cluster.places["two"])


def test_the_rule_alone_learns_and_stops_nobody() -> None:
    cluster = Cluster(3, greedily=True)
    for job in ("one", "two"):
        cluster.submit(job)
        cluster.handle(ev.PhaseEntered(job, Status.TRAINING))
    assert stopped(cluster.measure("one", "two", 4.0)) == []
    assert cluster.table.ratio(LOUD, LOUD) == 0.35


def test_an_unknown_pair_is_predicted_from_what_was_measured_of_its_traffic_else_from_its_category() -> None:
    cluster = Cluster()
    cluster.submit("one", "mine", category="nlp")
    cluster.submit("two", "theirs", category="speech")
    mine, theirs = Key("mine", 6, 3), Key("theirs", 6, 3)
    assert cluster.table.ratio(mine, theirs) == 1.0, "nothing is known of speech"
    supposed = cluster.table.ratio(mine, mine)
    assert supposed == SensitivityTable(traffic=TRAFFIC).ratio(*(Key("Transformer-XL", 6, 3),) * 2)
    cluster.handle(ev.ContentionLearned(traffic=(("mine", Traffic(3e9, 5.0)), ("theirs", Traffic(3e9, 5.0)))))
    measured = cluster.table.ratio(mine, theirs)
    assert measured == cluster.table.ratio(mine, mine) < supposed
    assert Cluster(network_bps=1e9).table.ratio(mine, mine) == 1.0, "links alone say nothing"
    cluster.handle(ev.NodesChanged(tuple(Node(n, (), (), network_bps=1e9) for n in "ab")))
    assert cluster.table.ratio(mine, mine) < measured, "the link is narrower than was supposed"


def test_events_with_pairs_survive_a_log() -> None:
    for event in (
        ev.SlowdownMeasured("one", 2.0, pair=(LOUD, LOUD)),
        ev.SlowdownMeasured("one", 2.0, "beside"),
        ev.ContentionLearned(((LOUD, LOUD, 1.5),), (("loud", Traffic(1.0, 2.0)),)),
    ):
        assert log.decode(log.encode(event, 1.0)) == (event, 1.0)


names = st.sampled_from(["j0", "j1", "j2", "j3", "j4"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), names, st.sampled_from([(2, 3), (1, 6), (3, 1), (4, 1), (3, 2)])),
        st.tuples(st.just("train"), names, st.none()),
        st.tuples(st.just("end"), names, st.none()),
        st.tuples(st.just("measure"), names, st.sampled_from([1.0, 1.5, 1.7, 1.9, 2.5])),
        st.tuples(st.just("measure"), names, st.sampled_from([1.7, 1.9, 2.5])),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=examples(0.6))
@given(steps, st.sampled_from([3, 4, 6]))
def test_whoever_was_parted_stays_so_while_there_is_another_way_and_nobody_is_stopped_often(
    plan: list[tuple[str, str, object]], nodes: int
) -> None:
    cluster = Cluster(nodes)
    shapes: dict[str, tuple[int, int]] = {}
    where: dict[str, set[str]] = {}  # as the instructions say
    parted: set[frozenset[str]] = set()
    stops: Counter[str] = Counter()
    everything: list[list[Instruction]] = []

    def follow(said: list[Instruction], blamed: list[str]) -> list[str]:
        """Check the instructions one by one against what they may be."""
        everything.append(said)
        for one in said:
            if isinstance(one, Preempt):
                stops[one.job] += 1
                del where[one.job]
                parted.update(frozenset((one.job, other)) for other in blamed)
            elif isinstance(one, Launch):
                others = [other for other in where if frozenset((one.job, other)) in parted]
                taken = set().union(*(where[other] for other in others)) if others else set()
                where[one.job] = set(one.placement.nodes)
                gpus, workers = shapes[one.job]
                left = nodes - len(taken)
                another_way = any(
                    workers % width == 0 and workers // width * gpus <= PER_NODE for width in range(1, left + 1)
                )
                assert not another_way or taken.isdisjoint(where[one.job])
        return stopped(said)

    for what, job, detail in plan:
        running = cluster.scheduler.state.running
        leaves = []
        if what == "submit" and job not in cluster.scheduler.state.jobs and isinstance(detail, tuple):
            shapes[job] = detail
            follow(cluster.submit(job, "loud", gpus=detail[0], workers=detail[1]), [])
        elif what == "train":
            follow(cluster.handle(ev.PhaseEntered(job, Status.TRAINING)), [])
        elif what == "end" and job in running:
            where.pop(job)
            parted = {pair for pair in parted if job not in pair}
            stops.pop(job, None)
            follow(cluster.handle(ev.JobEnded(job, "ended")), [])
        elif what == "measure" and job in running and isinstance(detail, float):
            beside = sorted(
                other
                for other in running
                if other != job and where[other] & where[job] and running[other].status is Status.TRAINING
            )
            if beside:
                key = cluster.key(beside[0])
                leaves = follow(
                    cluster.measure(job, beside[0], detail), [one for one in beside if cluster.key(one) == key]
                )
        for one in leaves:
            follow(cluster.handle(ev.JobStopped(one)), [])
        assert all(count <= MOST_STOPS for count in stops.values())

    again = Scheduler(hybrid(SensitivityTable()), GRACEFUL)
    replayed = [again.handle(*log.decode(line)) for line in cluster.log]
    assert [said for said in replayed if said] == [said for said in everything if said], "the same events, the same say"
