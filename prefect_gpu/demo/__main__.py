"""The demo's command line: ``python -m prefect_gpu.demo [--trials N] [--output DIR] [--keep]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from prefect_gpu.demo.common import DemoError
from prefect_gpu.demo.show import Show
from prefect_gpu.lab.sandbox import SandboxError, stop_on_signals


def main(arguments: list[str] | None = None) -> int:
    """Run the demo.

    Returns:
        The exit code: 0 if everything completed, 1 if something failed, 2 for a wrong argument, 130 if it was stopped.
    """
    parser = argparse.ArgumentParser(prog="python -m prefect_gpu.demo", description="A tour of prefect-gpu.")
    parser.add_argument("--trials", type=count, default=12, help="trainings in the sweep [default: 12]")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for pictures and models")
    parser.add_argument("--keep", action="store_true", help="leave server and worker up until Enter, to look around")
    chosen = parser.parse_args(arguments)
    stop_on_signals()
    return ended_well(Show(chosen.output, trials=chosen.trials, keep=chosen.keep).run)


def ended_well(run: Callable[[], int]) -> int:
    """Run a demo, and say in one line why it ended if it did not come to its end. Returns the exit code."""
    try:
        return run()
    except KeyboardInterrupt:
        print("\nStopped; nothing is left running.", file=sys.stderr)
        return 130
    except (DemoError, SandboxError) as error:
        print(f"\nThe demo failed. {error}", file=sys.stderr)
        return 1


def count(text: str) -> int:
    """A number of at least 1, from the command line."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
