"""The flow runs of a sweep's trials: started, looked at all together, resumed where they had stopped, and given up."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any
from uuid import UUID

from prefect import tags
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import TERMINAL_STATES, FlowRun, State, StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Scheduled

from prefect_gpu.decorators import GpuFlow
from prefect_gpu.training.protocol import ENV_TRIAL
from prefect_gpu.training.trial import AT_A_RUNG, TrialOf

_AT_ONCE = 200  # flow runs that Prefect gives in one answer
_UNSURE_S = 30.0  # a run has crashed, and its worker may bring it back to its queue
_COUNT_S = 30.0  # from one look for deleted runs to the next
_CUT_OFF = "Its submission was cut off."
_NOT_SENT = "Flow run submission failed"  # how Prefect's own message begins


class NotSentError(RuntimeError):
    """The flow could not be put where the pool's runs take it from: a share or S3 is away, or full."""


def start(train: GpuFlow[..., Any], parameters: Mapping[str, Any], about: TrialOf | None, tag: str) -> UUID:
    """Start a trial's run in the flow's pool; ``about`` has it talk to the study, and its tag finds it again.

    Raises:
        httpx.HTTPError: Prefect is out of reach.
        NotSentError: The pool's storage of flows is.
    """
    if about is not None:
        env = {**(train.job_variables.get("env") or {}), ENV_TRIAL: about.as_text()}
        train = train.with_options(job_variables={**train.job_variables, "env": env})
    with tags(tag):
        try:
            return train.submit(**parameters).flow_run_id
        except RuntimeError as error:
            if isinstance(error.__cause__, subprocess.CalledProcessError):  # of the pool's upload step
                raise NotSentError(str(error)) from error
            raise


def begun(tag: str) -> UUID | None:
    """The run that was started with this tag, by who was then cut off; None: there is none.

    One that was cut off before its flow was there to be run is cancelled: no worker would ever take it. One whose flow
    could not be sent has failed, and does not count either.

    Raises:
        httpx.HTTPError: Prefect is out of reach.
    """
    found = None
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(flow_run_filter=FlowRunFilter(tags=FlowRunFilterTags(all_=[tag]))):
            if run.state is not None and run.state.is_pending() and not run.state.message:  # a worker's claim has one
                cancelled: State = Cancelled(message=_CUT_OFF)
                client.set_flow_run_state(run.id, cancelled, force=True)
            elif run.state is None or not (run.state.message or "").startswith((_CUT_OFF, _NOT_SENT)):
                found = run.id
    return found


class Watch:
    """Looks at runs again and again: which of them are over, or have stopped at a rung.

    Args:
        say: Told, with the run's id, of a run that somebody has suspended by hand.
        clock: Monotonic seconds; tests may replace it.

    Attributes:
        suspended: Those that somebody has suspended by hand. They are not over.
    """

    def __init__(self, say: Callable[[UUID], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.suspended: set[UUID] = set()
        self._say, self._clock = say, clock
        self._crashed: dict[UUID, float] = {}  # since when, of those that may be tried again
        self._missed: set[UUID] = set()
        self._counted_at = clock()

    def over(self, ids: Collection[UUID]) -> list[tuple[UUID, FlowRun | None]]:
        """Those of the runs that are over, or have stopped at a rung; without a run: it was deleted.

        One question to Prefect, however many there are.

        Raises:
            httpx.HTTPError: Prefect is out of reach.
        """
        at_rest = {run.id: run for run in _read(ids, _AT_REST)}
        by_hand = {run_id for run_id, run in at_rest.items() if _is_suspended_by_hand(run)}
        for run_id in by_hand - self.suspended:
            self._say(run_id)
        self.suspended = by_hand
        unsure = {run_id for run_id, run in at_rest.items() if _may_be_tried_again(run)}
        self._crashed = {run_id: self._crashed.get(run_id, self._clock()) for run_id in unsure}
        unsure -= {run_id for run_id, since in self._crashed.items() if self._clock() - since > _UNSURE_S}
        found: list[tuple[UUID, FlowRun | None]] = []
        found += [(run_id, run) for run_id, run in at_rest.items() if run_id not in by_hand | unsure]
        return found + [(run_id, None) for run_id in self._deleted(ids)]

    def _deleted(self, ids: Collection[UUID]) -> set[UUID]:
        """Those that were missed twice: once may be a server that is just being restored."""
        if self._clock() - self._counted_at < _COUNT_S:
            return set()
        self._counted_at = self._clock()
        missed = set(ids) - {run.id for run in _read(ids)}
        before, self._missed = self._missed, missed
        return before & missed


_AT_REST = FlowRunFilterState(type=FlowRunFilterStateType(any_=[*TERMINAL_STATES, StateType.PAUSED]))


def _read(ids: Collection[UUID], state: FlowRunFilterState | None = None) -> Iterator[FlowRun]:
    wanted = list(ids)
    with get_client(sync_client=True) as client:
        for start in range(0, len(wanted), _AT_ONCE):
            chosen = FlowRunFilter(id=FlowRunFilterId(any_=wanted[start : start + _AT_ONCE]), state=state)
            yield from client.read_flow_runs(flow_run_filter=chosen, limit=_AT_ONCE)


def _is_suspended_by_hand(run: FlowRun) -> bool:
    return run.state is not None and run.state.is_paused() and not (run.state.message or "").startswith(AT_A_RUNG)


def _may_be_tried_again(run: FlowRun) -> bool:
    """Whether it has crashed, and its worker may yet bring it back to its queue.

    A process that is asked from outside to stop tells Prefect by itself that it has crashed, before the worker comes
    to speak: a gang of which another node was lost does so. One that never ran was refused, and is not brought back.
    """
    if run.state is None or not run.state.is_crashed() or not run.run_count:
        return False
    variables, retries = run.job_variables or {}, run.empirical_policy.retries or 0
    preemptible = any(variables.get(name) for name in ("preemptible", "max_gpus", "max_workers"))
    return preemptible or run.run_count <= retries


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
        try:
            state = client.read_flow_run(run_id).state
        except ObjectNotFound:
            return
        if state is not None and state.is_paused():
            client.set_flow_run_state(run_id, Cancelled(message=message), force=True)
