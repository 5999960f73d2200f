"""How a sandbox closes: whatever interrupts it, nothing that it has started is left."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from prefect_gpu.lab.sandbox import Sandbox


class Impatient(Sandbox):
    """Whoever uses it presses Ctrl-C again while it closes."""

    closed = 0

    def start_server(self, meanwhile: Callable[[], object] | None = None) -> None: ...

    def close(self) -> None:
        signal.raise_signal(signal.SIGINT)
        super().close()
        self.closed += 1


class Interrupted(Impatient):
    def start_server(self, meanwhile: Callable[[], object] | None = None) -> None:
        raise KeyboardInterrupt


def test_a_second_ctrl_c_does_not_keep_a_sandbox_from_closing(tmp_path: Path) -> None:
    box = Impatient(tmp_path / "box")
    with pytest.raises(KeyboardInterrupt), box:
        raise KeyboardInterrupt
    early = Interrupted(tmp_path / "early")
    with pytest.raises(KeyboardInterrupt), early:
        raise AssertionError("it does not begin")
    assert (box.closed, early.closed) == (1, 1)
    with pytest.raises(KeyboardInterrupt):  # as before
        signal.raise_signal(signal.SIGINT)


def test_a_sandbox_of_another_thread_closes_too(tmp_path: Path) -> None:
    class Quiet(Impatient):
        def close(self) -> None:
            self.closed += 1

    box = Quiet(tmp_path / "box")

    def use() -> None:
        with box:
            pass

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert box.closed == 1
