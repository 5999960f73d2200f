"""What starts beside what, in rounds or not, and who is stopped: events in, instructions expected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.papers.deepshare.even_spread import EvenSpread
from prefect_gpu.papers.deepshare.greedy import ContentionAware, Rule
from prefect_gpu.papers.deepshare.observation import Encoding
from prefect_gpu.papers.deepshare.profiles import greedy, hybrid
from prefect_gpu.papers.deepshare.rounds import Rounds
from prefect_gpu.papers.deepshare.slowdowns import UnnamedSlowdowns
from prefect_gpu.papers.deepshare.speeds import Speeds
from prefect_gpu.papers.deepshare.view import Policy, View
from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.allocation.base import Action
from prefect_gpu.scheduling.interference.preempt_on_slowdown import PreemptOnSlowdown
from prefect_gpu.scheduling.interference.sensitivity import Key, SensitivityTable, Start
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.cluster import Device, Node, Queue, Quotas
from prefect_gpu.scheduling.model.instructions import Hold, Instruction, Launch, Preempt
from prefect_gpu.scheduling.model.jobs import Estimate, Request
from prefect_gpu.scheduling.order.orders import LeastService
from prefect_gpu.scheduling.profiles import Profile
from prefect_gpu.scheduling.sharing.rules import NoSharing
from prefect_gpu.scheduling.state.learned import Learned

INSTANT = Abilities(Preemption.INSTANT, free_moves=True)
SIZES = [(2, 2), (4, 2), (4, 4), (8, 2), (8, 4)]
SPEEDS = {Key(model, *size): 1.0 for model in ("loud", "quiet") for size in SIZES}
RATIOS = {
    (Key(own, *a), Key(other, *b)): 0.5 if own == other == "loud" else 0.9
    for own in ("loud", "quiet")
    for other in ("loud", "quiet")
    for a in SIZES
    for b in SIZES
}


def table() -> SensitivityTable:
    """Two loud jobs halve each other's speed."""
    return SensitivityTable(RATIOS)


class Cluster:
    """Nodes of four devices, and a scheduler whose books are checked after each event."""

    def __init__(self, profile: Profile | str, nodes: int = 4, abilities: Abilities = INSTANT, gpus: int = 4) -> None:
        self.scheduler = Scheduler(profile, abilities)
        self.now = 0.0
        self.said: list[Instruction] = []
        shapes = [tuple(Device(f"{n}{g}", "test", 8) for g in range(gpus)) for n in "abcdefgh"[:nodes]]
        self.handle(ev.NodesChanged(tuple(Node(d[0].id[0], d, ()) for d in shapes)))

    def handle(self, event: ev.Event, at: float | None = None) -> list[Instruction]:
        """Send an event; what the scheduler says to it."""
        self.now = self.now if at is None else at
        said = self.scheduler.handle(event, self.now)
        self.scheduler.state.check_invariants()
        self.said += said
        return said

    def submit(
        self,
        *jobs: str,
        kind: str = "quiet",
        gpus: int = 2,
        service_s: float | None = 100.0,
        launching_s: float = 0.0,
        **asks: object,
    ) -> list[Instruction]:
        """Submit jobs of one kind at the same moment."""
        request = Request(gpus=gpus, kind=kind, spans=True, preemptible=True)
        request = Request(**{**vars(request), **asks})  # type: ignore[arg-type]
        estimate = Estimate(service_s=service_s, launching_s=launching_s)
        news = tuple(ev.JobSubmitted(job, request, "q", self.now, self.now, job, estimate) for job in jobs)
        return self.handle(ev.Together(news))

    @property
    def places(self) -> dict[str, str]:
        """The devices of each node that each running job has: ``a2 b2``."""
        found = {}
        for job in self.scheduler.state.running.values():
            assert job.placement is not None
            counts: dict[str, int] = {}
            for part in job.placement.parts:
                counts[part.node] = counts.get(part.node, 0) + len(part.devices)
            found[job.id] = " ".join(f"{node}{count}" for node, count in sorted(counts.items()))
        return found

    @property
    def codes(self) -> dict[str, str]:
        """Why each job was last held."""
        return {one.job: one.code for one in self.said if isinstance(one, Hold)}


# -- the authors' baselines ---------------------------------------------------------------------------------------


def test_four_nodes_are_tried_before_two_and_low_numbers_first() -> None:
    cluster = Cluster("deepshare-las")
    cluster.submit("wide", gpus=8)
    cluster.submit("narrow", gpus=2)
    cluster.handle(ev.TimePassed(), at=300.0)
    assert cluster.places == {"wide": "a2 b2 c2 d2", "narrow": "a1 b1"}


def test_nobody_starts_between_two_rounds() -> None:
    cluster = Cluster("deepshare-srtf")
    cluster.submit("first")
    cluster.handle(ev.TimePassed(), at=10.0)
    cluster.submit("second")
    assert list(cluster.places) == ["first"]
    assert cluster.codes["second"] == "round"
    assert cluster.scheduler.next_due() == 300.0
    cluster.handle(ev.TimePassed(), at=300.0)
    assert sorted(cluster.places) == ["first", "second"]


@pytest.mark.parametrize(
    ("profile", "runs"), [("deepshare-las", "served"), ("deepshare-srtf", "new")], ids=["most served", "least done"]
)
def test_the_head_of_an_odd_order_runs(profile: str, runs: str) -> None:
    cluster = Cluster(profile, nodes=2)
    cluster.submit("served", gpus=8)
    cluster.handle(ev.TimePassed(), at=10.0)
    cluster.submit("new", gpus=8)
    assert list(cluster.places) == ["served"]
    cluster.handle(ev.Together((ev.Progressed((("served", 60.0),)), ev.TimePassed())), at=300.0)
    assert list(cluster.places) == [runs]


def test_the_line_stops_at_the_first_that_does_not_fit() -> None:
    cluster = Cluster("deepshare-las", nodes=2)
    cluster.submit("a", gpus=4)
    cluster.submit("b", gpus=8)
    cluster.submit("c", gpus=2)
    cluster.handle(ev.TimePassed(), at=300.0)
    assert list(cluster.places) == ["a"]
    assert cluster.codes == {"b": "devices", "c": "order"}


def test_where_stopping_costs_something_running_jobs_stay() -> None:
    cluster = Cluster("deepshare-las", abilities=Abilities(Preemption.GRACEFUL))
    cluster.submit("a")
    cluster.submit("b")
    cluster.handle(ev.TimePassed(), at=300.0)
    assert not any(isinstance(one, Preempt) for one in cluster.said)
    assert sorted(cluster.places) == ["a", "b"]


# -- the greedy rule ----------------------------------------------------------------------------------------------


def test_loud_jobs_are_kept_apart() -> None:
    cluster = Cluster(greedy(table(), SPEEDS))
    cluster.submit("a", "b", "c", kind="loud")
    assert cluster.places == {"a": "a1 b1", "b": "c1 d1"}
    assert cluster.codes["c"] == "contention"
    assert "less than 60%" in next(one.reason for one in cluster.said if isinstance(one, Hold))
    cluster.handle(ev.JobEnded("a", "completed"), at=50.0)
    assert cluster.places["c"] == "a1 b1"


def test_a_launch_says_what_is_expected() -> None:
    cluster = Cluster(greedy(table(), SPEEDS), nodes=2)
    cluster.submit("one")
    cluster.submit("two")
    reasons = [one.reason for one in cluster.said if isinstance(one, Launch)]
    assert "it is expected to keep 100% of its speed alone on its 2 nodes" in reasons[0]
    assert "it is expected to keep 90% of its speed beside 1 other run on its 2 nodes" in reasons[1]


def test_the_shorter_of_two_alike_goes_first_and_unknown_ones_count_by_what_they_had() -> None:
    cluster = Cluster(greedy(table(), SPEEDS), nodes=2)
    cluster.submit("all", gpus=8)
    cluster.submit("long", gpus=8, service_s=900.0)
    cluster.submit("short", gpus=8, service_s=90.0)
    cluster.handle(ev.JobEnded("all", "completed"))
    assert list(cluster.places) == ["short"]
    cluster.submit("unknown", gpus=8, service_s=None)
    cluster.handle(ev.JobEnded("short", "completed"))
    assert list(cluster.places) == ["unknown"]


def test_a_job_that_was_never_measured_stays_on_as_few_nodes_as_hold_it() -> None:
    cluster = Cluster(greedy())
    cluster.submit("new", kind="new", gpus=4)
    cluster.submit("large", kind="new", gpus=8)
    assert cluster.places == {"new": "a4", "large": "b4 c4"}


def test_the_instances_of_a_gang_are_whole_on_their_nodes() -> None:
    cluster = Cluster(greedy(), nodes=3, gpus=4)
    cluster.submit("gang", kind="new", gpus=3, spans=False, workers=2)
    assert cluster.places == {"gang": "a3 b3"}
    cluster.submit("pair", kind="new", gpus=2, spans=False, workers=2)
    assert cluster.places["pair"] == "c4"


def test_a_full_cluster_and_a_limit_are_told_as_such() -> None:
    cluster = Cluster(greedy(table(), SPEEDS), nodes=2)
    cluster.submit("all", gpus=8)
    cluster.submit("more", gpus=2)
    assert cluster.codes["more"] == "devices"
    cluster.handle(ev.QuotasChanged(Quotas(queues=(Queue("q", limit=1),))))
    assert cluster.codes["more"] == "limit"
    cluster.handle(ev.JobEnded("all", "completed"))
    assert list(cluster.places) == ["more"]


def test_a_queue_of_higher_priority_is_served_first() -> None:
    cluster = Cluster(greedy(table(), SPEEDS), nodes=2)
    cluster.handle(ev.QuotasChanged(Quotas(queues=(Queue("q", priority=2), Queue("urgent", priority=1)))))
    cluster.submit("all", gpus=8)
    cluster.submit("short", gpus=8, service_s=1.0)
    request = Request(gpus=8, kind="quiet", spans=True)
    cluster.handle(ev.JobSubmitted("urgent", request, "urgent", 0.0, 0.0, "", Estimate(service_s=9999.0)))
    cluster.handle(ev.JobEnded("all", "completed"))
    assert list(cluster.places) == ["urgent"]


# -- the hybrid ---------------------------------------------------------------------------------------------------


def profile_of(action: Action) -> Profile:
    return Profile("test", LeastService(), sharing=NoSharing(), allocation=(action,), learned=Learned(table()))


def only(job_gpus: int, *nodes: int) -> Policy:
    """A policy that starts the candidate of that size on these nodes."""

    def policy(view: View) -> Sequence[Start]:
        wide = [one for one in view.candidates if one.key.gpus == job_gpus and one.key.nodes == len(nodes)]
        return [Start(one.job, one.key, frozenset(nodes)) for one in wide]

    return policy


def test_the_policy_decides_first_and_the_rule_when_it_starts_nothing() -> None:
    allocation = ContentionAware(SPEEDS, only(4, 2, 3))
    cluster = Cluster(profile_of(allocation))
    cluster.submit("four", gpus=4, service_s=500.0)
    assert cluster.places == {"four": "c2 d2"}
    cluster.submit("two", gpus=2)
    assert cluster.places["two"] == "a1 b1", "the greedy rule keeps it away from the other"


def test_a_guarded_policy_chooses_only_among_starts_that_the_rule_values_alike() -> None:
    def begun(policy: Policy, least_value: float) -> str:
        allocation = ContentionAware(SPEEDS, policy, least_value=least_value)
        cluster = Cluster(profile_of(allocation))
        cluster.submit("small", gpus=2, service_s=500.0)
        cluster.submit("large", gpus=8, service_s=500.0)
        return cluster.places["small"]

    assert begun(only(2, 2, 3), 0.9) == "c1 d1", "the rule would take the first two, and values all alike"
    assert begun(only(8, 0, 1, 2, 3), 0.9) == "a1 b1", "eight devices first are worth a quarter of that to the rule"


def test_a_start_that_does_not_fit_is_not_carried_out() -> None:
    def policy(view: View) -> Sequence[Start]:
        return [Start(one.job, one.key, frozenset({0, 1})) for one in view.candidates]

    allocation = ContentionAware(SPEEDS, policy)
    cluster = Cluster(profile_of(allocation), nodes=2)
    cluster.submit("a", "b", "c", gpus=8)
    assert list(cluster.places) == ["a"]


def test_devices_that_would_idle_are_used_if_clearly_more_is_done_in_all() -> None:
    harsh = {
        pair: {("loud", "loud"): 0.5, ("loud", "quiet"): 0.5}.get((pair[0].model, pair[1].model), 1.0)
        for pair in RATIOS
    }
    strict, busy = (Cluster(make(SensitivityTable(harsh), SPEEDS), nodes=2) for make in (greedy, hybrid))
    for cluster in (strict, busy):
        cluster.submit("loud", "louder", kind="loud")
        assert list(cluster.places) == ["loud"], "two loud ones do no more than one"
        cluster.submit("quiet", kind="quiet")
    assert list(strict.places) == ["loud"]
    assert list(busy.places) == ["loud", "quiet", "louder"], "each adds a half, as the first one is slow now anyway"


# -- who is stopped -----------------------------------------------------------------------------------------------


def measured(*slowdowns: tuple[str, float]) -> ev.Event:
    """Slowdowns measured at one moment."""
    return ev.Together(tuple(ev.SlowdownMeasured(job, slowdown) for job, slowdown in slowdowns))


def surprised() -> tuple[Cluster, SensitivityTable]:
    """Two jobs side by side on two nodes of which nothing was known, measured once already."""
    known = SensitivityTable()
    cluster = Cluster(hybrid(known, SPEEDS), nodes=2)
    cluster.submit("a", "b", kind="loud")
    assert len(cluster.places) == 2
    cluster.handle(measured(("a", 1.0)), at=10.0)
    cluster.handle(ev.TimePassed(), at=20.0)
    return cluster, known


def test_a_job_that_is_slowed_down_too_much_is_stopped_and_kept_apart_from_then_on() -> None:
    cluster, known = surprised()
    said = cluster.handle(measured(("a", 2.0), ("b", 2.0)), at=30.0)
    assert [one.job for one in said if isinstance(one, Preempt)] == ["a"], "once a has gone, b is not slowed down"
    assert "slow it down by a factor of 2.00; the limit is 1.67" in said[0].reason
    assert list(cluster.places) == ["b"]
    assert cluster.codes["a"] == "contention"
    assert known.ratio(Key("loud", 2, 2), Key("loud", 2, 2)) == 0.5


@pytest.mark.parametrize(
    ("slowdown", "why"), [(1.6, "below the limit"), (1.0, "undisturbed"), (math.inf, "no measurement")]
)
def test_a_job_that_is_slowed_down_little_stays(slowdown: float, why: str) -> None:
    cluster, _ = surprised()
    cluster.handle(measured(("a", slowdown)), at=30.0)
    assert len(cluster.places) == 2, why


def test_what_was_foreseen_is_not_undone() -> None:
    known = SensitivityTable(dict.fromkeys(RATIOS, 0.5))
    cluster = Cluster(
        Profile(
            "test",
            LeastService(),
            sharing=NoSharing(),
            allocation=(ContentionAware(SPEEDS, rule=Rule(least_ratio=0.4)),),
            reactions=(UnnamedSlowdowns(PreemptOnSlowdown()),),
            learned=Learned(known),
        ),
        nodes=2,
    )
    cluster.submit("a", "b", kind="loud")
    for at in (10.0, 20.0, 30.0):
        cluster.handle(measured(("a", 2.0)), at=at)
        cluster.handle(ev.TimePassed())
    assert not any(isinstance(one, Preempt) for one in cluster.said)
    cluster.handle(measured(("a", 2.5)), at=40.0)
    assert [one.job for one in cluster.said if isinstance(one, Preempt)] == ["a"]


def test_where_the_policy_cannot_have_foreseen_it_the_slowed_are_stopped_all_the_same() -> None:
    known = SensitivityTable(dict.fromkeys(RATIOS, 0.6))
    cluster = Cluster(
        Profile(
            "test",
            LeastService(),
            sharing=NoSharing(),
            allocation=(ContentionAware(SPEEDS, rule=Rule(least_ratio=0.4)),),
            reactions=(UnnamedSlowdowns(PreemptOnSlowdown(foreseen=True)),),
            learned=Learned(known),
        ),
        nodes=2,
    )
    cluster.submit("a", "b", kind="loud")
    for at in (10.0, 20.0, 30.0):
        cluster.handle(measured(("a", 1 / 0.6)), at=at)
        cluster.handle(ev.TimePassed())
    assert any(isinstance(one, Preempt) for one in cluster.said)


def test_nobody_is_stopped_for_ever_nor_without_being_preemptible() -> None:
    cluster, _ = surprised()
    for at in range(30, 400, 10):
        cluster.handle(measured(*((job, 3.0) for job in cluster.places)), at=float(at))
        cluster.handle(ev.TimePassed())
    assert sum(isinstance(one, Preempt) for one in cluster.said) <= 6
    cluster = Cluster(hybrid(SensitivityTable(), SPEEDS), nodes=2)
    cluster.submit("a", "b", kind="loud", preemptible=False)
    for at in (10.0, 20.0, 30.0):
        cluster.handle(measured(("a", 3.0)), at=at)
        cluster.handle(ev.TimePassed())
    assert len(cluster.places) == 2


# -- pieces -------------------------------------------------------------------------------------------------------


def test_senseless_settings_are_refused() -> None:
    for make, message in (
        (lambda: Rounds(-1.0), "round_s=-1"),
        (lambda: Rounds(math.nan), "round_s=nan"),
        (lambda: PreemptOnSlowdown(limit=1.0), "limit=1.0"),
        (lambda: Speeds({Key("a", 2, 2): 0.0}), "speed of .* is 0"),
        (lambda: Encoding(4, 0, {}), "gpus_per_node is 0"),
    ):
        with pytest.raises(ValueError, match=message):
            make()  # type: ignore[no-untyped-call]


def test_a_job_takes_longer_where_it_was_measured_to_be_slower() -> None:
    speeds = Speeds({Key("a", 4, 2): 20.0, Key("a", 4, 4): 16.0})
    assert [speeds.stretch(Key("a", 4, nodes)) for nodes in (2, 4, 1)] == [1.0, 1.25, 1.0]


@given(
    st.lists(st.tuples(st.sampled_from([2, 4, 8]), st.sampled_from(["loud", "quiet"])), max_size=12),
    st.sampled_from(["greedy", "hybrid", "las"]),
)
def test_jobs_are_always_spread_evenly_over_as_many_nodes_as_were_measured(
    jobs: list[tuple[int, str]], which: str
) -> None:
    make = {"greedy": greedy, "hybrid": hybrid}.get(which)
    cluster = Cluster(make(table(), SPEEDS) if make else "deepshare-las")
    for number, (gpus, kind) in enumerate(jobs):
        cluster.submit(f"job {number}", kind=kind, gpus=gpus)
    cluster.handle(ev.TimePassed(), at=300.0)
    for job, place in cluster.places.items():
        counts = [int(part[1:]) for part in place.split()]
        gpus = jobs[int(job.split()[1])][0]
        assert sum(counts) == gpus and len(set(counts)) == 1
        assert Key("loud", gpus, len(counts)) in SPEEDS
    if which == "greedy":
        placed = {job: {part[0] for part in place.split()} for job, place in cluster.places.items()}
        loud = [job for job in placed if jobs[int(job.split()[1])][1] == "loud"]
        assert all(placed[one].isdisjoint(placed[other]) for one, other in combinations(loud, 2))


def test_an_even_spread_falls_back_on_the_best_fit_for_what_cannot_be_split() -> None:
    cluster = Cluster(Profile("test", placement=EvenSpread()))
    cluster.submit("single", gpus=1)
    cluster.submit("whole", gpus=2, spans=False)
    assert [len(place.split()) for place in cluster.places.values()] == [1, 1]
