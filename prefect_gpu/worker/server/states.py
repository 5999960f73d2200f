"""Naming the states of runs without ever losing somebody else's change.

Prefect has no compare-and-set: between our look at a run and our renaming it, its user may cancel it or another
worker may take it. So each renaming is checked afterwards against the run's history, and taken back if it
overwrote anything but what we believed to be there.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import State, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.states import AwaitingRetry, Running, Scheduled

CLAIMED = "Claimed by worker"
"""How the message of a pending run begins that a worker is about to start."""

AWAITING_GPU = "AwaitingGpu"
GAVE_WAY = "It gave way: "
"""How the message of an ``AwaitingGpu`` begins that followed a running state on purpose."""


async def show_waiting(client: PrefectClient, run_id: UUID, reason: str, scheduled_time: datetime | None) -> bool:
    """Name a scheduled run ``AwaitingGpu``, with the reason as its message.

    Returns:
        Whether the run is now shown so; False if it was no longer scheduled.
    """
    state: State = Scheduled(scheduled_time=scheduled_time, name=AWAITING_GPU, message=reason)
    return await _rename(client, run_id, state, StateType.SCHEDULED)


async def show_phase(
    client: PrefectClient,
    run_id: UUID,
    name: str,
    message: str | None = None,
    still: Callable[[], bool] = lambda: True,
) -> bool:
    """Give a running run the name of its phase: ``Preparing``, ``Prepared``, ``Training`` or ``Saving``.

    Prefect counts a run's entries into RUNNING, and its retries depend on that count. A run that is marked as
    resuming is not counted again, so that mark is set first; Prefect removes it as the state is set.

    Args:
        still: Whether the run goes on, as far as is known without Prefect. It is asked last of all: a run says that it
            has finished before it tells Prefect its end.

    Returns:
        Whether the run is now shown so; False if it was no longer running.
    """
    flow_run = await client.read_flow_run(run_id)
    state = flow_run.state
    if (
        state is None
        or state.type is not StateType.RUNNING
        or (state.name == name and message in (None, state.message))
    ):
        return False
    policy = flow_run.empirical_policy
    await client.update_flow_run(run_id, empirical_policy=policy.model_copy(update={"resuming": True}))
    if still() and await _rename(client, run_id, Running(name=name, message=message), StateType.RUNNING):
        return True
    # The run left RUNNING in between: its policy must be as that left it. If it tries again in its process, that was
    # noted before ours came over it, perhaps; without the note, another worker would start it.
    current = await client.read_flow_run(run_id)
    change: dict[str, Any] = {"resuming": False}
    if current.state is not None and current.state.name == AwaitingRetry().name:
        change["retry_type"] = "in_process"
    await client.update_flow_run(run_id, empirical_policy=current.empirical_policy.model_copy(update=change))
    return False


async def claim_was_clean(client: PrefectClient, run_id: UUID, folder: str) -> bool:
    """Whether the PENDING state that we just got followed a scheduled one, as it must.

    A worker's stale view of a run could make it claim a run that another worker has started or even finished
    meanwhile; Prefect refuses some of those claims but not all. If the claim was not clean, what it overwrote is
    put back.

    Args:
        folder: Name of the launch's folder, which its claim names.
    """
    history = await client.read_flow_run_states(run_id)
    claims = [index for index, state in enumerate(history) if state.type is StateType.PENDING]
    # Our first one counts. A later one with our words is its copy: another worker had overwritten it, and put it back.
    # One with other words is another worker's claim, and that worker sees by the same rule that it came too late.
    ours = (index for index in claims if folder in (history[index].message or ""))
    pending = next(ours, claims[-1] if claims else None)
    if pending is None or pending == 0:
        return pending == 0
    before = history[pending - 1]
    gave_way = (before.message or "").startswith(GAVE_WAY)
    if before.type is StateType.SCHEDULED and before.name == AWAITING_GPU and pending >= 2 and not gave_way:
        # An AwaitingGpu that overwrote a claim is about to be taken back by whoever wrote it.
        return history[pending - 2].type is StateType.SCHEDULED
    if before.type is StateType.SCHEDULED:
        return True
    if pending == len(history) - 1:
        await _take_back(client, run_id, history[pending].id, before)
    return False


async def _rename(client: PrefectClient, run_id: UUID, state: State, expected: StateType) -> bool:
    result = await client.set_flow_run_state(run_id, state)
    if result.status is not SetStateStatus.ACCEPT or result.state is None:
        return False
    ours = result.state.id
    history = await client.read_flow_run_states(run_id)
    others = [known for known in history if known.id != ours]
    # A state carries the time of its request, and the history is sorted by that: of two requests at the same moment,
    # the earlier may have been the last to take effect. So what matters is the newest state beside ours.
    if not others or (others[-1].type is expected and history[-1].id == ours):
        return True
    await _take_back(client, run_id, ours, others[-1])
    return False


async def force_if_unchanged(client: PrefectClient, run_id: UUID, state: State, seen: State) -> bool:
    """Bring a run to a state, which Prefect may have to be forced to.

    Args:
        seen: The state that it was in when that was decided.

    Returns:
        Whether it is in the state; False if it had come to another one, such as that of a user who cancels it. That one
        stays.
    """
    result = await client.set_flow_run_state(run_id, state, force=True)
    if result.state is None:
        return True
    ours = result.state.id
    others = [known for known in await client.read_flow_run_states(run_id) if known.id != ours]
    if not others or others[-1].id == seen.id:
        return True
    await _take_back(client, run_id, ours, others[-1])
    return False


async def _take_back(client: PrefectClient, run_id: UUID, ours: UUID, before: State) -> None:
    current = (await client.read_flow_run(run_id)).state
    if current is not None and current.id == ours:
        await put_back(client, run_id, before)


async def put_back(client: PrefectClient, run_id: UUID, state: State) -> None:
    """Make an earlier state the current one again, message, result and all."""
    await client.set_flow_run_state(run_id, copy_of(state), force=True)


def copy_of(state: State) -> State:
    """An earlier state as a new one: of each state there is only one with its id."""
    return State(
        type=state.type, name=state.name, message=state.message, data=state.data, state_details=state.state_details
    )
