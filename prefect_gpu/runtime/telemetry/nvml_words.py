"""NVML's error codes in plain words, each with what to do about it."""

from __future__ import annotations

import pynvml

# A broken driver does not fall back to virtual devices by itself: somebody who pays for GPUs must not find out
# from slow runs that they trained on the CPU. Hiding the GPUs is how one says that this is wanted.
_MEANWHILE = ' To train on the CPU meanwhile, start the worker after `export CUDA_VISIBLE_DEVICES=""`.'

#: Nothing is wrong: the machine has no NVIDIA driver (or the container was given none).
NO_DRIVER: dict[int, tuple[str, str]] = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        "No NVIDIA driver was found on this machine.",
        "If it has an NVIDIA GPU (`lspci -d 10de:`), install the driver (Debian: `sudo apt-get install nvidia-driver`, "
        "Ubuntu: `sudo ubuntu-drivers install`); start a container with `docker run --gpus all`.",
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "NVIDIA's library is installed, but no NVIDIA driver is loaded.",
        "If this machine has an NVIDIA GPU, load the driver (`sudo modprobe nvidia`); start a container with "
        "`docker run --gpus all`.",
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
        "Restart the machine: `sudo reboot`.",
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "This user may not talk to the NVIDIA driver.",
        "Put it into the group of /dev/nvidiactl (`ls -l /dev/nvidia*`), often `sudo usermod -aG video,render $USER`, "
        "and log in again.",
    ),
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: (
        "The installed NVIDIA driver is too old: it lacks a function that every driver since 2021 has.",
        "Install driver 470 or newer: Debian: `sudo apt-get install nvidia-driver`, Ubuntu: "
        "`sudo ubuntu-drivers install`.",
    ),
}

_GPU_FAILURES: dict[int, tuple[str, str]] = {
    pynvml.NVML_ERROR_GPU_IS_LOST: (
        "the GPU has fallen off the bus.",
        "Look for Xid errors (`sudo dmesg | grep -i xid`); restart the machine (`sudo reboot`), and check power, "
        "cooling and seating if it comes back.",
    ),
    pynvml.NVML_ERROR_RESET_REQUIRED: (
        "the GPU must be reset before it can be used again.",
        "If nothing runs on the GPUs, reset them (`sudo nvidia-smi --gpu-reset`); else restart the machine "
        "(`sudo reboot`).",
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "this user or container may not use it.",
        "Give access to its device file (`ls -l /dev/nvidia*` shows which group has it), or name the others: "
        "`export CUDA_VISIBLE_DEVICES=0`.",
    ),
    pynvml.NVML_ERROR_INSUFFICIENT_POWER: (
        "a power cable is missing or loose.",
        "Switch the machine off (`sudo poweroff`), and connect the GPU's external power.",
    ),
    pynvml.NVML_ERROR_IRQ_ISSUE: (
        "the kernel has an interrupt problem with it.",
        "See what it says (`sudo dmesg | grep -i nvrm`), and restart the machine (`sudo reboot`).",
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
        (f"The NVIDIA driver fails: {_plain(error)}.", "See whether `nvidia-smi` works for this user."),
    )
    return text, remedy + _MEANWHILE


def gpu_failure(error: pynvml.NVMLError) -> tuple[str, str]:
    """What it means that one GPU fails with this error: text (begins in lower case) and remedy."""
    return _GPU_FAILURES.get(
        error.value,
        (f"the driver answers “{_plain(error)}”.", "See what is wrong with it: `nvidia-smi -q`, `sudo dmesg`."),
    )


def _plain(error: pynvml.NVMLError) -> str:
    return f"{str(error).strip().rstrip('.')} (NVML error {error.value})"
