"""Brings a run whose process is gone to another state in Prefect, unless somebody else has just done so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.exceptions import Abort
from prefect.states import AwaitingRetry, Cancelled, Crashed, Scheduled
from prefect.utilities.engine import propose_state

from prefect_gpu.runtime.drivers.base import ExitReport
from prefect_gpu.runtime.launch.diagnosis import diagnose
from prefect_gpu.worker.server.server_clock import ServerClock
from prefect_gpu.worker.server.states import force_if_unchanged
from prefect_gpu.worker.server.unreadable import UnreadableRun, read_run

T = TypeVar("T")

AFTER_A_CRASH = " after a crash. "
"""In the message of a run that was brought back to its queue: what crashed stands behind it."""

_LONGEST_DELAY_S = 1e9  # of a retry: thirty years. There are no dates for all that a flow may say
_OVERTAKEN_S = 0.2  # before a run is looked at again that has just come to another state


class OvertakenError(Exception):
    """The run came to another state as it was brought back to its queue, and is in that one: look at it again."""


async def undisturbed(work: Callable[[], Awaitable[T]]) -> T:
    """What this gives, as soon as no other state comes between reading a run and bringing it to one."""
    while True:
        with suppress(OvertakenError):
            return await work()


def is_tried_again(flow_run: FlowRun) -> bool:
    """Whether a run whose process crashes now has a retry left."""
    return 0 < flow_run.run_count <= (flow_run.empirical_policy.retries or 0)


class Settling:
    """Changes the states of runs whose process is gone.

    Args:
        clock: The server's.
    """

    def __init__(
        self,
        client: PrefectClient,
        clock: ServerClock,
        logger: logging.Logger | logging.LoggerAdapter[Any],
    ) -> None:
        self._client, self._clock, self._logger = client, clock, logger

    async def force(self, flow_run: FlowRun, state: State) -> None:
        """Bring the run to a state. It waits again only if it still is as it was read.

        Raises:
            OvertakenError: It is not: its user has cancelled it just now, say.
        """
        if state.type is not StateType.SCHEDULED:
            await self._client.set_flow_run_state(flow_run.id, state, force=True)
            return
        policy = flow_run.empirical_policy.model_copy(update={"retry_type": "reschedule", "resuming": False})
        await self._client.update_flow_run(flow_run.id, empirical_policy=policy)
        if flow_run.state is None or isinstance(flow_run, UnreadableRun):  # then nobody knows the state's id
            await self._client.set_flow_run_state(flow_run.id, state, force=True)
        elif not await force_if_unchanged(self._client, flow_run.id, state, flow_run.state):
            await asyncio.sleep(_OVERTAKEN_S)  # whoever goes on and on with it must not be raced
            raise OvertakenError

    async def cancel(self, flow_run: FlowRun) -> None:
        """A cancellation that no process is left to finish is finished."""
        await self.force(flow_run, Cancelled(message="Cancelled; no process of it was running."))

    async def give_back(self, flow_run: FlowRun, message: str) -> None:
        """The run had not begun. It waits again, and is due when it was."""
        due = flow_run.next_scheduled_start_time or flow_run.expected_start_time
        await self.force(flow_run, Scheduled(scheduled_time=due, message=message))

    async def again(self, flow_run: FlowRun, message: str, at_least_s: float = 0.0) -> None:
        """The run is tried again, after its own delay, or after so many seconds if that is longer."""
        delay_s = min(max(flow_run.empirical_policy.retry_delay or 0, at_least_s), _LONGEST_DELAY_S)
        due = self._clock.now() + timedelta(seconds=delay_s)
        await self.force(flow_run, AwaitingRetry(scheduled_time=due, message=message))

    async def retry(self, flow_run: FlowRun, crash: str) -> bool:
        """A crashed run of a flow with retries left goes back to the queue; Prefect itself retries only failures.

        It does so without being Crashed in between: that is a final state, and whoever waits for the run would take
        it for the end.
        """
        if not is_tried_again(flow_run):
            return False
        retries = flow_run.empirical_policy.retries or 0
        await self.again(flow_run, f"Try {flow_run.run_count + 1} of {retries + 1}{AFTER_A_CRASH}{crash}")
        return True

    async def crash(self, flow_run: FlowRun, report: ExitReport) -> str:
        """Let the run be crashed, or bring it back to its queue.

        Returns:
            What became of its process, in words.

        Raises:
            OvertakenError: It is not in the state any more that was read. A user may cancel it just now, and an end
                that somebody else told Prefect must not be overwritten.
        """
        message = diagnose(report)
        self._logger.warning("Run %s crashed: %s", flow_run.name, message.splitlines()[0])
        if await self.retry(flow_run, message):
            return message
        with suppress(Abort):
            if (await propose_state(self._client, Crashed(message=message), flow_run_id=flow_run.id)).is_crashed():
                return message
        current = (await read_run(self._client, flow_run.id)).state
        if current is not None and flow_run.state is not None and current.id != flow_run.state.id:
            raise OvertakenError
        await self.force(flow_run, Crashed(message=message))
        return message
