"""Priorities and cores of real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_gpu.runtime.drivers import priority
from tests.components import require

TWO_THREADS = "import threading; threading.Thread(target=input).start(); print(flush=True)"


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    """A process with two threads and a session of its own, as a run has."""
    process = subprocess.Popen(
        [sys.executable, "-c", TWO_THREADS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize(
    ("weight", "nice"), [(1.0, 0), (2.0, 0), (0.8, 1), (0.5, 3), (0.02, 18), (0.001, 19), (0.0, 19)]
)
def test_a_share_is_as_many_levels_as_the_kernel_makes_of_it(weight: float, nice: int) -> None:
    assert priority.niceness(weight) == nice


def test_a_priority_goes_down_and_up_again(process: subprocess.Popen[str]) -> None:
    require("a kernel that groups processes by session, or root", priority.adjustable())
    for weight in (0.02, 1.0):
        assert priority.set_priority(process.pid, [process.pid], weight)
        levels = []
        if os.geteuid() == 0:
            levels.append(os.getpriority(os.PRIO_PROCESS, process.pid))
        group = Path(f"/proc/{process.pid}/autogroup")
        if priority._grouped() and group.exists():
            levels.append(int(group.read_text().rpartition(" ")[2]))
        assert levels and set(levels) == {priority.niceness(weight)}


def test_all_threads_are_bound(process: subprocess.Popen[str]) -> None:
    core = min(os.sched_getaffinity(0))
    assert priority.bind([process.pid], [core])
    threads = os.listdir(f"/proc/{process.pid}/task")
    assert len(threads) == 2 and all(os.sched_getaffinity(int(thread)) == {core} for thread in threads)


def test_a_process_that_is_gone_or_a_core_that_is_none_changes_nothing(process: subprocess.Popen[str]) -> None:
    before = os.sched_getaffinity(process.pid)
    assert not priority.bind([process.pid], [100_000]) and os.sched_getaffinity(process.pid) == before
    process.kill()
    process.wait()
    assert not priority.bind([process.pid], [0])
    assert priority.cpu_seconds([process.pid]) is None


def test_the_processor_time_of_processes_is_added_up(process: subprocess.Popen[str]) -> None:
    mine, others = priority.cpu_seconds([os.getpid()]), priority.cpu_seconds([process.pid])
    both = priority.cpu_seconds([os.getpid(), process.pid])
    assert mine is not None and others is not None and both is not None
    assert both + 1e-9 >= mine + others > 0, "but for the rounding of a sum"
