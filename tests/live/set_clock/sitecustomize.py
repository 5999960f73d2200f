"""Begins every interpreter that finds this folder on its path: the machine's clock can be set by a test.

The file ``SET_CLOCK`` holds two numbers of seconds: by how much the clock was set, and how long the machine has slept.
"""

import os
import time

_FILE = os.environ.get("SET_CLOCK", "")
_time, _gettime = time.time, time.clock_gettime


def _said() -> tuple[float, float]:
    try:
        with open(_FILE) as file:
            shown, slept = file.read().split()
    except (OSError, ValueError):  # not there yet, or being written
        return 0.0, 0.0
    return float(shown), float(slept)


def _set_time() -> float:
    return _time() + sum(_said())


def _set_gettime(clock: int) -> float:
    return _gettime(clock) + (_said()[1] if clock == time.CLOCK_BOOTTIME else 0.0)


if _FILE:
    time.time, time.clock_gettime = _set_time, _set_gettime
