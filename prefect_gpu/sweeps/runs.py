"""The flow runs of a sweep's trials: started, looked at all together, resumed where they had stopped, and given up."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import TERMINAL_STATES, FlowRun, StateType
from prefect.states import Cancelled, Scheduled

from prefect_gpu.decorators import GpuFlow
from prefect_gpu.training.protocol import ENV_TRIAL
from prefect_gpu.training.trial import TrialOf

_AT_ONCE = 200  # flow runs that Prefect gives in one answer


def start(train: GpuFlow[..., Any], parameters: Mapping[str, Any], about: TrialOf | None) -> UUID:
    """Start a trial's run in the flow's pool; ``about`` has it talk to the study."""
    if about is not None:
        env = {**(train.job_variables.get("env") or {}), ENV_TRIAL: about.as_text()}
        train = train.with_options(job_variables={**train.job_variables, "env": env})
    return train.submit(**parameters).flow_run_id


def at_rest(ids: Collection[UUID]) -> Iterator[FlowRun]:
    """Those of the runs that are over or suspended; one question to Prefect, however many there are."""
    wanted = list(ids)
    types = FlowRunFilterState(type=FlowRunFilterStateType(any_=[*TERMINAL_STATES, StateType.PAUSED]))
    with get_client(sync_client=True) as client:
        for start in range(0, len(wanted), _AT_ONCE):
            chosen = FlowRunFilter(id=FlowRunFilterId(any_=wanted[start : start + _AT_ONCE]), state=types)
            yield from client.read_flow_runs(flow_run_filter=chosen, limit=_AT_ONCE)


def resume(run_id: UUID, message: str) -> None:
    """Let a suspended run wait for a device again; it carries on from its checkpoint. This is no retry of it."""
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(run_id)
        if run.state is None or not run.state.is_paused():
            return  # somebody has cancelled it, say: the next look will tell
        policy = run.empirical_policy
        retries = policy.retries + 1 if policy.retries else policy.retries  # Prefect counts each start as a try
        policy = policy.model_copy(update={"retry_type": "reschedule", "resuming": False, "retries": retries})
        client.update_flow_run(run_id, empirical_policy=policy)
        # By force: Prefect's rules let only runs of a deployment go on.
        client.set_flow_run_state(
            run_id, Scheduled(scheduled_time=datetime.now(timezone.utc), message=message), force=True
        )


def give_up(run_id: UUID, message: str) -> None:
    """A suspended run is not needed any more. The pool's worker removes its checkpoint some days later."""
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(run_id).state
        if state is not None and state.is_paused():
            client.set_flow_run_state(run_id, Cancelled(message=message), force=True)
