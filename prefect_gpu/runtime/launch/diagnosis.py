"""Why did it die? An exit code or a signal in words, the last lines of output, and what to do."""

from __future__ import annotations

import signal

from prefect_gpu.runtime.drivers.base import ExitReport
from prefect_gpu.units import format_bytes

_SIGNALS = {
    signal.SIGKILL: (
        "was killed (SIGKILL)",
        "Most often the machine ran out of memory: look for 'oom-kill' in `dmesg`, lower the batch size, or load "
        "less data at once. It may also have been killed by hand.",
    ),
    signal.SIGSEGV: (
        "crashed in native code (SIGSEGV)",
        "A library, a driver or a mismatch of their versions is at fault: run it alone with PYTHONFAULTHANDLER=1 to "
        "see where.",
    ),
    signal.SIGABRT: (
        "aborted itself (SIGABRT)",
        "Native code found an error it could not go on from: the last lines of output usually name it.",
    ),
    signal.SIGBUS: (
        "failed to reach memory (SIGBUS)",
        "Shared memory is often too small for data loaders: enlarge /dev/shm or use fewer loader processes.",
    ),
    signal.SIGTERM: ("was ended by SIGTERM", "Somebody or something asked it to stop; nothing is wrong with the code."),
    signal.SIGINT: ("was interrupted (SIGINT)", "Somebody pressed Ctrl-C or sent an interrupt."),
}

_CODES = {
    1: ("failed", "The lines below say where. If it is an import error, install the package in the run's environment."),
    2: ("was called with wrong arguments", "Check the `command` of the run."),
    126: ("could not be executed", "The `command` is not executable, or `working_dir` is no folder where it runs."),
    127: ("was not found", "The `command` names a program that is not on the PATH of the run."),
}

_NO_SERVER = (
    "If that was the Prefect API: check PREFECT_API_URL, that the server is up, and that it listens where the run is: "
    "`prefect server start --host 0.0.0.0`, if that is a container or another machine."
)

_HINTS = (
    ("All connection attempts failed", _NO_SERVER),
    ("httpx.ConnectError", _NO_SERVER),
    ("httpx.ConnectTimeout", _NO_SERVER),
    ("CUDA out of memory", "The GPU's memory was too small: lower the batch size or ask for more `gpu_memory`."),
    ("OutOfMemoryError", "The GPU's memory was too small: lower the batch size or ask for more `gpu_memory`."),
    ("CUDA error: no kernel image", "This build of the framework has no code for this GPU: install one that has."),
    ("CUDA driver version is insufficient", "The NVIDIA driver is older than the framework needs: update the driver."),
    (
        "ModuleNotFoundError",
        "Install the missing package in the run's environment: the image of its container, what its `command` names, "
        "or else the worker's.",
    ),
    (
        "Could not determine home directory",
        "The user of the container has no home folder: give it one in the image, such as `ENV HOME=/tmp`.",
    ),
    ("No space left on device", "The disk is full: remove old checkpoints or logs."),
    ("MemoryError", "The machine's memory was too small: load less data at once."),
)


def diagnose(report: ExitReport, *, lines: int = 12) -> str:
    """One paragraph for the Crashed state: how the process ended, what to do, and its last words.

    Args:
        report: How the process ended.
        lines: How many of the last lines of output to repeat.
    """
    code = report.returncode
    if code is None:
        what = "The process vanished together with its supervisor; nobody saw how it ended."
        todo = "The machine was probably restarted, or something killed the whole session."
    elif code == 0:
        what = "The process ended with exit code 0, but the run never reported an end to Prefect."
        todo = (
            "Code of the run may have ended it at once (`os._exit`). A `command` must run the flow in the foreground, "
            "for example `python -m prefect.engine`."
        )
    elif code < 0:
        words, todo = _signal_words(-code)
        what = f"The training process {words}."
    elif code > 128 and code - 128 in {int(one) for one in signal.Signals}:
        words, todo = _signal_words(code - 128)
        what = f"The training process exited with code {code}: a process that it started {words}."
    else:
        words, todo = _CODES.get(code, ("failed", "The last lines of its output usually say why."))
        what = f"The training process {words} (exit code {code})."
    if report.oom_kills == 0 and code in _KILLED:
        todo = (
            "The kernel has killed nothing for lack of main memory where it ran: somebody did it by hand, or a program "
            "that watches memory did, such as systemd-oomd or earlyoom."
        )
    tail = [line for line in report.tail if line.strip()][-lines:]
    for text, hint in _HINTS:
        if any(text in line for line in tail):
            todo = hint
            break
    if killed_for_memory(report):
        reached = f" Its largest one had reached {format_bytes(report.max_rss_bytes)}." if report.max_rss_bytes else ""
        todo = (
            "The kernel killed a process of the run because main memory ran out: the machine's, or what its service, "
            f"container or allocation may use.{reached} Lower the batch size, load less data at once, or give it more."
        )
    if report.cause:  # the driver knows better than the code tells
        what, todo = (report.cause, "") if code is None else (what, report.cause)
    parts = [what, todo]
    if tail:
        parts.append("Last lines of output:\n" + "\n".join(f"  {line[:400]}" for line in tail))
    return "\n".join(part for part in parts if part)


_DEVICE_MEMORY = (
    "OutOfMemoryError",  # PyTorch
    "CUDA out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "RESOURCE_EXHAUSTED",  # TensorFlow, JAX
    "cudaErrorMemoryAllocation",  # xgboost
)
_MAIN_MEMORY = ("MemoryError",)
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL, None)  # None: with its supervisor
_CHILD_KILLED = "killed by signal: Killed"  # PyTorch, of a process that loads data


def ran_out_of_memory(report: ExitReport, message: str = "", *, of_devices: bool = False) -> bool:
    """Whether memory ran out around a run that failed: it says so, or the kernel does.

    A process that was killed without a word from either may have been, but that is a suspicion: it is not counted.

    Args:
        report: How the process ended.
        message: What its owner was told of the end.
        of_devices: Only memory of GPUs counts. Else main memory does, too, which virtual devices have.
    """
    said = (*report.tail, message)
    words = _DEVICE_MEMORY if of_devices else (*_DEVICE_MEMORY, *_MAIN_MEMORY)
    if any(word in line for word in words for line in said):
        return True
    return not of_devices and killed_for_memory(report, message)


def killed_for_memory(report: ExitReport, message: str = "") -> bool:
    """Whether the kernel killed the run, or a process that it needed, because main memory ran out.

    What was killed in its control group may have been of another run: so it must have been killed, too.

    Args:
        report: How the process ended.
        message: What its owner was told of the end.
    """
    killed = report.returncode in _KILLED or any(_CHILD_KILLED in line for line in (*report.tail, message))
    return killed and bool(report.oom_kills)


def _signal_words(number: int) -> tuple[str, str]:
    for known, words in _SIGNALS.items():
        if known == number:
            return words
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"was ended by {name}", "The last lines of its output may say why."
