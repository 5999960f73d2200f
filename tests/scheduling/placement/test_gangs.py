"""Jobs of several instances: whole or not at all, near together, and in every allocation."""

from __future__ import annotations

import pytest

from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.allocation.batch import Batch
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.cluster import Device, Node, Placement
from prefect_gpu.scheduling.model.instructions import Hold, Launch, Preempt
from prefect_gpu.scheduling.model.jobs import Estimate, Request
from prefect_gpu.scheduling.profiles import Profile, get_profile
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


def test_a_batch_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="give 1 job"):
        Batch(most_jobs=0)
