"""Waiting for something that nobody tells of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

_DEADLINE_S = 120.0  # against hanging for ever


class WaitedInVain(RuntimeError):
    """It did not come to pass in time. The message says what was waited for."""


async def until(
    condition: Callable[[], Any], what: str, *, deadline_s: float = _DEADLINE_S, every_s: float = 0.05
) -> None:
    """Wait until something is so.

    Args:
        condition: What it raises ends the waiting.
        what: What is waited for, for the message.

    Raises:
        WaitedInVain: It was not within the time.
    """
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise WaitedInVain(f"Waited {deadline_s:.0f} s in vain for {what}")
        await asyncio.sleep(every_s)
