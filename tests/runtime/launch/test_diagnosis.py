"""Exit codes, signals and last words, in words."""

from __future__ import annotations

import pytest

from prefect_gpu.runtime.drivers.base import ExitReport
from prefect_gpu.runtime.launch.diagnosis import diagnose, ran_out_of_memory

# exit code, last lines, what the text must say
TABLE: dict[str, tuple[int | None, tuple[str, ...], list[str]]] = {
    "nobody saw the end": (None, (), ["vanished together with its supervisor", "restarted"]),
    "an end that nobody was told of": (0, ("bye",), ["exit code 0, but the run never", "os._exit", "`command`"]),
    "a plain failure": (1, (), ["failed (exit code 1)", "import error"]),
    "wrong arguments": (2, (), ["wrong arguments (exit code 2)"]),
    "an unknown code": (42, (), ["failed (exit code 42)"]),
    "not executable": (126, (), ["could not be executed", "`working_dir`"]),
    "no such program": (127, (), ["not found", "PATH"]),
    "no API": (1, ("httpx.ConnectError: All connection attempts failed",), ["Prefect API", "PREFECT_API_URL"]),
    "no API there": (1, ("httpx.ConnectError: [Errno 111] Connection refused",), ["PREFECT_API_URL", "--host 0.0.0.0"]),
    "killed": (-9, (), ["The training process was killed (SIGKILL)", "memory"]),
    "killed below a shell": (137, (), ["exited with code 137: a process that it started was killed (SIGKILL)"]),
    "segmentation fault": (-11, (), ["crashed in native code (SIGSEGV)", "PYTHONFAULTHANDLER"]),
    "aborted": (-6, (), ["SIGABRT"]),
    "bus error": (-7, (), ["SIGBUS", "/dev/shm"]),
    "terminated": (-15, (), ["ended by SIGTERM"]),
    "interrupted": (-2, (), ["SIGINT"]),
    "another signal": (-1, (), ["ended by SIGHUP"]),
    "a signal without a name": (-99, (), ["ended by signal 99"]),
    "a code above all signals": (255, (), ["failed (exit code 255)"]),
    "no GPU memory": (1, ("torch.cuda.OutOfMemoryError: CUDA out of memory.",), ["GPU's memory", "gpu_memory"]),
    "no memory": (1, ("MemoryError",), ["machine's memory was too small"]),
    "no module": (1, ("ModuleNotFoundError: No module named 'torch'",), ["Install the missing package", "image"]),
    "no home": (1, ("RuntimeError: Could not determine home directory.",), ["ENV HOME=/tmp"]),
    "no disk": (1, ("OSError: [Errno 28] No space left on device",), ["disk is full"]),
    "a hint of the output": (-6, ("CUDA error: no kernel image is available",), ["SIGABRT", "no code for this GPU"]),
}  # fmt: skip


@pytest.mark.parametrize("code, tail, words", TABLE.values(), ids=TABLE.keys())
def test_words(code: int | None, tail: tuple[str, ...], words: list[str]) -> None:
    text = diagnose(ExitReport(code, tail=tail))
    for word in words:
        assert word in text
    for line in tail:
        assert f"\n  {line}" in text


@pytest.mark.parametrize(
    "code, tail", [(-9, ()), (137, ()), (1, ("DataLoader worker (pid 7) is killed by signal: Killed.",))]
)
def test_what_the_kernel_killed_for_lack_of_memory_is_known(code: int, tail: tuple[str, ...]) -> None:
    report = ExitReport(code, max_rss_bytes=3 << 30, tail=tail, oom_kills=1)
    assert ran_out_of_memory(report)
    assert "The kernel killed a process of the run because main memory ran out" in diagnose(report)
    assert "Its largest one had reached 3 GiB." in diagnose(report)
    assert not ran_out_of_memory(ExitReport(code, tail=tail)), "it may have been somebody's hand"


def test_where_there_are_gpus_main_memory_says_nothing_of_theirs() -> None:
    assert ran_out_of_memory(ExitReport(1, tail=("torch.OutOfMemoryError: CUDA out of memory.",)), of_devices=True)
    assert not ran_out_of_memory(ExitReport(1, tail=("MemoryError",)), of_devices=True)
    assert not ran_out_of_memory(ExitReport(-9, oom_kills=1), of_devices=True)


@pytest.mark.parametrize("code", [-9, 137])
def test_what_the_kernel_did_not_kill_somebody_did(code: int) -> None:
    assert "somebody did it by hand" in diagnose(ExitReport(code, oom_kills=0))
    assert "memory" in diagnose(ExitReport(code)), "nobody counts: most often it is memory"
    assert "by hand" not in diagnose(ExitReport(1, oom_kills=0))


def test_who_failed_while_another_run_of_its_control_group_was_killed_did_not_run_out_of_memory() -> None:
    report = ExitReport(1, tail=("ValueError: batch_size",), oom_kills=1)
    assert not ran_out_of_memory(report)
    assert "memory" not in diagnose(report)


def test_the_last_lines_are_repeated_and_long_ones_cut() -> None:
    tail = ("first", "", "   ", *(f"line {number}" for number in range(20)), "x" * 1000)
    text = diagnose(ExitReport(1, tail=tail), lines=3)
    assert text.splitlines()[-4:] == ["Last lines of output:", "  line 18", "  line 19", "  " + "x" * 400]


def test_without_output_nothing_is_said_of_it() -> None:
    assert "Last lines" not in diagnose(ExitReport(1))


# last lines, message, whether memory ran out
MEMORY: dict[str, tuple[tuple[str, ...], str, bool]] = {
    "PyTorch": (("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",), "", True),
    "cuBLAS": (("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED",), "", True),
    "JAX": (("XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory",), "", True),
    "xgboost": (("cudaErrorMemoryAllocation: out of memory",), "", True),
    "Python": (("MemoryError",), "", True),
    "a flow that failed in Prefect": ((), "Flow run encountered an exception: MemoryError: no room", True),
    "killed without a word": ((), "The training process was killed (SIGKILL).", False),
    "another error": (("ValueError: batch_size",), "", False),
}


@pytest.mark.parametrize("tail, message, expected", MEMORY.values(), ids=MEMORY.keys())
def test_whether_memory_ran_out(tail: tuple[str, ...], message: str, expected: bool) -> None:
    assert ran_out_of_memory(ExitReport(-9, tail=tail), message) is expected
