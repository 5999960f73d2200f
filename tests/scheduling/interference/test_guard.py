"""``adaptive`` on a shared network: unchanged where nothing is known, and considerate where something is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefect_gpu.papers.deepshare.speeds import Speeds
from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.allocation.backfill import Backfill
from prefect_gpu.scheduling.interference.preempt_on_slowdown import PreemptOnSlowdown
from prefect_gpu.scheduling.interference.sensitivity import Key, SensitivityTable
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.cluster import Quotas
from prefect_gpu.scheduling.model.instructions import Hold, Launch, Preempt
from prefect_gpu.scheduling.model.jobs import Estimate, Request, Status
from prefect_gpu.scheduling.preemption.make_room import MakeRoom
from prefect_gpu.scheduling.preemption.whole_set import why_it_waits
from prefect_gpu.scheduling.profiles import Profile, get_profile
from prefect_gpu.scheduling.profiles.adaptive import adaptive
from tests.scheduling.placement.test_gangs import Play, nodes
from tests.scheduling.test_every_profile import NO_SHRINKING, Outside, abilities, steps
from tests.support import examples

LARGE, SMALL = Key("loud", 6, 2), Key("loud", 4, 2)
LOUD = ev.ContentionLearned(((LARGE, SMALL, 4.0), (SMALL, LARGE, 4.0)))
"""What is known: a small and a large loud gang take a quarter of their speed from each other."""


def inconsiderate() -> Profile:
    """``adaptive`` without all that concerns contention."""
    found = adaptive()
    *others, last = found.allocation
    assert isinstance(last, Backfill)
    allocation = (*others, Backfill(MakeRoom(urgent=True), why=why_it_waits))
    reactions = tuple(one for one in found.reactions if not isinstance(one, PreemptOnSlowdown))
    assert len(reactions) == len(found.reactions) - 1
    return replace(found, allocation=allocation, reactions=reactions)


class Twins(Outside):
    """Two schedulers that are told the same: ``adaptive``, and one that knows no contention."""

    def __init__(self, able: Abilities) -> None:
        self.other = Scheduler(inconsiderate(), able)
        super().__init__("adaptive", able, get_profile)

    def send(self, event: ev.Event) -> None:
        super().send(event)
        assert self.other.handle(event, self.now) == self.said[-1], event
        assert self.other.next_due() == self.scheduler.next_due(), event


@settings(max_examples=examples(1.5), deadline=None, suppress_health_check=list(HealthCheck), phases=NO_SHRINKING)
@given(abilities, st.lists(steps, min_size=8, max_size=50))
def test_where_nothing_is_known_of_contention_every_instruction_is_as_it_was(
    able: Abilities, happenings: list[tuple[Any, ...]]
) -> None:
    twins = Twins(able)
    for what in happenings:
        twins.step(what)


def play(*known: ev.Event, able: Abilities | None = None, taken: int = 3) -> Play:
    """A loud gang on the nodes a and b, where two devices are left, and other runs on c and d, with so many devices."""
    found = Play("adaptive", *nodes(5, 5, 5, 5), able=able)
    for event in known:
        found.tell(event)
    found.submit("first", Request(gpus=3, workers=2, kind="loud"))
    assert found.where("first") == "a b"
    for at in range(2):
        found.submit(f"on {'cd'[at]}", Request(gpus=taken))
        assert found.where(f"on {'cd'[at]}") == "cd"[at]
    return found


def reason_of(found: Play, job: str) -> str:
    return next(one.reason for one in found.said if isinstance(one, Launch | Hold) and one.job == job)


def test_two_loud_gangs_are_kept_apart_once_it_is_known_that_they_are_loud() -> None:
    where = {}
    for words, known in (("nothing", ()), ("loud", (LOUD,))):
        found = play(*known)
        found.submit("second", Request(gpus=2, workers=2, kind="loud"))
        where[words] = found.where("second")
    assert where == {"nothing": "a b", "loud": "c d"}


def test_the_reason_says_beside_whom_a_gang_runs_and_what_it_keeps() -> None:
    mild = ev.ContentionLearned(((LARGE, SMALL, 1.25), (SMALL, LARGE, 1.25)))
    found = play(mild, taken=5)
    found.submit("second", Request(gpus=2, workers=2, kind="loud"))
    assert found.where("second") == "a b"
    assert reason_of(found, "second") == "it is expected to keep 80% of its speed beside 1 other run on its 2 nodes"


def crowded() -> Play:
    """Only beside the first one there is room for the second."""
    found = play(LOUD, taken=5)
    found.submit("second", Request(gpus=2, workers=2, kind="loud"))
    return found


def test_a_gang_that_would_take_more_from_others_than_it_gets_waits_and_is_told_why() -> None:
    found = crowded()
    assert found.where("second") == ""
    assert [one.code for one in found.said if isinstance(one, Hold) and one.job == "second"] == ["contention"]
    assert "would slow down the runs beside it" in reason_of(found, "second")
    found.tell(ev.JobEnded("on c", "completed"))
    assert found.where("second") == "c c"


def test_but_not_for_ever() -> None:
    found = crowded()
    found.now = 301.0
    found.tell(ev.TimePassed())
    assert found.where("second") == "a b"


def test_of_two_gangs_the_one_that_suits_the_company_starts_first_and_the_other_is_named() -> None:
    found = play(LOUD, taken=5)
    second = Request(gpus=2, workers=2, kind="loud")
    quiet = Request(gpus=2, workers=2, kind="quiet")
    found.tell(
        ev.Together(
            (
                ev.JobSubmitted("second", second, "q", 0.0, 0.0, "the loud one", Estimate(service_s=100.0)),
                ev.JobSubmitted("third", quiet, "q", 0.0, 0.0, "", Estimate(service_s=110.0)),
            )
        )
    )
    assert (found.where("second"), found.where("third")) == ("", "a b")
    assert "; the loud one comes first in the order, but would lose more speed or cost others more" in reason_of(
        found, "third"
    )


def test_where_a_gang_finds_room_for_uneven_parts_only_it_starts_all_the_same() -> None:
    own, beside = Key("loud", 4, 2), Key("quiet", 4, 2)
    known = ((own, own, 1.8), (own, beside, 1.2), (beside, own, 1.2), (beside, beside, 1.1))
    found = Play("adaptive", *nodes(3, 3, 3, 3))
    found.tell(ev.ContentionLearned(known))
    wanted = [(f"{kind}{at}", Request(workers=4, kind=kind)) for kind in ("quiet", "loud") for at in range(3)]
    found.tell(ev.Together(tuple(ev.JobSubmitted(name, asked, "q", 0.0, 0.0, name) for name, asked in wanted)))
    placed = [name for name, _ in wanted if found.where(name)]
    assert len(placed) == 3, "of twelve devices, no four stay empty"


def test_nobody_is_started_beyond_the_limit_of_the_quotas() -> None:
    mild = ev.ContentionLearned(((LARGE, SMALL, 1.25), (SMALL, LARGE, 1.25)))
    found = play(mild, ev.QuotasChanged(Quotas(slowdown_limit=1.2)), taken=5)
    found.submit("second", Request(gpus=2, workers=2, kind="loud"))
    assert found.where("second") == ""


def slowed(preemptible: bool) -> Play:
    """Two gangs side by side, of which it is measured that one takes half of the other's speed."""
    found = play(able=Abilities(Preemption.INSTANT))
    found.submit("second", Request(gpus=2, workers=2, kind="loud", preemptible=preemptible))
    assert found.where("second") == "a b"
    for job in ("first", "second"):
        found.tell(ev.PhaseEntered(job, Status.TRAINING))
    found.tell(ev.SlowdownMeasured("second", 2.0, pair=(SMALL, LARGE)))
    return found


def test_who_is_slowed_down_too_much_is_stopped_and_goes_on_elsewhere() -> None:
    found = slowed(preemptible=True)
    assert [one.job for one in found.said if isinstance(one, Preempt)] == ["second"]
    assert found.where("second") == "c d"


def test_who_may_not_be_stopped_stays() -> None:
    found = slowed(preemptible=False)
    assert not [one for one in found.said if isinstance(one, Preempt)]
    assert found.where("second") == "a b"


@pytest.mark.parametrize(("kind", "prepared"), [("loud", False), ("unknown", True)])
def test_nobody_is_prepared_for_nodes_where_it_is_not_known_yet_who_will_be_there(kind: str, prepared: bool) -> None:
    found = Play("adaptive", *nodes(2, 2), able=Abilities(gates=True))
    found.tell(LOUD)
    estimate = Estimate(service_s=100.0, launching_s=10.0)
    for job in ("before", "after"):
        found.submit(job, Request(gpus=2, workers=2, kind=kind), estimate)
    found.tell(ev.PhaseEntered("before", Status.TRAINING))
    found.now = 95.0
    found.tell(ev.Progressed((("before", 95.0),)))
    assert bool(found.where("after")) == prepared


# -- what is known ------------------------------------------------------------------------------------------------


def test_a_program_of_which_anything_was_learned_is_known() -> None:
    table = SensitivityTable()
    assert table.silent
    assert not table.knows("a")
    table.learn(LARGE, Key("quiet", 2, 2), 0.9)
    assert table.knows("loud")
    assert table.knows("quiet")
    assert not table.silent


def test_work_that_is_slowed_down_by_most_is_worth_more() -> None:
    quiet = Key("quiet", 2, 2)
    table = SensitivityTable({(LARGE, LARGE): 0.5, (LARGE, quiet): 1.0})
    assert table.worths([LARGE, quiet, LARGE]) == {LARGE: pytest.approx(1 / 0.75**2), quiet: 1.0}
    assert table.worths([]) == {}


@pytest.mark.parametrize(
    ("wide", "widths"), [(1.0, (2,)), (1.1, (4, 2))], ids=["not faster on more nodes", "faster on more nodes"]
)
def test_a_job_goes_on_more_nodes_than_it_needs_only_if_it_is_faster_there(wide: float, widths: object) -> None:
    speeds = Speeds({Key("m", 4, 2): 1.0, Key("m", 4, 4): wide}, fewest=True)
    assert speeds.worthwhile(Request(gpus=4, spans=True, kind="m"), 4, 8) == widths
    assert speeds.widths(Request(gpus=4, spans=True, kind="m"), 4) == (4, 2)


def test_unless_it_does_not_fit_on_fewer() -> None:
    speeds = Speeds({Key("m", 4, 2): 1.0, Key("m", 4, 4): 0.9}, fewest=True)
    assert speeds.worthwhile(Request(gpus=4, spans=True, kind="m"), 4, 1) == (4,)
