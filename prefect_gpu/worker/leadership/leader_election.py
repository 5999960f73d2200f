"""Whether this worker leads, among those that serve the same pool on the same nodes.

Two rules, one for each way in which workers can meet:

- In one state folder, a file lock: it vanishes with the process that holds it. One that is frozen keeps it, so who
  stands by kills it when it has shown no sign of life for a while: frozen it does no good, and its runs go on.
- On one Engine or Swarm, which workers of several machines may serve: a lease in Prefect. One that is frozen, or cannot
  reach Prefect, loses it by time, and may do nothing more; nobody has to reach it for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

import httpx
from prefect.client.orchestration import PrefectClient

from prefect_gpu.runtime.devices.locks import Locks
from prefect_gpu.worker.leadership.lease import Lease, PrefectTerms

BEAT_S = 2.0
"""From one sign of life to the next, seconds."""
_LOOK_S = 1.0
_LOOKS_IN_VAIN = 20  # counted, not timed: a machine that sleeps freezes both
_ACTS = ("PATCH", "PUT", "DELETE")


class NotLeadingError(httpx.TransportError):
    """Prefect must not be told anything, since another worker may lead by now. Treated as if Prefect were away."""


class Leadership:
    """The right of one worker's session to decide.

    Args:
        locks: The state folder's locks.
        printer: Tells the worker's user that, and why, it stands by.
        standing_by: Called again and again meanwhile.
    """

    def __init__(
        self,
        locks: Locks,
        printer: Callable[..., None],
        standing_by: Callable[[], object],
        logger: logging.Logger,
    ) -> None:
        self._locks = locks
        self._printer = printer
        self._standing_by = standing_by
        self._logger = logger
        self._lease: Lease | None = None
        self._lease_before: Lease | None = None
        self._client: PrefectClient | None = None

    @property
    def held(self) -> bool:
        """Whether this worker may decide now."""
        return self._lease is None or self._lease.held

    async def must_hold(self) -> None:
        """Go no further if somebody else may lead by now. Whoever waits here is cancelled as the session is closed."""
        if not self.held:
            await asyncio.Event().wait()

    def inherit(self, before: Leadership) -> None:
        """Ask with the lease of this worker's session before: it may have been cut off, and still be the leader."""
        self._lease_before = before._lease or before._lease_before

    async def claim(self, pool: str) -> None:
        """Become the only worker of the pool in this state folder; wait for another, unless it is frozen."""
        seen, in_vain, said = self._locks.last_beat(pool), 0, False
        while not self._locks.lock_pool(pool):
            if not said:
                self._printer(
                    f"Another worker of pool {pool!r} uses the same state folder. Standing by to take over. "
                    "To run both, give this one its own PREFECT_INTEGRATIONS_GPU_STATE_DIR."
                )
                said = True
            self._standing_by()
            await asyncio.sleep(_LOOK_S)
            beat = self._locks.last_beat(pool)
            in_vain = in_vain + 1 if beat == seen else 0
            seen = beat
            if in_vain >= _LOOKS_IN_VAIN:
                in_vain = 0
                pid = self._locks.kill_holder(pool)
                if pid is not None:
                    self._logger.warning(
                        "The worker with pid %s has shown no sign of life for %.0f s: it was killed, and this one "
                        "takes over. Its runs go on.",
                        pid,
                        _LOOKS_IN_VAIN * _LOOK_S,
                    )

    async def beat(self, pool: str) -> None:
        """Show that we are alive, until cancelled."""
        while True:
            self._locks.beat(pool)
            await asyncio.sleep(BEAT_S)

    async def take(self, client: PrefectClient, pool: str, scope: str) -> None:
        """Wait for the lease of the pool on an Engine or a Swarm. From then on, Prefect is told nothing without it."""
        if self._lease is not None:  # the session was being opened before, and Prefect went away in the middle
            return
        said = False

        def standing_by() -> None:
            nonlocal said
            if not said:
                self._printer(f"Another worker of pool {pool!r} leads on {scope}. Standing by to take over.")
                said = True
            self._standing_by()

        terms = PrefectTerms(client, f"prefect-gpu leader of {pool} on {scope}")
        lease = self._lease_before or Lease(terms, logger=self._logger)
        await lease.acquire(standing_by)
        self._lease, self._client = lease, client
        client._client.event_hooks["request"].append(self._check)

    async def keep(self) -> None:
        """Renew the lease until it is lost; then return."""
        if self._lease is not None:
            await self._lease.keep()

    async def release(self) -> None:
        """Let somebody else lead. A lease whose time is up is left as it is: see :meth:`inherit`."""
        if self._client is not None:
            with suppress(ValueError):
                self._client._client.event_hooks["request"].remove(self._check)
        if self._lease is not None and self._lease.held:
            await self._lease.release()

    async def _check(self, request: httpx.Request) -> None:
        """Before each request of the session's client: what changes a run is the leader's alone."""
        path = request.url.path
        changes = request.method in _ACTS or path.endswith("/set_state")
        if changes and "/concurrency_limits/" not in path and not self.held:
            raise NotLeadingError("another worker may lead by now", request=request)
