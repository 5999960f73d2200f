"""Watches GPUs through NVML: events as they come, and counters and flags at each look.

Only what is new is told. What had happened before the watch began is, if it is a mere count, history: a worker that
starts again must not take out a GPU that its operator has put back.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pynvml

from prefect_gpu.runtime.telemetry import nvml, nvml_words
from prefect_gpu.runtime.telemetry.faults import THERMAL, Fault, of_xid

LOOK_EVERY_S = 10.0
_HOT_LOOKS = 3  # in a row at which it is throttled, before it is told: a moment of heat is nothing
_EVENTS = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError
_HOT = (
    pynvml.nvmlClocksEventReasonSwThermalSlowdown
    | pynvml.nvmlClocksEventReasonHwThermalSlowdown
    | pynvml.nvmlClocksEventReasonHwSlowdown
)
_UNCORRECTED, _VOLATILE = 1, 0  # NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC


def of_this_machine(devices: Iterable[str]) -> list[str] | None:
    """Those of some UUIDs that the driver of this machine knows; None if it has no driver.

    No two GPUs of the world have the same UUID: whoever is known here is here.
    """
    try:
        nvml.open_session()
    except pynvml.NVMLError as error:
        return None if error.value in nvml_words.NO_DRIVER else []
    return [device for device in devices if _is_here(device)]


class DeviceWatch:
    """Watches some GPUs. Not for several threads at once.

    Args:
        devices: UUIDs of GPUs and MIG instances. What befalls a GPU befalls all its instances.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = list(devices)
        self._set: Any = None
        self._by_gpu: dict[str, list[str]] = {}
        self._counts: dict[str, int] = {}  # uncorrectable errors, by GPU
        self._told: set[tuple[str, str]] = set()
        self._hot: dict[str, int] = {}
        self._look_at = 0.0

    def wait(self, seconds: float) -> list[Fault]:
        """Wait for events for as long, and look at the counters if it is time: what is new.

        Raises:
            pynvml.NVMLError: The driver fails as a whole.
        """
        nvml.open_session()
        if not self._by_gpu:
            self._by_gpu = _by_gpu(self._devices)
        if self._set is None:
            self._set = self._register()
        found = list(self._events(seconds))
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_EVERY_S
            for gpu, devices in self._by_gpu.items():
                found += [fault for device in devices for fault in self._state_of(gpu, device)]
        new = [fault for fault in found if (fault.device, fault.code) not in self._told]
        self._told.update((fault.device, fault.code) for fault in new)
        return list(dict.fromkeys(new))

    def close(self) -> None:
        """Give back what the driver keeps for it."""
        if self._set is not None:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(self._set)
            self._set = None

    def _register(self) -> Any:
        events = pynvml.nvmlEventSetCreate()
        for gpu in self._by_gpu:
            with suppress(pynvml.NVMLError):  # older GPUs have no such events: their counters are looked at
                pynvml.nvmlDeviceRegisterEvents(pynvml.nvmlDeviceGetHandleByUUID(gpu), _EVENTS, events)
        return events

    def _events(self, seconds: float) -> Iterator[Fault]:
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, int(1000 * left_s) + 1)
            except pynvml.NVMLError as error:
                if error.value != pynvml.NVML_ERROR_TIMEOUT:
                    time.sleep(left_s)  # a GPU that is lost fails at once, again and again
                    if error.value in nvml_words.SESSION_LOST:
                        self.close()
                        raise
                return
            try:
                gpu = str(pynvml.nvmlDeviceGetUUID(event.device))
            except pynvml.NVMLError:  # it is lost, which the next look shows; what was said of others still counts
                continue
            for device in self._by_gpu.get(gpu, ()):
                if event.eventType == pynvml.nvmlEventTypeDoubleBitEccError:
                    yield Fault(device, "ecc", "an uncorrectable memory error", True)
                elif fault := of_xid(device, int(event.eventData)):
                    self._told.discard((device, fault.code))  # each is an event of its own
                    yield fault

    def _state_of(self, gpu: str, device: str) -> Iterator[Fault]:
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(gpu)
            yield from self._memory_of(handle, device)
            yield from self._heat_of(handle, device)
        except pynvml.NVMLError as error:
            if error.value in nvml_words.GPU_GONE or error.value == pynvml.NVML_ERROR_NOT_FOUND:
                text, _ = nvml_words.gpu_failure(error)
                yield Fault(device, "gone", text.rstrip("."), True)
            elif error.value in nvml_words.SESSION_LOST:
                raise

    def _memory_of(self, handle: Any, device: str) -> Iterator[Fault]:
        errors = _asked(lambda: pynvml.nvmlDeviceGetTotalEccErrors(handle, _UNCORRECTED, _VOLATILE))
        if errors is not None:
            before = self._counts.setdefault(device, errors)
            self._counts[device] = errors
            if errors > before:
                self._told.discard((device, "ecc"))
                yield Fault(device, "ecc", f"{errors - before} uncorrectable memory errors (ECC)", True)
        rows = _asked(lambda: pynvml.nvmlDeviceGetRemappedRows(handle))
        if rows is not None and rows[3]:
            yield Fault(device, "rows", "a row of its memory could not be remapped", True)
        elif rows is not None and rows[2]:
            yield Fault(device, "rows-pending", "a row of its memory is remapped at the next reset", False)
        if _asked(lambda: pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle)):
            yield Fault(device, "pages-pending", "a page of its memory is retired at the next restart", False)

    def _heat_of(self, handle: Any, device: str) -> Iterator[Fault]:
        reasons = _asked(lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        if reasons is None:
            reasons = _asked(lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        self._hot[device] = self._hot.get(device, 0) + 1 if reasons and reasons & _HOT else 0
        if not self._hot[device]:
            self._told.discard((device, THERMAL))
        if self._hot[device] >= _HOT_LOOKS:
            yield Fault(device, THERMAL, "it is too hot, and slows itself down", False)


def _is_here(device: str) -> bool:
    try:
        pynvml.nvmlDeviceGetHandleByUUID(device)
    except pynvml.NVMLError as error:
        return error.value in nvml_words.GPU_GONE  # it is here, and lost
    return True


def _by_gpu(devices: Sequence[str]) -> dict[str, list[str]]:
    """The devices by the GPU that they are, or are a part of."""
    found: dict[str, list[str]] = {}
    for device in devices:
        gpu = device
        with suppress(pynvml.NVMLError):
            handle = pynvml.nvmlDeviceGetHandleByUUID(device)
            if device.startswith("MIG-"):
                gpu = str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)))
        found.setdefault(gpu, []).append(device)
    return found


def _asked(ask: Any) -> Any:
    """The answer, or None where there is none; that a GPU is gone is no answer."""
    try:
        return ask()
    except pynvml.NVMLError as error:
        if error.value in nvml_words.GPU_GONE or error.value in nvml_words.SESSION_LOST:
            raise
        return None
