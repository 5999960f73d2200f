"""A run of which nothing is left, while users, the run itself and other workers come between."""

from __future__ import annotations

import pytest
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Cancelling, Completed, Failed, Pending, Running, Scheduled

from prefect_gpu.worker.endings.claims import claim_words
from prefect_gpu.worker.endings.orphans import Orphans
from prefect_gpu.worker.server import asking as module
from tests.worker.prefect_stand_in import HOST_PREFIX, OneRun, asking


def orphans(prefect: OneRun, scope: str = "", host_prefix: str = HOST_PREFIX) -> Orphans:
    return Orphans(asking(prefect), host_prefix, scope)


async def bury(prefect: OneRun, *ours: str) -> None:
    """Bury the run as it was read, unless something comes between."""
    read = prefect.as_read()
    after_read, prefect.after_read = prefect.after_read, None
    if after_read is not None:
        after_read()
    await orphans(prefect).bury([read], set(ours))


async def test_a_run_of_which_nothing_is_left_is_crashed() -> None:
    prefect = OneRun(Running())
    await bury(prefect, prefect.run_id)
    assert prefect.shown[0] == "running", "it is launched here"
    await bury(prefect)
    assert prefect.shown[0] == "crashed"


async def test_a_process_of_another_worker_that_is_online_is_that_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its machine may be called as this one is, and its processes have other numbers in a container."""
    prefect, online, asked = OneRun(Running()), [True, True, False], list[str]()

    async def is_online(name: str) -> bool:
        asked.append(name)
        return online.pop(0)

    async def no_pause(seconds: float) -> None:
        assert prefect.shown[0] == "running"

    monkeypatch.setattr(module.asyncio, "sleep", no_pause)
    one = Orphans(asking(prefect), HOST_PREFIX, online=is_online)
    await one.bury([prefect.as_read()], set())
    assert (prefect.shown[0], asked, online) == ("crashed", ["w"] * 3, [])

    prefect, online = OneRun(Running(), Cancelling()), [True, False]
    one = Orphans(asking(prefect), HOST_PREFIX, online=is_online)
    await one.cancel_if_ours(prefect.as_read())
    assert prefect.shown[0] == "cancelling"
    await one.cancel_if_ours(prefect.as_read())
    assert prefect.shown[0] == "cancelled"


async def test_a_cancelled_run_of_which_nothing_is_left_is_cancelled() -> None:
    prefect = OneRun(Running(), Cancelling())
    await bury(prefect)
    assert prefect.shown[0] == "cancelled"


@pytest.mark.parametrize("container", ["0123456789ab", "999999999999"])
async def test_a_container_on_a_node_that_is_called_as_this_machine_is_no_process_of_it(container: str) -> None:
    prefect = OneRun(Running())
    prefect.run.infrastructure_pid = f"{HOST_PREFIX}{container}"
    await bury(prefect)
    assert prefect.shown[0] == "running"
    prefect = OneRun(Running(), Cancelling())
    prefect.run.infrastructure_pid = f"{HOST_PREFIX}{container}"
    await orphans(prefect).cancel_if_ours(prefect.as_read())
    assert prefect.shown[0] == "cancelling"


@pytest.mark.parametrize(("pid", "ends"), [(str(2**31), "crashed"), ("9" * 11, "crashed"), ("²", "running")])
async def test_a_pid_that_somebody_else_has_written_is_none_of_a_process(pid: str, ends: str) -> None:
    odd = OneRun(Running())
    odd.run.infrastructure_pid = f"{HOST_PREFIX}{pid}"
    await orphans(odd).bury([odd.as_read()], set())
    assert odd.shown[0] == ends


async def test_a_cancellation_is_finished_where_the_process_was() -> None:
    prefect = OneRun(Running(), Cancelling())
    await orphans(prefect, host_prefix="elsewhere:").cancel_if_ours(prefect.as_read())
    assert prefect.shown[0] == "cancelling"
    await orphans(prefect).cancel_if_ours(prefect.as_read())
    assert prefect.shown[0] == "cancelled"


async def test_a_cancellation_is_finished_by_who_leads_where_the_container_was() -> None:
    prefect = claimed_for("swarm-1", Running(), Cancelling())
    prefect.run.infrastructure_pid = "node:0123456789ab"
    await orphans(prefect, "swarm-2").cancel_if_ours(prefect.as_read())
    assert prefect.shown[0] == "cancelling"
    await orphans(prefect, "swarm-1").cancel_if_ours(prefect.as_read())
    assert prefect.shown[0] == "cancelled"


@pytest.mark.parametrize("end", [Completed(), Cancelled(), Failed(), Pending()])
async def test_a_run_that_was_adopted_and_settled_since_it_was_read_is_no_orphan(end: State) -> None:
    prefect = OneRun(Running())
    prefect.after_read = lambda: prefect.states.append(end)
    await bury(prefect)
    assert prefect.states[-1] is end


async def bury_of(prefect: OneRun, scope: str, *ours: str) -> None:
    read = prefect.as_read()
    after_read, prefect.after_read = prefect.after_read, None
    if after_read is not None:
        after_read()
    await orphans(prefect, scope).bury([read], set(ours))


def claimed_for(scope: str, *states: State, retries: int = 0) -> OneRun:
    """A run that a worker has claimed for an Engine or a Swarm; what Prefect knows of its container is not needed."""
    prefect = OneRun(retries=retries)
    prefect.states = [Pending(message=claim_words("w", "folder-1", scope)), *states]
    prefect.run.infrastructure_pid = None
    return prefect


@pytest.mark.parametrize(
    ("states", "retries", "becomes"),
    [
        ([], 0, ("scheduled", "Scheduled")),
        ([Running()], 0, ("crashed", "Crashed")),
        ([Running()], 2, ("scheduled", "AwaitingRetry")),
        ([Running(), Cancelling()], 2, ("cancelled", "Cancelled")),
    ],
    ids=["claimed", "running", "running, with retries", "being cancelled"],
)
async def test_who_takes_over_without_records_loses_no_run(
    states: list[State], retries: int, becomes: tuple[str, str]
) -> None:
    prefect = claimed_for("swarm-1", *states, retries=retries)
    before = prefect.shown
    await bury_of(prefect, "swarm-2")
    assert prefect.shown == before, "it runs elsewhere"
    await bury_of(prefect, "swarm-1", prefect.run_id)
    assert prefect.shown == before, "it is ours"
    await bury_of(prefect, "swarm-1")
    assert prefect.shown == becomes


async def test_a_run_that_was_claimed_anew_elsewhere_is_left_to_who_claimed_it() -> None:
    prefect = claimed_for("swarm-1", Running(), Scheduled(), Pending(message=claim_words("v", "f")), Running())
    await bury_of(prefect, "swarm-1")
    assert prefect.shown[0] == "running"


@pytest.mark.parametrize("end", [Completed(), Cancelled(), Failed(), Scheduled()])
async def test_a_run_without_a_record_that_ends_just_now_keeps_its_end(end: State) -> None:
    prefect = claimed_for("swarm-1", Running())
    prefect.after_read = lambda: prefect.states.append(end)
    await bury_of(prefect, "swarm-1")
    assert prefect.states[-1] is end


async def test_a_run_that_ends_while_it_is_looked_at_again_keeps_its_end() -> None:
    prefect = OneRun(Running())
    read = prefect.as_read()
    prefect.after_read = lambda: prefect.states.append(Completed())
    await orphans(prefect).bury([read], set())
    assert prefect.shown[0] == "completed"
