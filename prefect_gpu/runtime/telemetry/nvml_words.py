"""NVML's error codes in plain words, each with what to do about it."""

from __future__ import annotations

import pynvml

# A broken driver does not fall back to virtual devices by itself: somebody who pays for GPUs must not find out
# from slow runs that they trained on the CPU. Hiding the GPUs is how one says that this is wanted.
_MEANWHILE = ' To train on the CPU meanwhile, start the worker with CUDA_VISIBLE_DEVICES="".'

#: Nothing is wrong: the machine has no NVIDIA driver (or the container was given none).
NO_DRIVER: dict[int, tuple[str, str]] = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        "No NVIDIA driver was found on this machine.",
        "If it has an NVIDIA GPU, install the driver; in a container, start it with `--gpus all` and the NVIDIA "
        "Container Toolkit.",
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "NVIDIA's library is installed, but no NVIDIA driver is loaded.",
        "If this machine has an NVIDIA GPU, load the driver (`sudo modprobe nvidia`); in a container, start it "
        "with `--gpus all`.",
    ),
}

#: This GPU, driver version or instance has no such thing; everything else works.
UNSUPPORTED = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_DEPRECATED,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)

#: Whatever was asked, there is nothing to be done with this GPU.
GPU_GONE = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})

#: The session is of no use any more, and a new one may be.
SESSION_LOST = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        pynvml.NVML_ERROR_UNKNOWN,
    }
)

_DRIVER_FAILURES: dict[int, tuple[str, str]] = {
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "NVIDIA's library and the loaded kernel driver are of different versions, as after an upgrade without a "
        "restart.",
        "Restart the machine, or unload and load the nvidia kernel modules.",
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "This user may not talk to the NVIDIA driver.",
        "Give it access to /dev/nvidiactl and /dev/nvidia* (often the group `video` or `render`).",
    ),
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: (
        "The installed NVIDIA driver is too old: it lacks a function that every driver since 2021 has.",
        "Install driver 470 or newer.",
    ),
}

_GPU_FAILURES: dict[int, tuple[str, str]] = {
    pynvml.NVML_ERROR_GPU_IS_LOST: (
        "the GPU has fallen off the bus.",
        "Look for Xid errors in `dmesg`; restart the machine, and check power, cooling and seating if it comes back.",
    ),
    pynvml.NVML_ERROR_RESET_REQUIRED: (
        "the GPU must be reset before it can be used again.",
        "If nothing runs on it, reset it with `sudo nvidia-smi --gpu-reset`; else restart the machine.",
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "this user or container may not use it.",
        "Give access to its device file /dev/nvidia<number>, or hide it with CUDA_VISIBLE_DEVICES.",
    ),
    pynvml.NVML_ERROR_INSUFFICIENT_POWER: (
        "a power cable is missing or loose.",
        "Connect the GPU's external power.",
    ),
    pynvml.NVML_ERROR_IRQ_ISSUE: (
        "the kernel has an interrupt problem with it.",
        "Look into `dmesg`, and restart the machine.",
    ),
    pynvml.NVML_ERROR_NOT_FOUND: (
        "the driver knows no such device.",
        "See `nvidia-smi -L` for those it knows.",
    ),
}


def driver_failure(error: pynvml.NVMLError) -> tuple[str, str]:
    """What it means that the driver as a whole fails with this error: text and remedy, as sentences."""
    text, remedy = _DRIVER_FAILURES.get(
        error.value,
        (f"The NVIDIA driver fails: {_plain(error)}.", "Check that `nvidia-smi` works for this user."),
    )
    return text, remedy + _MEANWHILE


def gpu_failure(error: pynvml.NVMLError) -> tuple[str, str]:
    """What it means that one GPU fails with this error: text (begins in lower case) and remedy."""
    return _GPU_FAILURES.get(
        error.value,
        (f"the driver answers “{_plain(error)}”.", "See `nvidia-smi -q` and `dmesg` for what is wrong with it."),
    )


def _plain(error: pynvml.NVMLError) -> str:
    return f"{str(error).strip().rstrip('.')} (NVML error {error.value})"
