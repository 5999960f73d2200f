"""The memory that a run may take of devices that it shares, as far as its own process can be held to it.

Estimates err, so a run that shares is limited to what it was granted (Liquid §6.2). This is cooperation and not
isolation: it holds for what goes through the framework's allocator, in this process. What each can do:

- PyTorch: its caching allocator refuses more, on each GPU.
- TensorFlow: a limit on each GPU, as long as the GPUs have not been used yet.
- JAX: its allocator reads its limit from the environment at its start
  (:mod:`prefect_gpu.runtime.launch.run_environment`).
- CUDA MPS, where its daemon runs, and not in containers: the driver refuses more, whatever asks; also from the
  environment.
- xgboost and LightGBM on a GPU know no limit.
- On a virtual device, whose memory is the process's own: the kernel refuses more (``RLIMIT_DATA``).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from prefect_gpu.training.protocol import ENV_MEMORY

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

logger = logging.getLogger("prefect_gpu.training")

# What libraries reserve for each of their threads and hardly touch: a stack, and OpenBLAS's buffer.
_RESERVED_PER_THREAD = (8 + 32) << 20
_RESERVED = 64 << 20


class Caps:
    """The limit of this process. Nothing happens where none was given.

    Args:
        limit_bytes: What the run was granted on each of its devices; None: all of them, so that there is no limit.
        devices: The devices as the driver named them: ``{"id", "kind", "memory_bytes", "virtual"}``.

    Example:
        >>> Caps(None, []).apply()
    """

    def __init__(self, limit_bytes: int | None, devices: Sequence[Mapping[str, Any]]) -> None:
        self.limit_bytes = limit_bytes
        self._virtual = sum(bool(device.get("virtual")) for device in devices)
        self._gpus = len(devices) - self._virtual
        self._soft_before: int | None = None
        self._torch_waits = False

    def apply(self, limit_bytes: int | None = None, *, training: bool = True) -> None:
        """Hold this process to its limit with all that is loaded by now. It may be called again, and never raises.

        Args:
            limit_bytes: Another limit from now on, on each device.
            training: Whether the preparation is done. On a virtual device nothing is limited before: libraries that
                are being loaded cannot stand to be refused memory.
        """
        if limit_bytes is not None:
            self.limit_bytes = limit_bytes
        if self.limit_bytes is None:
            return
        if self._virtual and training:
            self._limit_process(self.limit_bytes * self._virtual)
        if self._gpus:
            self._limit_torch()
            self._limit_tensorflow()

    def lift(self) -> None:
        """The devices are this run's alone: whatever can be lifted in a running process is."""
        limited, self.limit_bytes = self.limit_bytes is not None, None
        self.relax()
        if limited and self._gpus:
            cuda = _torch_cuda()
            if cuda is not None and cuda.is_initialized():
                with suppress(Exception):
                    cuda.empty_cache()
                self._torch_now(cuda)

    def relax(self) -> None:
        """Memory has run out, and the error must be dealt with: that takes some, in the process itself."""
        if self._soft_before is not None:
            with suppress(OSError, ValueError):
                hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
                resource.setrlimit(resource.RLIMIT_DATA, (self._soft_before, hard))
            self._soft_before = None

    # Inside

    def _limit_process(self, limit_bytes: int) -> None:
        """The kernel counts what is mapped and not what is touched, so the limit is set from what is mapped by now."""
        mapped, resident = _own_bytes("VmData"), _own_bytes("VmRSS")
        if resource is None or mapped is None or resident is None:
            return
        threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        allowed = mapped + max(0, limit_bytes - resident) + _RESERVED + threads * _RESERVED_PER_THREAD
        with suppress(OSError, ValueError):
            soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
            if self._soft_before is None:
                self._soft_before = soft
            if hard != resource.RLIM_INFINITY:
                allowed = min(allowed, hard)
            resource.setrlimit(resource.RLIMIT_DATA, (allowed, hard))

    def _limit_torch(self) -> None:
        cuda = _torch_cuda()
        if cuda is None:
            return
        if cuda.is_initialized():
            self._torch_now(cuda)
        elif not self._torch_waits and hasattr(cuda, "_lazy_call"):
            # Not now: a process that has initialised CUDA can no longer fork others which use it.
            cuda._lazy_call(lambda: self._torch_now(cuda))
            self._torch_waits = True

    def _torch_now(self, cuda: Any) -> None:
        try:
            for number in range(min(self._gpus, cuda.device_count())):
                total = cuda.get_device_properties(number).total_memory
                part = 1.0 if self.limit_bytes is None else min(1.0, self.limit_bytes / total)
                cuda.set_per_process_memory_fraction(part, number)
        except Exception as error:
            logger.warning("PyTorch could not be held to %s bytes on each GPU: %s", self.limit_bytes, error)

    def _limit_tensorflow(self) -> None:
        tensorflow: Any = sys.modules.get("tensorflow")
        config = getattr(tensorflow, "config", None)
        if config is None or self.limit_bytes is None:
            return
        try:
            for gpu in config.list_physical_devices("GPU")[: self._gpus]:
                if not config.get_logical_device_configuration(gpu):
                    one = config.LogicalDeviceConfiguration(memory_limit=self.limit_bytes / 2**20)
                    config.set_logical_device_configuration(gpu, [one])
        except Exception as error:  # its GPUs are in use already
            logger.warning("TensorFlow could not be held to %s bytes on each GPU: %s", self.limit_bytes, error)


def own_caps(environ: Mapping[str, str], devices: Sequence[Mapping[str, Any]]) -> Caps:
    """The limit that this process was started with."""
    text = environ.get(ENV_MEMORY, "")
    return Caps(int(text) if text.isdigit() else None, devices)


# What frameworks say, in the name of the error's class or in its text. Some have no class of their own for it.
_CLASSES = {"MemoryError", "OutOfMemoryError", "ResourceExhaustedError"}  # Python and NumPy, PyTorch, TensorFlow
_TEXTS = (
    "out of memory",  # PyTorch, CUDA
    "can't allocate memory",  # PyTorch on the CPU
    "RESOURCE_EXHAUSTED",  # JAX
    "cudaErrorMemoryAllocation",  # xgboost
    "bad_alloc",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


def ran_out(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, says that memory ran out.

    Example:
        >>> ran_out(MemoryError()), ran_out(RuntimeError("CUDA out of memory.")), ran_out(ValueError("lr"))
        (True, True, False)
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if any(kind.__name__ in _CLASSES for kind in type(error).__mro__):
            return True
        if isinstance(error, (RuntimeError, OSError)) or "Error" in type(error).__name__:
            text = str(error)
            if any(words in text for words in _TEXTS):
                return True
        error = error.__cause__ or error.__context__
    return False


def _torch_cuda() -> Any:
    return getattr(sys.modules.get("torch"), "cuda", None)


def _own_bytes(name: str) -> int | None:
    with suppress(OSError, ValueError, IndexError), open("/proc/self/status") as status:
        for line in status:
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    return None
