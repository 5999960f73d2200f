"""A run that its user suspends in Prefect saves its progress and gives its devices back; Resume lets it carry on.

Prefect only marks the run: its process would go on, and hold its devices, until it begins another task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun, State, StateType

from prefect_gpu.runtime.launch.launch import Launch
from prefect_gpu.training.trial import AT_A_RUNG
from prefect_gpu.worker.server.states import copy_of, force_if_unchanged

SUSPENDED = "suspended"  # what is said of a launch that ended so
WORDS = "its user suspended it"
REFUSED = (
    "It was not suspended: it does not say @gpu(preemptible=True), so it may have to begin anew. Let it save "
    "checkpoints (run.report(checkpoint=...) and run.restore()), and say so."
)
_PLACE_LOST = (
    " Meanwhile Prefect has given its place under its deployment's concurrency limit to others, and will end it within "
    "four minutes."
)

LEAVES_BY_ITSELF_S = 5.0
"""So long has a run that is not preemptible to end by itself: one does that has suspended itself, or begins a task."""


def is_suspended(state: State | None) -> bool:
    """Whether a state is Prefect's ``Suspended``. One that is merely paused keeps its process, and its devices."""
    return state is not None and state.type is StateType.PAUSED and bool(state.state_details.pause_reschedule)


def suspends_itself(state: State | None) -> bool:
    """Whether the run is a trial that has stopped at a rung: it has saved its progress, and its process is ending."""
    return state is not None and (state.message or "").startswith(AT_A_RUNG)


def suspended_before(history: Sequence[State]) -> State | None:
    """The suspension that the last state of a run came over, as its engine reports a crash when it is stopped."""
    return history[-2] if len(history) > 1 and is_suspended(history[-2]) else None


async def refuse(client: PrefectClient, run: Launch, seen: FlowRun) -> str:
    """Let a run go on that its user has suspended.

    Returns:
        What its user is told; empty: it has ended by itself, or is not suspended any more.
    """
    try:
        await asyncio.wait_for(run.gone.wait(), LEAVES_BY_ITSELF_S)
        return ""
    except asyncio.TimeoutError:
        pass
    flow_run = await client.read_flow_run(seen.id)
    if flow_run.state is None or seen.state is None:
        return ""
    message = flow_run.state.message or ""
    if flow_run.state.type is StateType.RUNNING and message.startswith(REFUSED):
        return message  # it was done, and the answer was lost
    if flow_run.state.id != seen.state.id:
        return ""
    history = await client.read_flow_run_states(seen.id)
    before = next((state for state in reversed(history) if state.type is StateType.RUNNING), None)
    if before is None:
        return ""
    # Prefect counts a run's entries into RUNNING as tries, but not of one that is marked as resuming.
    policy = flow_run.empirical_policy.model_copy(update={"resuming": True})
    await client.update_flow_run(seen.id, empirical_policy=policy)
    # What holds the place is in the run's engine, which cannot be given another one.
    words = REFUSED + (_PLACE_LOST if before.state_details.deployment_concurrency_lease_id else "")
    refused = copy_of(before.model_copy(update={"message": words}))
    return words if await force_if_unchanged(client, seen.id, refused, flow_run.state) else ""
