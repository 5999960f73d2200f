"""Takes devices out of service that are not sound, and tells of those that may not be.

A serious fault cordons the device: from then on it is as if its operator had done so by hand. Heat, and a device that
is slower than others of its kind, are only told, unless the operator's settings say that they cordon, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from logging import Logger, LoggerAdapter
from typing import Any

from prefect_gpu.runtime.devices.cordons import Cordons
from prefect_gpu.runtime.devices.fleet import Fleet
from prefect_gpu.runtime.disk.files import UnreadableError
from prefect_gpu.runtime.tasks import in_own_thread
from prefect_gpu.runtime.telemetry.faults import Fault

_WAIT_S = 2.0  # for events at a time: so long a worker that ends may have to wait for the thread
_AGAIN_S = 30.0


class HealthWatch:
    """Watches the GPUs of this machine, and hears of what others find out: agents of other nodes, those who compare.

    Args:
        cordons: Where devices are taken out of service.
        fleet: Which devices there are; it remembers what is told of them.
        also: Codes of faults that are not serious, and cordon all the same.

    Attributes:
        on_fault: Called with each fault that is only told.
    """

    def __init__(
        self,
        cordons: Cordons,
        fleet: Fleet,
        logger: Logger | LoggerAdapter[Any],
        also: Collection[str] = (),
    ) -> None:
        self._cordons, self._fleet, self._logger, self._also = cordons, fleet, logger, frozenset(also)
        self.on_fault: Callable[[Fault], None] = lambda fault: None

    def found(self, faults: Iterable[Fault]) -> None:
        """Faults were noticed. A device that is out of service already stays so for the reason that it has."""
        for fault in faults:
            if fault.device not in self._fleet.device_ids:
                continue
            if fault.serious or fault.code in self._also:
                self._cordon(fault)
            elif self._fleet.unwell.get(fault.device) != fault.words:
                self._fleet.unwell[fault.device] = fault.words
                self._logger.warning("Device %s: %s. It stays in service.", fault.device, fault.words)
                self.on_fault(fault)

    def _cordon(self, fault: Fault) -> None:
        try:
            if fault.device not in self._cordons.read():
                self._cordons.add({fault.device: fault.words})
        except (UnreadableError, OSError) as error:
            self._logger.error("Device %s: %s. It cannot be taken out of service: %s", fault.device, fault.words, error)

    async def run(self) -> None:
        """Watch this machine's GPUs for ever; where there is none, end at once."""
        own = [device.id for device in self._fleet.devices if not device.virtual]
        await watch_gpus(own, self.found, self._logger)

    async def run_beside(self) -> None:
        """The same where runs are no processes of this machine, and may be on its GPUs all the same.

        Their Engine is here, or this is a node of the Swarm. Nobody watches the GPUs of other nodes.
        """
        from prefect_gpu.runtime.telemetry.health import of_this_machine

        own: list[str] = []
        while not own:  # what nodes have may still have to be found out
            known = [device.id for device in self._fleet.devices if not device.virtual]
            found = await in_own_thread(partial(of_this_machine, known), "prefect-gpu-health")
            if found is None:
                return
            own = found
            if not own:
                await asyncio.sleep(_AGAIN_S)
        await watch_gpus(own, self.found, self._logger)


async def watch_gpus(
    own: Sequence[str], found: Callable[[list[Fault]], None], logger: Logger | LoggerAdapter[Any]
) -> None:
    """Watch GPUs of this machine for ever, through its driver; where there is none, end at once.

    Args:
        own: Their UUIDs.
        found: Called with what is new.
    """
    if not own:
        return
    import pynvml

    from prefect_gpu.runtime.telemetry.health import DeviceWatch

    watch = DeviceWatch(own)
    while True:
        try:
            faults = await in_own_thread(lambda: watch.wait(_WAIT_S), "prefect-gpu-health")
        except pynvml.NVMLError as error:
            logger.warning("The GPUs' health cannot be watched: %s. It is tried again.", error)
            await asyncio.sleep(_AGAIN_S)
            continue
        if faults:
            found(faults)
