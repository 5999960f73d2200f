"""What a run that shares may take: the real limits of this process and of PyTorch; GPU calls through stand-ins."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from prefect_gpu.training.limits import caps
from prefect_gpu.training.limits.caps import Caps, own_caps, ran_out
from prefect_gpu.training.protocol import ENV_MEMORY

VIRTUAL = {"id": "virtual-0", "memory_bytes": 8 << 30, "virtual": True}
GPU = {"id": "GPU-1", "memory_bytes": 10 << 30, "virtual": False}

# The limit is the whole process's, so that each of these is one of its own.
_HELD = """
import os
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])  # with more cores, more is left for their threads
from prefect_gpu.training.limits.caps import Caps, ran_out
{imports}
limit = Caps(300 << 20, [{{"virtual": True}}])
limit.apply(training=False)
early = {much}
del early
limit.apply()
little = {little}
try:
    too_much = {much}
except Exception as error:
    print("refused", ran_out(error))
limit.apply(1200 << 20)
much = {much}
del much
limit.apply(300 << 20)
limit.lift()
much = {much}
print("lifted", limit.limit_bytes)
"""


@pytest.mark.parametrize(
    ("imports", "little", "much"),
    [
        ("", "b'x' * (50 << 20)", "b'x' * (900 << 20)"),
        pytest.param(
            "import torch", "torch.ones(5 << 18)", "torch.ones(900 << 18)", marks=pytest.mark.needs("pytorch")
        ),
    ],
    ids=["python", "torch"],
)
def test_a_process_on_a_virtual_device_is_refused_more_until_it_is_alone(imports: str, little: str, much: str) -> None:
    code = _HELD.format(imports=imports, little=little, much=much)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.split("\n")[:2] == ["refused True", "lifted None"], done.stderr


class CudaStandIn:
    """Stands in for ``torch.cuda`` on a machine without a GPU: the calls that PyTorch 2 has, nothing else."""

    def __init__(self, *, initialised: bool, total: int = 10 << 30) -> None:
        self.initialised, self.total = initialised, total
        self.waiting: list[Any] = []
        self.parts: list[tuple[float, int]] = []
        self.emptied = 0

    def is_initialized(self) -> bool:
        return self.initialised

    def _lazy_call(self, call: Any) -> None:
        self.waiting.append(call)

    def device_count(self) -> int:
        return 1

    def get_device_properties(self, number: int) -> Any:
        return SimpleNamespace(total_memory=self.total)

    def set_per_process_memory_fraction(self, part: float, number: int) -> None:
        self.parts.append((part, number))

    def empty_cache(self) -> None:
        self.emptied += 1


def test_pytorch_is_held_when_it_first_uses_the_gpu_and_let_go_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = CudaStandIn(initialised=False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    limit = Caps(2 << 30, [GPU])
    limit.apply(training=False)
    limit.apply()
    assert (cuda.parts, len(cuda.waiting)) == ([], 1), "the process may still fork others that use the GPU"
    cuda.initialised = True
    cuda.waiting[0]()
    limit.apply(5 << 30)
    assert cuda.parts == [(0.2, 0), (0.5, 0)]
    limit.lift()
    limit.apply()
    assert (cuda.parts[2:], cuda.emptied) == ([(1.0, 0)], 1)


@pytest.mark.needs("pytorch")
def test_the_calls_that_the_stand_in_has_are_those_of_the_real_pytorch() -> None:
    import torch

    for name in ("is_initialized", "_lazy_call", "device_count", "get_device_properties", "empty_cache"):
        assert callable(getattr(torch.cuda, name))
    assert callable(torch.cuda.set_per_process_memory_fraction)
    Caps(1 << 30, [GPU]).apply()  # nothing to hold, and nothing raised


def test_tensorflow_is_held_once_before_it_uses_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    held: dict[str, list[Any]] = {}
    # Stands in for TensorFlow 2's tf.config, which does not install here.
    config = SimpleNamespace(
        list_physical_devices=lambda kind: ["gpu:0"],
        get_logical_device_configuration=held.get,
        LogicalDeviceConfiguration=lambda memory_limit: memory_limit,
        set_logical_device_configuration=held.__setitem__,
    )
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=config))
    limit = Caps(2 << 30, [GPU])
    limit.apply()
    limit.apply(4 << 30)
    assert held == {"gpu:0": [2048.0]}


def test_what_a_framework_refuses_is_said_and_harms_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True)))
    Caps(1 << 30, [GPU]).apply()
    assert "PyTorch could not be held" in caplog.text


def test_without_a_limit_nothing_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caps, "resource", None)
    monkeypatch.setitem(sys.modules, "torch", None)
    for limit in (own_caps({}, [VIRTUAL]), own_caps({ENV_MEMORY: "much"}, [GPU])):
        limit.apply()
        limit.lift()
        assert limit.limit_bytes is None
    assert own_caps({ENV_MEMORY: "100"}, [GPU]).limit_bytes == 100


class OutOfMemoryError(RuntimeError):
    """Named as PyTorch's is."""


def caused(error: Exception) -> Exception:
    try:
        raise ValueError("the batch could not be built") from error
    except ValueError as found:
        return found


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (OutOfMemoryError("x"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (caused(MemoryError()), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("the text 'bad allocation' of a user"), False),
        (KeyboardInterrupt(), False),
        (None, False),
    ],
    ids=str,
)
def test_which_errors_say_that_memory_ran_out(error: BaseException | None, expected: bool) -> None:
    assert ran_out(error) is expected
