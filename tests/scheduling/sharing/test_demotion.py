"""Runs whose loss stands still give way to those beside them that learn, and come back at once."""

from __future__ import annotations

import math

import pytest

from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import EVERYTHING, NOTHING_SPECIAL, Abilities
from prefect_gpu.scheduling.model.instructions import Finish, SetCores, SetShare
from prefect_gpu.scheduling.model.jobs import Request, Status
from prefect_gpu.scheduling.profiles import Profile
from prefect_gpu.scheduling.sharing.demotion import WEIGHT, Demotion
from prefect_gpu.scheduling.sharing.speculation import Speculation
from tests.scheduling.world import World, node

LIVE = Abilities(gates=True, cores=True, shares=True, finishes=True)


def falling(second: int) -> float:
    return 100.0 - second


def flat(second: int) -> float:
    """Falls for some seconds, and stands still then."""
    return 0.5 + math.exp(-second)


def asks(converged: str = "yield", cpus: int = 1) -> Request:
    return Request(gpu_memory_bytes=1, exclusive=False, cpus=cpus, converged=converged)


class Pool(World):
    """One device, and runs of 20 seconds that report a loss every second."""

    def __init__(self, *more: object, able: Abilities = LIVE, **requests: Request) -> None:
        reactions = (*more, Demotion())
        super().__init__(node("n", 8, cpus=4), profile=Profile("test", reactions=reactions), abilities=able)  # type: ignore[arg-type]
        for job, request in requests.items():
            self.submit(job, request=request, service_s=20.0)
            self.train(job)
        self.second = 0

    def report(self, seconds: int, **losses: object) -> None:
        """Losses as functions of the second, or as one number."""
        for _ in range(seconds):
            self.second += 1
            self.now += 1.0
            for job, loss in losses.items():
                self.handle(ev.LossReported(job, loss(self.second) if callable(loss) else loss))  # type: ignore[arg-type]

    def of(self, kind: type) -> list[tuple[str, object]]:
        return [
            (one.job, one.weight if isinstance(one, SetShare) else one.cpus if isinstance(one, SetCores) else None)
            for one in self.instructions
            if isinstance(one, kind) and isinstance(one, SetShare | SetCores | Finish)
        ]


def test_a_run_that_stands_still_gives_way_to_one_that_learns() -> None:
    pool = Pool(still=asks(), learns=asks())
    pool.report(20, still=flat, learns=falling)
    assert pool.of(SetShare) == [("still", WEIGHT)]
    assert "learns beside it still learns" in str(pool.instructions[-1])


def test_alone_nobody_gives_way() -> None:
    pool = Pool(still=asks())
    pool.report(30, still=flat)
    assert pool.of(SetShare) == []


def test_of_runs_that_all_stand_still_nobody_gives_way() -> None:
    pool = Pool(a=asks(), b=asks())
    pool.report(30, a=flat, b=flat)
    assert dict(pool.of(SetShare)) == {"a": 1.0}  # until b, which was looked at next, stood still as well


def test_a_run_that_tells_nothing_counts_as_one_that_learns() -> None:
    pool = Pool(still=asks(), silent=asks())
    pool.report(20, still=flat)
    assert pool.of(SetShare) == [("still", WEIGHT)]


def test_one_that_only_prepares_needs_no_room_yet() -> None:
    pool = Pool(still=asks())
    pool.submit("later", request=asks())
    pool.report(20, still=flat)
    assert pool.of(SetShare) == []
    pool.train("later")
    assert pool.of(SetShare) == [("still", WEIGHT)]


def test_it_comes_back_with_the_first_losses_that_moved() -> None:
    pool = Pool(still=asks(), learns=asks())
    pool.report(20, still=flat, learns=falling)
    pool.report(2, still=0.1)
    assert pool.of(SetShare)[1:] == [("still", 1.0)]
    assert "moves again" in str(pool.instructions[-1])


def test_one_loss_that_is_off_is_no_movement() -> None:
    pool = Pool(still=asks(), learns=asks())
    pool.report(20, still=flat, learns=falling)
    pool.report(1, still=30.0)
    pool.report(5, still=flat)
    assert pool.of(SetShare) == [("still", WEIGHT)]


@pytest.mark.parametrize(
    "event", [ev.JobEnded("learns", "ended"), ev.PhaseEntered("learns", Status.SAVING)], ids=["ended", "saves"]
)
def test_it_comes_back_when_the_learner_trains_no_more(event: ev.Event) -> None:
    pool = Pool(still=asks(), learns=asks())
    pool.report(20, still=flat, learns=falling)
    pool.handle(event)
    assert pool.of(SetShare) == [("still", WEIGHT), ("still", 1.0)]


def test_it_comes_back_when_the_learner_stands_still_too() -> None:
    pool = Pool(still=asks(), learns=asks())
    pool.report(20, still=flat, learns=falling)
    pool.report(20, still=flat, learns=80.0)
    assert pool.of(SetShare) == [("still", WEIGHT), ("still", 1.0)]


def test_it_saves_with_a_full_share() -> None:
    pool = Pool(still=asks(), learns=asks())
    pool.report(20, still=flat, learns=falling)
    pool.handle(ev.PhaseEntered("still", Status.SAVING))
    assert pool.of(SetShare) == [("still", WEIGHT), ("still", 1.0)]


def test_a_new_try_begins_with_a_full_share_and_as_one_that_learns() -> None:
    pool = Pool(still=asks(), learns=asks())
    pool.report(20, still=flat, learns=falling)
    pool.handle(ev.PhaseEntered("still", Status.PREPARING))
    pool.train("still")
    pool.report(3, still=0.5, learns=falling)
    assert pool.of(SetShare) == [("still", WEIGHT), ("still", 1.0)]


def test_who_does_not_ask_for_it_is_left_alone() -> None:
    pool = Pool(still=asks(converged=""), learns=asks())
    pool.report(30, still=flat, learns=falling)
    assert pool.of(SetShare) == pool.of(Finish) == []


def test_nothing_is_asked_of_a_world_that_cannot_do_it() -> None:
    pool = Pool(able=NOTHING_SPECIAL, still=asks("stop"), learns=asks())
    pool.report(40, still=flat, learns=falling)
    assert pool.of(SetShare) == pool.of(SetCores) == pool.of(Finish) == []


def test_one_that_wants_to_be_stopped_is_so_once_and_needs_no_company() -> None:
    pool = Pool(still=asks("stop"))
    pool.report(40, still=flat)
    assert pool.of(Finish) == [("still", None)]


def test_what_has_never_learned_is_not_ended() -> None:
    pool = Pool(slow=asks("stop"))
    pool.report(60, slow=lambda second: 2.3 + 0.01 * (second * 7919 % 13))
    assert pool.of(Finish) == []


def test_its_own_cores_are_for_others_meanwhile() -> None:
    pool = Pool(still=asks(cpus=3), learns=asks())
    pool.report(20, still=flat, learns=falling)
    assert pool.of(SetCores) == [("still", (0,))]
    pool.end("learns")
    assert pool.of(SetCores) == [("still", (0,)), ("still", (0, 1, 2))]


def test_cores_that_others_have_as_well_stay() -> None:
    pool = Pool(still=asks(cpus=4), learns=asks(cpus=4))
    pool.report(20, still=flat, learns=falling)
    assert pool.of(SetShare) == [("still", WEIGHT)]
    assert pool.of(SetCores) == []


def test_a_pause_that_another_policy_wants_goes_on() -> None:
    pool = Pool(still=asks(), learns=asks())
    still = pool.state.running["still"]
    Decision(pool.state, pool.scheduler.profile.policies, LIVE, pool.now).ask_share(
        still, "separation", 0.0, "too close"
    )
    pool.report(20, still=flat, learns=falling)
    pool.end("learns")
    assert pool.of(SetShare) == []
    assert still.share == 0.0


def test_speculation_leaves_the_shares_of_such_runs_alone() -> None:
    pool = Pool(Speculation(), able=EVERYTHING, a=asks("yield"), b=asks("yield"))
    pool.report(95, a=flat, b=falling)
    assert {weight for _, weight in pool.of(SetShare)} == {WEIGHT}
