"""`make test` and `make test-all`: lint and all tests, side by side as far as they do not disturb each other.

``python -m tests.suite test``      lint, and every behaviour that needs nothing but Python
``python -m tests.suite test-all``  what that leaves out: see :mod:`tests.components` for what it needs

Further arguments go to pytest. Exits with 1 if anything failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
_LINT = ("ruff check .", "ruff format --check .", "lint-imports", "mypy")
_NO_TESTS = 5  # pytest's exit code where PYTEST_ARGS chose none of these
# A third of a live test is waiting, so that more than one fits on a core.
_PROCESSES = min(8, 1 + len(os.sched_getaffinity(0)))
# The marks that each chooses, and what pytest is told beside.
_SUITES = {"test": ("not full",), "test-all": ("full or door", "--hypothesis-profile=long", "--timeout=1200")}


def main(suite: str, arguments: Sequence[str]) -> int:
    """Run one of the suites. Returns the exit code."""
    if suite not in _SUITES:
        print(f"There is no suite {suite!r}: choose one of {', '.join(_SUITES)}.", file=sys.stderr)
        return 2
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        lint = _lint(said) if suite == "test" else None
        chosen, *more = _SUITES[suite]
        failed = [] if _pytest(chosen, [*more, *arguments]) else ["tests"]
        if lint is not None and lint.wait():
            failed.append("lint")
            said.seek(0)
            print(said.read())
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    print(f"make {suite}: {'failed: ' + ', '.join(failed) if failed else 'all passed'}, {minutes} min {seconds} s")
    return 1 if failed else 0


def _lint(said: IO[str]) -> subprocess.Popen[str]:
    """Style, types and layers, beside the tests: the one that takes long is mypy, without its cache."""
    folder = Path(PYTHON).parent
    command = " && ".join(f"'{folder}'/{check}" for check in _LINT)
    return subprocess.Popen(["sh", "-c", command], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=said, stderr=said)


def _pytest(chosen: str, arguments: Sequence[str]) -> bool:
    """Whether all tests with these marks passed."""
    beside = ["-n", str(_PROCESSES), "--dist", "loadgroup", "--no-loadscope-reorder"]  # selection.py has an order
    command = [PYTHON, "-m", "pytest", *beside, "-m", chosen, *arguments]
    return subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, check=False).returncode in (0, _NO_TESTS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "", sys.argv[2:]))
