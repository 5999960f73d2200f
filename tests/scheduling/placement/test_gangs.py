"""Jobs of several instances: whole or not at all, near together, and in every allocation."""

from __future__ import annotations

import pytest

from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.allocation.backfill import Backfill
from prefect_gpu.scheduling.allocation.batch import Batch, Window
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.cluster import Device, Node, Placement
from prefect_gpu.scheduling.model.instructions import Hold, Launch, Preempt
from prefect_gpu.scheduling.model.jobs import Estimate, Request
from prefect_gpu.scheduling.profiles import Profile, get_profile
from prefect_gpu.scheduling.sharing.rules import EstimatedUse
from tests.scheduling.world import GIB

PS_TWO = Request(workers=2, servers=1, cpus=2)


def nodes(*gpus: int, domains: str = "") -> tuple[Node, ...]:
    """Nodes a, b, c … with so many devices, in one rack; ``domains`` names the domain of each."""
    return tuple(
        Node(
            name,
            tuple(Device(f"{name}{at}", "test", 8 * GIB) for at in range(count)),
            tuple(range(8)),
            domain=domains[number] if domains else "",
        )
        for number, (name, count) in enumerate(zip("abcdefgh", gpus, strict=False))
    )


class Play:
    """A scheduler whose books are checked after each event."""

    def __init__(self, profile: Profile | str, *where: Node, able: Abilities | None = None) -> None:
        self.scheduler = Scheduler(profile, able or Abilities())
        self.said: list[object] = []
        self.now = 0.0
        self.tell(ev.NodesChanged(where))

    def tell(self, event: ev.Event) -> list[object]:
        said = list(self.scheduler.handle(event, self.now))
        self.scheduler.state.check_invariants()
        self.said += said
        return said

    def submit(self, job: str, request: Request, estimate: Estimate | None = None) -> list[object]:
        return self.tell(ev.JobSubmitted(job, request, "q", self.now, self.now, "", estimate or Estimate()))

    def place(self, job: str) -> Placement | None:
        return self.scheduler.state.jobs[job].placement

    def where(self, job: str) -> str:
        """Nodes of the parts, workers first; empty if it waits."""
        place = self.place(job)
        return " ".join(part.node for part in place.parts) if place else ""


# profile, devices of nodes, where (two workers, then the server) are expected
WHERE = {
    "liquid keeps a gang on the one node that holds it": ("liquid-immediate", (1, 1, 2), "c c c"),
    "fifo does so too": ("fifo", (1, 1, 2), "c c c"),
    "even spreads over the nodes with the fewest in use": ("even", (2, 2, 2), "a b c"),
    "kubernetes spreads over the nodes with most cores free": ("kubernetes-default", (2, 2, 2), "a b c"),
    "first fit takes the first nodes": ("first-fit", (1, 2, 2), "a b a"),
    "pack takes the nodes with the fewest free": ("pack", (2, 1, 2), "b a b"),
    "hived keeps the workers in one cell, and the server goes elsewhere": ("hived", (1, 2, 2), "b b a"),
}


@pytest.mark.parametrize("profile, gpus, expected", WHERE.values(), ids=WHERE.keys())
def test_where_the_instances_of_a_gang_go(profile: str, gpus: tuple[int, ...], expected: str) -> None:
    play = Play(profile, *nodes(*gpus))
    play.submit("gang", PS_TWO)
    assert play.where("gang") == expected
    place = play.place("gang")
    assert place is not None and place.servers == 1 and [len(part.devices) for part in place.parts] == [1, 1, 0]


PLACERS = [
    "liquid-immediate",
    "fifo",
    "random",
    "even",
    "first-fit",
    "pack",
    "kubernetes-default",
    "hived",
    "static-slots",
]


@pytest.mark.parametrize("profile", PLACERS)
def test_a_gang_is_placed_whole_or_not_at_all_and_never_across_domains(profile: str) -> None:
    play = Play(profile, *nodes(1, 1, 1, domains="xyy"))
    (hold,) = play.submit("three", Request(workers=3))
    assert isinstance(hold, Hold) and hold.code == "never"
    play.submit("two", Request(workers=2))
    assert set(play.where("two").split()) == {"b", "c"}


@pytest.mark.parametrize("profile", PLACERS)
def test_the_same_gang_in_the_same_state_gets_the_same_place(profile: str) -> None:
    first, second = Play(profile, *nodes(2, 2, 2)), Play(profile, *nodes(2, 2, 2))
    for play in (first, second):
        play.submit("gang", PS_TWO)
    assert first.place("gang") == second.place("gang") is not None


def test_parts_on_one_node_get_cores_of_their_own() -> None:
    play = Play("liquid-immediate", *nodes(2))
    play.submit("gang", PS_TWO)
    place = play.place("gang")
    assert place is not None and len({core for part in place.parts for core in part.cpus}) == 6


def test_cores_never_keep_a_gang_from_its_devices() -> None:
    play = Play("kubernetes-default", *nodes(2))
    play.submit("gang", Request(workers=2, servers=1, cpus=8))
    assert play.where("gang") == "a a a"


def test_a_cell_that_is_partly_used_is_left_to_nobody_else() -> None:
    play = Play("hived", *nodes(4))
    play.submit("three", Request(gpus=3))
    play.submit("one", Request())
    assert (play.where("three"), play.where("one")) == ("a", "")


def test_a_job_larger_than_any_cell_takes_the_whole_node() -> None:
    play = Play("hived", *nodes(3))
    play.submit("three", Request(gpus=3))
    assert play.where("three") == "a"


def test_jobs_make_room_for_a_gang_and_no_more_of_them_than_needed() -> None:
    able = Abilities(Preemption.INSTANT)
    play = Play(get_profile("srtf"), *nodes(2, 2, 2), able=able)
    for at in range(6):
        play.submit(f"long-{at}", Request(preemptible=True), Estimate(1000.0 + at))
    said = play.submit("gang", Request(workers=2, preemptible=True), Estimate(10.0))
    assert len([one for one in said if isinstance(one, Preempt)]) == 2
    assert [one.job for one in said if isinstance(one, Launch)] == ["gang"]


# -- batches -----------------------------------------------------------------------------------------------------------


def test_jobs_that_come_within_a_window_are_placed_together_when_it_closes() -> None:
    play = Play(Profile("test", allocation=(Window(5.0), Batch(), Backfill())), *nodes(2, 2, 2))
    (hold,) = play.submit("first", PS_TWO)
    assert isinstance(hold, Hold) and hold.code == "due"
    play.now = 3.0
    play.submit("second", PS_TWO)
    assert play.scheduler.next_due() == 5.0
    play.now = 5.0
    said = play.tell(ev.TimePassed())
    assert {one.job for one in said if isinstance(one, Launch)} == {"first", "second"}
    assert all(len(set(play.where(job).split())) == 1 for job in ("first", "second"))


def test_a_batch_is_placed_at_once_when_others_wait_already() -> None:
    play = Play(Profile("test", allocation=(Window(5.0), Batch(), Backfill())), *nodes(2))
    for job in ("first", "second"):
        play.submit(job, PS_TWO)
    play.now = 5.0
    play.tell(ev.TimePassed())
    play.now = 10.0
    (launch,) = [one for one in play.tell(ev.JobEnded("first", "done")) if isinstance(one, Launch)]
    assert launch.job == "second"


def test_a_window_or_a_batch_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="give seconds"):
        Window(-1.0)
    with pytest.raises(ValueError, match="give 1 job"):
        Batch(most_jobs=0)


# -- sharing by estimates ---------------------------------------------------------------------------------------------

SHARES = Request(gpu_memory_bytes=2 * GIB, exclusive=False)
# estimates of two jobs (utilisation, memory in GiB), and whether they share the one device
USE = {
    "halves share": ((0.5, 2), (0.5, 2), True),
    "together they use too much of it": ((0.6, 2), (0.5, 2), False),
    "together they need too much memory": ((0.1, 5), (0.1, 5), False),
    "what is declared counts if more": ((0.1, 1), (0.1, 6), True),
    "an unknown utilisation is all of it": ((None, 2), (0.5, 2), False),
}


@pytest.mark.parametrize("one, other, together", USE.values(), ids=USE.keys())
def test_who_shares_by_estimated_use(
    one: tuple[float | None, int], other: tuple[float | None, int], together: bool
) -> None:
    play = Play(Profile("test", sharing=EstimatedUse()), *nodes(1))
    for job, (utilisation, gib) in (("one", one), ("other", other)):
        play.submit(job, SHARES, Estimate(utilisation=utilisation, memory_bytes=gib * GIB))
    assert (play.where("other") == "a") is together


def test_a_run_is_capped_at_the_larger_of_what_it_declares_and_is_estimated_to_need() -> None:
    play = Play(Profile("test", sharing=EstimatedUse()), *nodes(1))
    play.submit("one", SHARES, Estimate(utilisation=0.2, memory_bytes=3 * GIB))
    play.submit("other", SHARES, Estimate(utilisation=0.2, memory_bytes=1 * GIB))
    one, other = play.place("one"), play.place("other")
    assert one is not None and other is not None
    assert (one.memory_bytes, other.memory_bytes) == (3 * GIB, 2 * GIB)


def test_a_run_that_wants_its_device_alone_has_it_alone() -> None:
    play = Play(Profile("test", sharing=EstimatedUse()), *nodes(1))
    play.submit("one", Request(gpu_memory_bytes=GIB), Estimate(utilisation=0.1, memory_bytes=GIB))
    play.submit("other", SHARES, Estimate(utilisation=0.1, memory_bytes=GIB))
    assert play.where("other") == ""
