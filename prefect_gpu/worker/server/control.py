"""Prefect's own channel to its engine: it lets a run that is stopped end as cancelled, with its hooks.

The channel is a private part of Prefect (``prefect.runner``), used by its process worker too. It is used here and
nowhere else but in ``runtime/drivers/intent.py``, which speaks it in a container. Where it is missing or
unanswered, the signal alone must do: the run then passes through Crashed.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any
from uuid import UUID

try:
    from prefect.runner._control_channel import ControlChannel
except ImportError:  # another version of Prefect
    ControlChannel = None  # type: ignore[assignment,misc]

CONTROL_VARIABLES = ("PREFECT__CONTROL_PORT", "PREFECT__CONTROL_TOKEN")


class EngineControl:
    """Registers runs before they start, and tells their engines that a signal means a cancellation."""

    def __init__(self) -> None:
        self._channel: Any = None

    async def open(self, stack: AsyncExitStack) -> None:
        """Listen until the stack is closed. Once is enough: the session may be opened again after it has failed."""
        if ControlChannel is not None and self._channel is None:
            self._channel = await stack.enter_async_context(ControlChannel())

    def register(self, run_id: str) -> dict[str, str]:
        """Environment variables that let the run's engine find the channel."""
        if self._channel is None:
            return {}
        port, token = self._channel.register(UUID(run_id))
        return dict(zip(CONTROL_VARIABLES, (str(port), token), strict=True))

    async def announce_cancellation(self, run_id: str) -> None:
        """Tell the run's engine that the signal that follows is a cancellation. Does nothing if it cannot be told."""
        if self._channel is not None:
            await self._channel.signal(UUID(run_id), "cancel")

    async def relinquish(self, run_id: str) -> None:
        """Tell the run's engine that the signal that follows is none of its business. Not if it cannot be told."""
        if self._channel is not None:
            await self._channel.signal(UUID(run_id), "relinquish")

    def unregister(self, run_id: str) -> None:
        """The run's process is gone."""
        if self._channel is not None:
            self._channel.unregister(UUID(run_id))
