"""The worker's side of :mod:`~prefect_gpu.runtime.drivers.duty`: one helper for each run that is throttled."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from pathlib import Path

from prefect_gpu.runtime.drivers import duty

_SCRIPT = "import sys; sys.path.append(sys.argv[1]); import duty; duty.main(sys.argv[2:])"


class Throttle:
    """Lets one run compute for a part of the time.

    A lower priority does not do that where nobody else wants the processor, and so does not spare the memory's
    bandwidth. Needs no right but to signal the run's processes.

    Args:
        main: Pid and start time of the run's first process.
        overseer: The same of its supervisor.
    """

    def __init__(self, main: tuple[int, int], overseer: tuple[int, int]) -> None:
        self._main, self._overseer = main, overseer
        self._helper: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def set(self, part: float) -> bool:
        """Let the run compute for this part of the time from now on; 1 is all of it, and it has at least a sixteenth.

        Returns:
            Whether it was done.
        """
        with self._lock:
            if part >= 1.0:
                self._stop_helper()
                duty.signal_all(duty.processes_of(self._main, self._overseer), signal.SIGCONT)
                return True
            try:
                if self._helper is None or self._helper.poll() is not None:
                    self._helper = self._start_helper()
                assert self._helper.stdin is not None
                self._helper.stdin.write(f"{part}\n".encode())
                self._helper.stdin.flush()
            except OSError:
                return False
            return True

    def close(self) -> None:
        """The run is not throttled any more. Returns when nothing of it is stopped."""
        with self._lock:
            self._stop_helper()

    def _start_helper(self) -> subprocess.Popen[bytes]:
        numbers = [str(number) for number in (*self._main, *self._overseer)]
        folder = str(Path(duty.__file__).parent)
        helper = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _SCRIPT, folder, *numbers],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        threading.Thread(target=self._follow, args=(helper,), name="throttle", daemon=True).start()
        return helper

    def _follow(self, helper: subprocess.Popen[bytes]) -> None:
        """If somebody kills the helper, the run must go on."""
        helper.wait()
        if helper.returncode != 0:
            duty.signal_all(duty.processes_of(self._main, self._overseer), signal.SIGCONT)

    def _stop_helper(self) -> None:
        helper, self._helper = self._helper, None
        if helper is None:
            return
        if helper.stdin is not None:
            with contextlib.suppress(OSError):
                helper.stdin.close()
        try:
            helper.wait(2.0)
        except subprocess.TimeoutExpired:
            helper.kill()  # `_follow` continues the run
            helper.wait()
