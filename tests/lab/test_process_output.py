"""What a background process has printed, where an earlier one had the same log."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from prefect_gpu.lab.sandbox import Process


def test_what_an_earlier_process_has_printed_is_none_of_its_output(tmp_path: Path) -> None:
    """After `prefect-gpu down`, `up` said that the pool has a worker as soon as it had begun to start one."""
    for word in ("first", "second"):
        command = [sys.executable, "-c", f"print({word!r} + ' started!')"]
        process = Process(command, log=tmp_path / "worker-1.log", env=os.environ, cwd=tmp_path)
        process.wait_for_output("started!", timeout_s=60)
        assert process.output == f"{word} started!\n"
        process.terminate(timeout_s=10)
    assert (tmp_path / "worker-1.log").read_text() == "first started!\nsecond started!\n"
