"""What a background process has printed, where an earlier one had the same log; and how a sandbox closes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from prefect_gpu.lab.sandbox import Process, Sandbox


def test_what_an_earlier_process_has_printed_is_none_of_its_output(tmp_path: Path) -> None:
    """After `prefect-gpu down`, `up` said that the pool has a worker as soon as it had begun to start one."""
    for word in ("first", "second"):
        command = [sys.executable, "-c", f"print({word!r} + ' started!')"]
        process = Process(command, log=tmp_path / "worker-1.log", env=os.environ, cwd=tmp_path)
        process.wait_for_output("started!", timeout_s=60)
        assert process.output == f"{word} started!\n"
        process.terminate(timeout_s=10)
    assert (tmp_path / "worker-1.log").read_text() == "first started!\nsecond started!\n"


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
