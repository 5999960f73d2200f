"""Heeds the file of devices that are out of service: nobody is given them, and who is on them is to leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from logging import Logger, LoggerAdapter
from typing import Any

from prefect_gpu.runtime.devices.cordons import Cordoned, Cordons
from prefect_gpu.runtime.devices.fleet import Fleet
from prefect_gpu.runtime.disk.files import UnreadableError
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.state.state import State

EVERY_S = 1.0


class CordonWatch:
    """Looks at the file, and tells the fleet and the scheduler.

    Args:
        cordons: The file.
        fleet: What it leaves out.
        state: The scheduler's books; only looked at.
        tell: Tells the scheduler what happened.
        logger: Told of each device that goes out of service, and of a file that cannot be read.

    Attributes:
        held: Devices that are out of service as long as something lasts, and not because the file says so.
        on_cordon: Called with each device that the file takes out of service, and the reason.
    """

    def __init__(
        self,
        cordons: Cordons,
        fleet: Fleet,
        state: State,
        tell: Callable[[ev.Event], None],
        logger: Logger | LoggerAdapter[Any],
    ) -> None:
        self._cordons, self._fleet, self._state, self._tell, self._logger = cordons, fleet, state, tell, logger
        self._cleared: set[str] = set()
        self._told = fleet.nodes
        self._filed: Mapping[str, Cordoned] = {}
        self.held: Mapping[str, Cordoned] = {}
        self.on_cordon: Callable[[str, str], None] = lambda device, reason: None

    def heed(self) -> bool:
        """Read again which devices are out of service; False if nothing has changed, or nobody can read it."""
        if not self._cordons.changed():
            return False
        try:
            self._filed = self._cordons.read()
        except UnreadableError as error:
            self._logger.error("%s. Until then, devices are in or out of service as before.", error)
            return False
        self._fleet.cordoned = {**self.held, **self._filed}
        return True

    def hold(self, devices: Mapping[str, Cordoned]) -> None:
        """From now on these devices are out of service beside those of the file, and no others."""
        self.held = devices
        self._fleet.cordoned = {**self.held, **self._filed}
        self.look()

    def clear(self) -> None:
        """Whoever is on a device that the file has taken out of service by now is to leave.

        Nobody is on those that are held back, and nobody has to see to them.
        """
        for device, one in self._filed.items():
            if device in self._fleet.device_ids and self._fleet.is_out(device) and device not in self._cleared:
                self._cleared.add(device)
                self._logger.warning("Device %s is out of service: %s", device, one.reason)
                self.on_cordon(device, one.reason)
                for job in self._state.occupants(device):
                    self._tell(ev.LeaveAsked(job.id, f"{device} is taken out of service ({one.reason})"))

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(EVERY_S)
            self.look()

    def look(self) -> None:
        """If anything has changed, tell the scheduler, and ask whoever is on devices that went out of service."""
        self.heed()
        self._cleared &= self._filed.keys()
        nodes = self._fleet.nodes
        if nodes != self._told:
            self._told = nodes
            self._tell(ev.NodesChanged(nodes))
        self.clear()
