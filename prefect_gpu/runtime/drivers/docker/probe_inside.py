"""The only process of a probe's container: it asks NVML which GPUs there are and prints that as one line of JSON.

``{"gpus": [{"uuid": ..., "kind": ..., "memory_bytes": ...}], "troubles": [...]}``, or ``{"error": ...}``. This file is
put into the container, whose image needs nothing of ours but Python: hence the standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

LIBRARY = "libnvidia-ml.so.1"
_PROHIBITED = 2  # NVML_COMPUTEMODE_PROHIBITED
_NOT_FOUND = 6  # NVML_ERROR_NOT_FOUND
_TEXT_BYTES = 96  # the longest name or UUID


class NvmlError(Exception):
    """NVML has answered with an error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Memory(ctypes.Structure):
    """nvmlMemory_v2_t: the older one does not tell apart what the driver keeps for itself."""

    _fields_ = [
        ("version", ctypes.c_uint),
        *((name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")),
    ]


class Nvml:
    """The few functions of NVML that are needed.

    Raises:
        OSError: There is no such library.
        NvmlError: The driver fails.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL(LIBRARY)
        self._library.nvmlErrorString.restype = ctypes.c_char_p
        self.call("nvmlInitWithFlags", ctypes.c_uint(0))

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that returns an error code."""
        try:
            code = getattr(self._library, name)(*arguments)
        except AttributeError:
            raise NvmlError(-1, f"{name} is not in this driver's {LIBRARY}") from None
        if code:
            said = self._library.nvmlErrorString(code) or b""
            raise NvmlError(code, f"{name}: {said.decode(errors='replace')} (error {code})")

    def number(self, name: str, *arguments: Any) -> int:
        """What a function writes to its last argument, an unsigned int."""
        number = ctypes.c_uint()
        self.call(name, *arguments, ctypes.byref(number))
        return number.value

    def handle(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        """Likewise a handle."""
        handle = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(handle))
        return handle

    def describe(self, handle: ctypes.c_void_p) -> dict[str, Any]:
        """A GPU or a MIG instance. Its memory is 0 where the driver tells none (it is shared with the machine)."""
        uuid, kind = ctypes.create_string_buffer(_TEXT_BYTES), ctypes.create_string_buffer(_TEXT_BYTES)
        self.call("nvmlDeviceGetUUID", handle, uuid, ctypes.c_uint(_TEXT_BYTES))
        self.call("nvmlDeviceGetName", handle, kind, ctypes.c_uint(_TEXT_BYTES))
        texts = {"uuid": uuid.value.decode(errors="replace"), "kind": kind.value.decode(errors="replace")}
        return {**texts, "memory_bytes": self._memory_bytes(handle)}

    def _memory_bytes(self, handle: ctypes.c_void_p) -> int:
        memory = _Memory(version=ctypes.sizeof(_Memory) | 2 << 24)
        try:
            self.call("nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(memory))
            return int(memory.total - memory.reserved)
        except NvmlError:
            older = (ctypes.c_ulonglong * 3)()  # total, free, used
            try:
                self.call("nvmlDeviceGetMemoryInfo", handle, older)
            except NvmlError:
                return 0
            return int(older[0])


def look(nvml: Nvml) -> dict[str, Any]:
    """All GPUs, those in MIG mode by their instances. One that fails is left out and named."""
    gpus: list[dict[str, Any]] = []
    troubles = []
    for index in range(nvml.number("nvmlDeviceGetCount_v2")):
        try:
            gpus += list(_parts(nvml, nvml.handle("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index))))
        except NvmlError as error:
            troubles.append(f"GPU {index} is left out: {error}")
    return {"gpus": gpus, "troubles": troubles}


def _parts(nvml: Nvml, gpu: ctypes.c_void_p) -> Iterator[dict[str, Any]]:
    mode, mig = ctypes.c_uint(), ctypes.c_uint()
    with contextlib.suppress(NvmlError):
        nvml.call("nvmlDeviceGetComputeMode", gpu, ctypes.byref(mode))
    if mode.value == _PROHIBITED:
        raise NvmlError(-1, "its compute mode is Prohibited (`nvidia-smi -c DEFAULT` allows computing)")
    with contextlib.suppress(NvmlError):  # most kinds know no MIG
        nvml.call("nvmlDeviceGetMigMode", gpu, ctypes.byref(mig), ctypes.byref(ctypes.c_uint()))
    if not mig.value:
        yield nvml.describe(gpu)
        return
    found = 0
    for slot in range(nvml.number("nvmlDeviceGetMaxMigDeviceCount", gpu)):
        try:
            instance = nvml.handle("nvmlDeviceGetMigDeviceHandleByIndex", gpu, ctypes.c_uint(slot))
        except NvmlError as error:
            if error.code != _NOT_FOUND:
                raise
            continue
        found += 1
        yield nvml.describe(instance)
    if not found:
        raise NvmlError(-1, "MIG is enabled on it, and it has no MIG instances")


def main() -> None:
    """Print what there is."""
    try:
        said = look(Nvml())
    except (OSError, NvmlError) as error:
        said = {"error": str(error)}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
