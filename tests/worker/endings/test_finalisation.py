"""A run's end, while users, the run itself, a dying worker and a restarting server come between."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import cast

import httpx
import pytest
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Cancelling, Completed, Crashed, Failed, Pending, Running, Scheduled

from prefect_gpu.runtime.drivers.base import ExitReport, RunHandle
from prefect_gpu.training import protocol
from prefect_gpu.worker.endings.claims import claim_words
from prefect_gpu.worker.endings.finalisation import Finalisation
from prefect_gpu.worker.server import asking as module
from prefect_gpu.worker.server.server_clock import ServerClock
from tests.worker.prefect_stand_in import OneRun, asking


def finalisation(prefect: OneRun) -> Finalisation:
    return Finalisation(asking(prefect))


async def finalised(prefect: OneRun, returncode: int | None = -9, *, cancelling: bool = False) -> str | None:
    """The outcome of the run's launch, its process being gone."""
    launch = prefect.launch()
    launch.cancelling = cancelling
    outcome, _ = await finalisation(prefect).finalise(launch, ExitReport(returncode), api_was_away=False)
    return outcome


ENDS: dict[str, tuple[State, str]] = {
    "reported": (Completed(), "completed"),
    "failed": (Failed(), "failed"),
    "not reported": (Running(), "crashed"),
    "crashed by the engine": (Crashed(), "crashed"),
    "cancelled by the engine": (Cancelled(), "cancelled"),
    "being cancelled": (Cancelling(), "cancelled"),
}


@pytest.mark.parametrize(("state", "outcome"), ENDS.values(), ids=ENDS.keys())
async def test_prefect_and_the_history_tell_the_same_end(state: State, outcome: str) -> None:
    prefect = OneRun(Running(), state)
    assert await finalised(prefect) == outcome == prefect.shown[0]
    assert await finalised(prefect) == outcome, "a worker that was killed before the row was written finalises it again"


async def test_an_end_that_was_renamed_by_a_dying_worker_is_put_back() -> None:
    prefect = OneRun(Running(), Completed(), Running(name="Training"))
    assert await finalised(prefect, 0) == "completed" == prefect.shown[0]


@pytest.mark.parametrize("change", [Cancelling(), Completed(), Failed()])
async def test_a_change_between_reading_a_run_and_crashing_it_counts(change: State) -> None:
    """A user cancels it just then, say, which makes Prefect refuse the crash."""
    prefect = OneRun(Running())
    prefect.after_read = lambda: prefect.states.append(change)
    assert await finalised(prefect) == prefect.shown[0] != "crashed"


async def test_a_crash_that_prefect_refuses_for_nothing_is_told_nevertheless(monkeypatch: pytest.MonkeyPatch) -> None:
    prefect = OneRun(Running())
    accept, refuse = prefect._accept, prefect._abort
    answers = [refuse, accept]
    monkeypatch.setattr(prefect, "_accept", lambda state: answers.pop(0)(state))
    assert await finalised(prefect) == "crashed" == prefect.shown[0]


@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize("cause", ["", "Instance 2 of 3 ended first, so all were stopped."])
async def test_a_crash_is_told_by_its_cause_where_the_driver_knows_it(cause: str, retries: int) -> None:
    prefect = OneRun(Running(), Crashed(message="the engine's words"), retries=retries)
    for _ in range(2):  # the second time, the worker was killed before the row was written
        ended = await finalisation(prefect).finalise(prefect.launch(), ExitReport(-15, cause=cause), api_was_away=False)
        assert ended[0] == "crashed" and (cause or "the engine's words") in ended[1]


@pytest.mark.parametrize("state", [Running(), Crashed(message="the engine's words")])
async def test_a_crash_with_retries_left_is_an_attempt_in_the_history(state: State) -> None:
    prefect = OneRun(Running(), state, retries=2)
    assert await finalised(prefect) == "crashed"
    assert prefect.shown == ("scheduled", "AwaitingRetry")
    assert await finalised(prefect) == "crashed", (
        "a worker that was killed before the row was written finalises it again"
    )
    assert [state.name for state in prefect.states].count("AwaitingRetry") == 1


async def test_a_crash_with_retries_left_whose_answer_is_lost_is_an_attempt_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prefect = OneRun(Running(), retries=2)
    prefect.lose_answer = httpx.ReadError("the server was restarted")
    monkeypatch.setattr(module.asyncio, "sleep", no_pause)
    assert await finalised(prefect) == "crashed"
    assert [state.name for state in prefect.states].count("AwaitingRetry") == 1


async def test_an_end_that_another_request_came_between_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect answers 409 where its database refuses a state because of what was written at the same time."""
    prefect = OneRun(Running(), Cancelling())
    request = httpx.Request("POST", "http://prefect/api")
    prefect.unreachable = httpx.HTTPStatusError("conflict", request=request, response=httpx.Response(409))
    monkeypatch.setattr(module.asyncio, "sleep", no_pause)
    assert await finalised(prefect) == "cancelled" == prefect.shown[0]


async def no_pause(seconds: float) -> None:
    """Instead of a pause before Prefect is asked again."""


async def test_a_run_that_waits_again_is_no_attempt() -> None:
    assert await finalised(OneRun(Scheduled())) is None
    earlier = Scheduled(name="AwaitingRetry", message="Try 2 of 3 after a crash. It was another launch's.")
    prefect = OneRun(Pending(message="Claimed by worker w (another-launch)"), earlier)
    assert await finalised(prefect) is None


LOST = {
    "while it started": ExitReport(None, cause="Its node n2 is gone.", lost=True),
    "before it was started": ExitReport(
        None, cause="The engine could not make a container: Connection refused.", lost=True
    ),
}


@pytest.mark.parametrize("report", LOST.values(), ids=LOST.keys())
async def test_a_run_whose_node_was_lost_before_it_began_waits_again_and_each_time_longer(report: ExitReport) -> None:
    """A Swarm needs some seconds to see that a node is lost; until then, the run may be given a place there again."""
    prefect, waits = OneRun(Pending()), []
    for _ in range(8):  # on a bad day; it is no fault of the run's
        outcome, _ = await finalisation(prefect).finalise(prefect.launch(), report, api_was_away=False)
        assert outcome is None
        assert prefect.shown == ("scheduled", "AwaitingRetry")
        due = prefect.states[-1].state_details.scheduled_time
        assert due is not None
        waits.append((due - datetime.now(timezone.utc)).total_seconds())
        prefect.states.append(Pending())
    assert waits == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60], abs=0.9)


async def test_a_run_that_is_ended_before_it_begins_is_not_started_again_for_ever() -> None:
    """That may be its own fault: a module that ends the process, say. The nodes that it lost besides do not count."""
    prefect = OneRun(Pending())
    killed, lost = ExitReport(-9), LOST["while it started"]
    outcomes = []
    for report in (lost, killed, lost, killed, killed, killed, lost, killed, lost, killed):
        run = prefect.launch()
        run.handle = cast(RunHandle, object())  # its process existed
        outcome, _ = await finalisation(prefect).finalise(run, report, api_was_away=False)
        outcomes.append(outcome)
        if outcome is None:
            prefect.states.append(Pending())
    assert outcomes == [*[None] * 9, "crashed"]


async def test_a_run_that_gives_way_waits_by_the_clock_of_the_server() -> None:
    """The clock of the machine has been set forth by an hour: nobody would look at the run before it is over."""
    prefect = OneRun(Running())
    clock = ServerClock()
    clock._before_s = clock.before_s - 3600.0
    await Finalisation(asking(prefect), clock=clock).give_way(prefect.launch(), "another comes first")
    due = prefect.states[-1].state_details.scheduled_time
    assert due is not None and (due - datetime.now(timezone.utc)).total_seconds() < -3000


async def test_a_run_that_gives_way_is_given_one_retry_for_that_though_prefect_is_away_in_between() -> None:
    prefect = OneRun(Running(), retries=2)
    prefect.unreachable = httpx.ConnectError("the server is being restarted")
    await finalisation(prefect).give_way(prefect.launch(), "another comes first")
    assert prefect.shown == ("scheduled", "AwaitingGpu") and prefect.run.empirical_policy.retries == 3


@pytest.mark.parametrize("saved", [True, False])
async def test_a_run_that_gives_way_is_told_the_step_of_its_checkpoint(saved: bool) -> None:
    prefect = OneRun(Running())
    run = prefect.launch()
    if saved:
        run.note(protocol.CHECKPOINT, 2.0, {"step": 47})
    run.note(protocol.PROGRESS, 3.0, {"step": 58})
    await finalisation(prefect).give_way(run, "another comes first")
    told = prefect.states[-1].message or ""
    assert told.endswith("another comes first. It carries on from step 47." if saved else "another comes first."), told


@pytest.mark.parametrize("state", [Pending(), Running()], ids=["not begun", "begun"])
async def test_a_run_that_had_not_begun_is_not_told_that_it_gave_way(state: State) -> None:
    """The disk of the worker's state folder is full, say."""
    prefect = OneRun(state)
    await finalisation(prefect).give_way(prefect.launch(), "the disk is full")
    begun = state.is_running()
    assert prefect.shown == ("scheduled", "AwaitingGpu" if begun else "Scheduled")
    assert prefect.states[-1].message == f"{'It gave way' if begun else 'It had not begun'}: the disk is full."


@pytest.mark.parametrize("leaving", ["another comes first", ""])
async def test_a_run_that_was_stopped_waits_again_though_its_engine_called_that_a_crash(leaving: str) -> None:
    prefect = OneRun(Running(), Crashed(message="Execution was aborted by a termination signal."))
    run = prefect.launch()
    run.record.leaving = leaving
    waits = await Finalisation(asking(prefect), clock=ServerClock()).give_way(run, "another comes first")
    assert (waits is not None) == bool(leaving), "else it was not we who ended it"
    assert prefect.shown == (("scheduled", "AwaitingGpu") if leaving else ("crashed", "Crashed"))


@pytest.mark.parametrize("state", [Pending(), Running(name="Training"), Cancelling()], ids=lambda state: state.name)
async def test_a_run_that_another_worker_has_started_since_is_that_workers(state: State) -> None:
    """Ours was killed after the run had been brought back to its queue, and before it could remove the record."""
    theirs = Pending(message=claim_words("another", "the-launch-2"))
    for retries in (0, 2):
        prefect = OneRun(Running(), Scheduled(name="AwaitingRetry"), theirs, state, retries=retries)
        assert await finalised(prefect) is None
        assert await finalisation(prefect).give_way(prefect.launch(), "another comes first") is None
        assert prefect.states[-1] is state


@pytest.mark.parametrize("change", [Cancelling(), Cancelled(), Completed()], ids=lambda state: state.name)
@pytest.mark.parametrize("way", ["gives way", "crashed", "never began", "is given back"])
async def test_what_a_user_does_while_a_run_is_brought_back_to_its_queue_counts(way: str, change: State) -> None:
    """The run was read, and is cancelled before Prefect is told that it waits again."""
    prefect = OneRun(*([Running()] if way in ("gives way", "crashed") else []), retries=2)
    ends, run = finalisation(prefect), prefect.launch()
    prefect.after_read = lambda: prefect.states.append(change)
    if way == "gives way":
        assert await ends.give_way(run, "another comes first") is None
    elif way == "is given back":
        assert await ends.give_back(run) is None
    else:
        run.handle = cast(RunHandle, object())  # its process existed
        await ends.finalise(run, ExitReport(-9), api_was_away=False)
    assert prefect.shown[0] in ("cancelling", "cancelled", "completed")


@pytest.mark.parametrize("error", ["PrefectHTTPStatusError: Client error '401 Unauthorized'", "ObjectNotFound"])
async def test_a_run_that_a_gateway_refused_as_it_began_is_started_again(error: str) -> None:
    report = ExitReport(1, tail=("raise PrefectHTTPStatusError", f"prefect.exceptions.{error}"))
    prefect = OneRun(Pending())
    outcome, _ = await finalisation(prefect).finalise(prefect.launch(), report, api_was_away=False)
    assert (outcome, prefect.shown) == (None, ("scheduled", "AwaitingRetry"))


async def test_a_run_that_vanished_before_it_began_for_no_known_cause_is_crashed() -> None:
    assert await finalised(OneRun(Pending()), None) == "crashed"


@pytest.mark.parametrize("delay_s", [10**12, 10**30])
async def test_a_retry_that_is_put_off_beyond_all_dates_is_put_off_for_long(delay_s: int) -> None:
    prefect = OneRun(Running(), retries=1)
    prefect.run.empirical_policy.retry_delay = delay_s
    outcome, _ = await finalisation(prefect).finalise(prefect.launch(), ExitReport(-9), api_was_away=False)
    assert (outcome, prefect.shown) == ("crashed", ("scheduled", "AwaitingRetry"))


@pytest.mark.parametrize(
    ("states", "retries", "ended", "becomes"),
    [
        ([], 0, None, ("scheduled", "Scheduled")),
        ([Running()], 0, "crashed", ("crashed", "Crashed")),
        ([Running()], 2, "crashed", ("scheduled", "AwaitingRetry")),
        ([Running(), Completed()], 2, "completed", ("completed", "Completed")),
        ([Running(), Crashed()], 2, "crashed", ("scheduled", "AwaitingRetry")),
        ([Running(), Cancelling()], 0, "cancelled", ("cancelled", "Cancelled")),
        ([Cancelling()], 0, None, ("cancelled", "Cancelled")),
        ([Running(), Scheduled(name="AwaitingGpu", message="It gave way: ")], 0, None, ("scheduled", "AwaitingGpu")),
        ([Running(), Scheduled(), Pending(message=claim_words("v", "f")), Running()], 0, None, ("running", "Running")),
    ],
    ids=[
        *("claimed", "running", "running, with retries", "completed", "crashed, with retries", "being cancelled"),
        *("cancelled before", "gave way", "claimed by another"),
    ],
)
async def test_a_launch_of_which_nothing_is_left_is_known_by_what_prefect_saw(
    states: list[State], retries: int, ended: str | None, becomes: tuple[str, str]
) -> None:
    prefect = OneRun(*states, retries=retries)
    found = await finalisation(prefect).give_back(prefect.launch())
    assert (found[0] if found is not None else None, prefect.shown) == (ended, becomes)
    if found is not None and states[-1].is_final():
        assert found[2] == ServerClock().of(states[-1].timestamp)
