"""What a submitted run returns, once it is over, whatever its last state is called."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import copy_context
from threading import Thread
from typing import TypeVar

import anyio
import httpx
from prefect.exceptions import ObjectNotFound
from prefect.futures import PrefectFlowRunFuture, PrefectFuture

R = TypeVar("R")
_FIRST_LOOK_S, _LAST_LOOK_S = 5.0, 30.0
"""After so many seconds Prefect is asked whether the run is over; each pause is twice as long, up to the last."""


class RunFuture(PrefectFlowRunFuture[R]):
    """A run in the pool.

    Prefect's own future waits for an event of the run's end, and knows five names of it. A run that has reached its
    time limit ends as ``TimedOut``, and a flow may give its last state any name. So this one looks, too, now and then.
    """

    async def wait_async(self, timeout: float | None = None) -> None:
        """Wait until the run is over, or for so many seconds."""
        end = float("inf") if timeout is None else time.monotonic() + timeout
        pause, reached = _FIRST_LOOK_S, False
        while True:
            left = max(0.0, end - time.monotonic())
            try:
                await super().wait_async(timeout=min(pause, left))
                reached = True
            except httpx.HTTPError as error:
                refused = isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500
                if refused or not reached:
                    raise
                await anyio.sleep(min(pause, left))  # a server that starts anew: the run goes on
            if self._final_state or left <= pause:
                return
            pause = min(2 * pause, _LAST_LOOK_S)

    def add_done_callback(self, fn: Callable[[PrefectFuture[R]], None]) -> None:
        """Call it with this future once the run is over, or deleted, from another thread; at once if it is over."""
        if self._final_state:
            fn(self)
            return
        # Prefect's settings are in the context.
        Thread(target=copy_context().run, args=(self._call_then, fn), name="run-future", daemon=True).start()

    def _call_then(self, fn: Callable[[PrefectFuture[R]], None]) -> None:
        while not self._final_state:
            try:
                self.wait()
            except ObjectNotFound:  # who asks for its result is told so
                break
            except httpx.HTTPError:  # the server may come back, and as_completed has a limit of its own
                time.sleep(_LAST_LOOK_S)
        fn(self)
