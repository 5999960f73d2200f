"""The work pool as Prefect has it: which runs wait, what is limited, what other workers hold."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterNextScheduledStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
    WorkQueueFilter,
    WorkQueueFilterName,
)
from prefect.client.schemas.objects import Flow, FlowRun, StateType
from prefect.client.schemas.responses import DeploymentResponse

from prefect_gpu.scheduling.model.cluster import Queue, Quotas
from prefect_gpu.worker.server.run_lists import RunLists
from prefect_gpu.worker.server.server_clock import ServerClock
from prefect_gpu.worker.server.states import CLAIMED

T = TypeVar("T")
_CACHED_S = 10.0
# So many runs are read one by one, which is quicker; more are read with one query.
_READ_SINGLY = 4
_MOST_CACHED = 1000


class PoolView:
    """Reads one pool through Prefect's API.

    Args:
        queue_names: The work queues that the worker serves; empty for all.
        logger: Told of runs that Prefect cannot list.

    Attributes:
        clock: The server's.
    """

    def __init__(
        self,
        client: PrefectClient,
        pool_name: str,
        queue_names: Iterable[str],
        logger: logging.Logger,
        clock: ServerClock | None = None,
    ) -> None:
        self.clock = clock or ServerClock()
        self._client = client
        self._pool_name = pool_name
        self._queue_names = sorted(queue_names)
        self._lists = RunLists(client, logger)
        self._deployments: dict[UUID, tuple[float, DeploymentResponse]] = {}
        self._flows: dict[UUID, Flow] = {}

    def serves(self, flow_run: FlowRun) -> bool:
        """Whether the worker serves the queue of this run, which is of the pool."""
        return not self._queue_names or flow_run.work_queue_name in self._queue_names

    def due_until(self, prefetch_s: float) -> datetime:
        """Until when runs must be due to be looked at now."""
        return self.clock.now() + timedelta(seconds=prefetch_s)

    def scheduled_runs(self, until: datetime, since: datetime | None = None) -> AsyncIterator[list[FlowRun]]:
        """Every run that is scheduled to start by then, and not before ``since``, page after page.

        Prefect's own query for workers stops at one page and leaves out what a limit keeps back; a run that could
        start must not be hidden behind two hundred that could not.
        """
        return self._pages(_due(until, since), [StateType.SCHEDULED])

    async def count_scheduled(self, until: datetime) -> int:
        """How many runs are scheduled to start by then."""
        scheduled = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED]))
        return await self._client.count_flow_runs(
            flow_run_filter=_due(until).model_copy(update={"state": scheduled}),
            work_pool_filter=self._is_ours,
            work_queue_filter=self._in_our_queues,
        )

    async def runs_by_id(self, run_ids: Iterable[UUID]) -> list[FlowRun]:
        """The runs of those ids, as they are now; those that do not exist (any more) are left out."""
        ids = list(run_ids)
        return await (self._lists.by_id(ids) if len(ids) > _READ_SINGLY else self._lists.singly(ids))

    async def runs_in_state(self, *types: StateType) -> list[FlowRun]:
        """All runs of the pool in one of the state types."""
        # By id: a run that comes while the pages are read has the one at their border read twice.
        return list({run.id: run async for page in self._pages(FlowRunFilter(), types) for run in page}.values())

    async def quotas(self, ours: Callable[[], set[str]], worker_limit: int | None) -> Quotas:
        """The limits of the pool and its queues.

        Args:
            ours: Gives the ids of the runs that this worker has active when asked: they are not "elsewhere".
            worker_limit: The worker's own ``--limit``.
        """
        pool = await self._client.read_work_pool(self._pool_name)
        queues = await self._client.read_work_queues(work_pool_name=self._pool_name)
        elsewhere: Counter[Any] = Counter()
        if pool.concurrency_limit is not None or any(queue.concurrency_limit is not None for queue in queues):
            active = await self.runs_in_state(StateType.RUNNING, StateType.PENDING)
            here = ours()  # asked afterwards, so that what was launched meanwhile is not counted twice
            for flow_run in active:
                if str(flow_run.id) not in here and _is_active(flow_run):
                    elsewhere[flow_run.work_queue_id] += 1
        return Quotas(
            queues=tuple(
                Queue(
                    id=str(queue.id),
                    name=queue.name,
                    priority=queue.priority or 1,
                    paused=bool(queue.is_paused),
                    limit=queue.concurrency_limit,
                    active_elsewhere=elsewhere[queue.id],
                )
                for queue in sorted(queues, key=lambda queue: str(queue.id))
            ),
            pool_paused=bool(pool.is_paused),
            pool_limit=pool.concurrency_limit,
            pool_active_elsewhere=sum(elsewhere.values()),
            worker_limit=worker_limit,
        )

    async def mark_ready(self) -> None:
        """Let the server know that the queues are polled: it shows them, and their deployments, as ready."""
        await self._client.get_scheduled_flow_runs_for_work_pool(
            work_pool_name=self._pool_name,
            work_queue_names=self._queue_names,
            scheduled_before=datetime(2000, 1, 1, tzinfo=timezone.utc),
        )

    async def deployment(self, deployment_id: UUID) -> DeploymentResponse:
        """A deployment, at most ten seconds old. Raises ObjectNotFound if it was deleted."""
        known = self._deployments.get(deployment_id)
        if known is None or time.monotonic() - known[0] > _CACHED_S:
            known = (time.monotonic(), await self._client.read_deployment(deployment_id))
            _keep(self._deployments, deployment_id, known)
        return known[1]

    async def flow(self, flow_id: UUID) -> Flow:
        """A flow; what is read of it never changes."""
        if flow_id not in self._flows:
            _keep(self._flows, flow_id, await self._client.read_flow(flow_id))
        return self._flows[flow_id]

    @property
    def _is_ours(self) -> WorkPoolFilter:
        return WorkPoolFilter(name=WorkPoolFilterName(any_=[self._pool_name]))

    @property
    def _in_our_queues(self) -> WorkQueueFilter | None:
        return WorkQueueFilter(name=WorkQueueFilterName(any_=self._queue_names)) if self._queue_names else None

    def _pages(self, chosen: FlowRunFilter, types: Collection[StateType]) -> AsyncIterator[list[FlowRun]]:
        return self._lists.in_state(
            chosen, types, work_pool_filter=self._is_ours, work_queue_filter=self._in_our_queues
        )


def _is_active(flow_run: FlowRun) -> bool:
    """Whether a running or pending run is a worker's.

    One that is only being submitted is pending, too, without a claim. It stays so for ever if whoever submits it is
    killed meanwhile, and must keep nobody from starting.
    """
    state = flow_run.state
    return state is not None and (state.type is StateType.RUNNING or (state.message or "").startswith(CLAIMED))


def _keep(cache: dict[UUID, T], key: UUID, value: T) -> None:
    """A worker may go on for years, and each run that is submitted without a deployment may be of a flow of its own."""
    if len(cache) >= _MOST_CACHED:
        cache.clear()
    cache[key] = value


def _due(until: datetime, since: datetime | None = None) -> FlowRunFilter:
    return FlowRunFilter(
        next_scheduled_start_time=FlowRunFilterNextScheduledStartTime(before_=until, after_=since),  # type: ignore[arg-type]
    )


def is_waiting(flow_run: FlowRun) -> bool:
    """Whether a run waits for a worker; one that is between two tries within its own process does not."""
    return (
        flow_run.state is not None
        and flow_run.state.type is StateType.SCHEDULED
        and flow_run.empirical_policy.retry_type != "in_process"
    )
