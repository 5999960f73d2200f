"""Gives a GPU to nobody as long as a program outside the pool computes on it: a notebook, or a training by hand.

Two trainings on one GPU are slow, and the later one may find no memory. The driver lists the programs. What counts is a
tenth of the memory: a desktop, a monitor or an MPS daemon has less. A GPU that is in use already is not taken from its
run; that there is another program is only told.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from logging import Logger, LoggerAdapter
from typing import Any

from prefect_gpu.runtime.devices.cordon_watch import CordonWatch
from prefect_gpu.runtime.devices.cordons import Cordoned
from prefect_gpu.runtime.devices.fleet import Fleet
from prefect_gpu.runtime.tasks import in_own_thread
from prefect_gpu.runtime.telemetry import nvml_words
from prefect_gpu.runtime.telemetry.faults import Fault
from prefect_gpu.runtime.telemetry.programs import Program, in_words, programs_of_each
from prefect_gpu.scheduling.state.state import State

EVERY_S = 5.0
PART = 0.1
"""Of a GPU's memory: who has less of it does not count."""

_LOOKS = 2  # without a run, before a program counts: what a run has started may end a moment after it
_OUTSIDE = "outside"


class OutsideWatch:
    """Looks at the GPUs of this machine now and then.

    Args:
        fleet: Which devices there are.
        state: The scheduler's books: who is on which device. It is only looked at.
        cordons: Where devices are held back.
        found: Told of programs on devices that are in use.
    """

    def __init__(
        self,
        fleet: Fleet,
        state: State,
        cordons: CordonWatch,
        found: Callable[[list[Fault]], None],
        logger: Logger | LoggerAdapter[Any],
    ) -> None:
        self._fleet, self._state, self._cordons, self._found, self._logger = fleet, state, cordons, found, logger
        self._free: dict[str, int] = {}  # looks in a row without a run, by device
        self._told: dict[str, str] = {}

    async def run(self) -> None:
        """Look for ever; where there is no driver, end at once. It tells nothing of GPUs that are elsewhere."""
        import pynvml

        failing = False
        while True:
            own = [device.id for device in self._fleet.devices if not device.virtual]
            try:
                self.heed(await in_own_thread(partial(programs_of_each, own), "prefect-gpu-programs"))
                failing = False
            except pynvml.NVMLError as error:
                if error.value in nvml_words.NO_DRIVER:
                    return
                if not failing:
                    self._logger.warning(
                        "Programs outside the pool cannot be looked for: %s. It is tried again.", error
                    )
                failing = True
            await asyncio.sleep(EVERY_S)

    def heed(self, programs: Mapping[str, Sequence[Program]]) -> None:
        """These programs compute on these devices now."""
        held: dict[str, Cordoned] = {}
        for device in self._fleet.named(programs):
            used = bool(self._state.occupants(device.id))
            # Before the first look nobody was on it whom we have started: whoever is there counts at once.
            self._free[device.id] = 0 if used else self._free.get(device.id, _LOOKS - 1) + 1
            others = (one for one in programs[device.id] if not one.own)
            outside = [one for one in others if not used or (one.certain and not one.run)]
            if not self._is_much(outside, device.memory_bytes):
                self._forget(device.id)
            elif used:
                self._tell(device.id, outside)
            elif self._free[device.id] >= _LOOKS:
                before = self._cordons.held.get(device.id)
                since = before.since if before is not None else time.time()
                held[device.id] = Cordoned(f"{in_words(outside)} uses it outside the pool", since)
        if held != self._cordons.held:
            for device_id, one in held.items():
                if device_id not in self._cordons.held:
                    self._logger.warning("Device %s is left alone: %s.", device_id, one.reason)
            for device_id in self._cordons.held.keys() - held.keys():
                self._logger.info("Device %s is in service again: no program outside the pool uses it.", device_id)
            self._cordons.hold(held)

    def _is_much(self, programs: Sequence[Program], memory_bytes: int) -> bool:
        """Where the driver does not tell how much, any program counts."""
        return bool(programs) and (
            any(one.memory_bytes is None for one in programs)
            or sum(one.memory_bytes or 0 for one in programs) >= PART * memory_bytes
        )

    def _tell(self, device: str, programs: Sequence[Program]) -> None:
        pids = ",".join(str(one.pid) for one in programs)
        if self._told.get(device) != pids:
            self._told[device] = pids
            self._found([Fault(device, _OUTSIDE, f"{in_words(programs)} uses it beside the pool's run", False)])

    def _forget(self, device: str) -> None:
        if self._told.pop(device, None) is not None:
            self._fleet.unwell.pop(device, None)
