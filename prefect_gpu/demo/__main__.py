"""The demo's command line: ``python -m prefect_gpu.demo [--trials N] [--output DIR] [--keep]``."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from prefect_gpu.demo.common import DemoError
from prefect_gpu.demo.show import Show
from prefect_gpu.lab.sandbox import SandboxError


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


def stop_on_signals() -> None:
    """Let SIGTERM and SIGHUP do what Ctrl-C does: everything that was started must be stopped then, too.

    Under ``nohup``, SIGHUP stays ignored.
    """
    # If it comes while a connection is given back, SQLAlchemy logs all of it with its traceback, and then passes it on.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _interrupt)


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


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
