"""A stand-in for a Prefect server with one run, whose answers a test can delay, lose or be overtaken by."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, FlowRunPolicy, State, StateType
from prefect.client.schemas.responses import OrchestrationResult, SetStateStatus, StateAbortDetails, StateRejectDetails
from prefect.client.schemas.responses import StateAcceptDetails as Accepted
from prefect.states import Pending

from prefect_gpu.runtime.launch.launch import Launch
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.worker.server.asking import Asking
from tests.runtime.launches import launched

LOGGER = logging.getLogger("tests.worker")
FOLDER = "the-launch-1"
POOL_ID = uuid4()
HOST_PREFIX = f"{socket.gethostname()}:"


def dead_pid() -> int:
    """A process that is no more."""
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    return pid


def asking(prefect: OneRun) -> Asking:
    """As a worker asks it."""
    return Asking(cast(PrefectClient, prefect), "pool", str(POOL_ID), LOGGER, believed_after_s=0.0)


class OneRun:
    """Prefect's client for one run, with those of the server's rules that finalising meets.

    Attributes:
        after_read: Called once, after the run was read and before the reader learns of it.
        lose_answer: Raised once, after a state was set.
        unreachable: Raised once, instead of setting a state.
    """

    def __init__(self, *states: State, retries: int = 0, run_count: int = 1) -> None:
        self.states = [Pending(message=f"Claimed by worker w ({FOLDER})"), *states]
        policy = FlowRunPolicy(retries=retries)
        self.run = FlowRun(flow_id=uuid4(), name="run", run_count=run_count, empirical_policy=policy)
        self.run.infrastructure_pid = f"{HOST_PREFIX}{dead_pid()}"
        self.after_read: Callable[[], object] | None = None
        self.lose_answer: Exception | None = None
        self.unreachable: Exception | None = None

    @property
    def run_id(self) -> str:
        """The run's id."""
        return str(self.run.id)

    @property
    def shown(self) -> tuple[str, str]:
        """(type, name) of the run's state."""
        return self.states[-1].type.value.lower(), self.states[-1].name or ""

    def as_read(self) -> FlowRun:
        """The run as it is now."""
        return self.run.model_copy(update={"state": self.states[-1], "state_type": self.states[-1].type})

    def launch(self) -> Launch:
        """The launch that claimed the run."""
        return launched(self.run_id, Placement("here", (), ()), folder=Path(FOLDER), times={"granted": 1.0})

    async def api_healthcheck(self) -> Exception | None:
        """See Prefect's client."""
        return None

    async def read_work_pool(self, name: str) -> Any:
        """See Prefect's client."""
        return SimpleNamespace(id=POOL_ID)

    async def read_flow_runs(self, flow_run_filter: FlowRunFilter, limit: int) -> list[FlowRun]:
        """See Prefect's client."""
        assert flow_run_filter.id is not None
        return [self.as_read()] if self.run.id in (flow_run_filter.id.any_ or ()) else []

    async def read_flow_run(self, run_id: UUID) -> FlowRun:
        """See Prefect's client."""
        read = self.as_read()
        after_read, self.after_read = self.after_read, None
        if after_read is not None:
            after_read()
        await asyncio.sleep(0)
        return read

    async def read_flow_run_states(self, run_id: UUID) -> list[State]:
        """See Prefect's client."""
        return list(self.states)

    async def update_flow_run(self, run_id: UUID, **changes: Any) -> None:
        """See Prefect's client."""
        self.run = self.run.model_copy(update=changes)

    async def update_flow_run_labels(self, run_id: UUID, labels: dict[str, Any]) -> None:
        """See Prefect's client. The server reads all labels and writes them all, and others write in between."""
        read = dict(self.run.labels or {})
        await asyncio.sleep(0)
        self.run = self.run.model_copy(update={"labels": {**read, **labels}})

    async def set_flow_run_state(self, run_id: UUID, state: State, force: bool = False) -> OrchestrationResult[Any]:
        """See Prefect's client.

        HandleFlowTerminalStateTransitions, EnforceCancellingToCancelledTransition and HandleResumingPausedFlows.
        """
        unreachable, self.unreachable = self.unreachable, None
        if unreachable is not None:
            raise unreachable
        current, answer = self.states[-1], self._accept
        if not force and current.is_final() and state.type is StateType.CRASHED:
            answer = self._abort
        elif not force and (
            (current.type is StateType.CANCELLING and state.type is not StateType.CANCELLED)
            or (current.type is StateType.PAUSED and state.type is StateType.PENDING)
        ):
            answer = self._reject
        answered = answer(state.model_copy(update={"id": uuid4()}))
        lost, self.lose_answer = self.lose_answer, None
        if lost is not None:
            raise lost
        return answered

    def _accept(self, state: State) -> OrchestrationResult[Any]:
        self.states.append(state)
        return OrchestrationResult(status=SetStateStatus.ACCEPT, state=state, details=Accepted())

    def _abort(self, state: State) -> OrchestrationResult[Any]:
        details = StateAbortDetails(reason="Run is already in terminal state.")
        return OrchestrationResult(status=SetStateStatus.ABORT, state=None, details=details)

    def _reject(self, state: State) -> OrchestrationResult[Any]:
        details = StateRejectDetails(reason="Cannot transition flows that are cancelling.")
        return OrchestrationResult(status=SetStateStatus.REJECT, state=self.states[-1], details=details)
