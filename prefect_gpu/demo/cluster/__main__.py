"""The cluster demo's command line: ``python -m prefect_gpu.demo.cluster [--trials N] [--output DIR] ...``."""

from __future__ import annotations

import argparse
import ipaddress
import sys
from pathlib import Path

from prefect_gpu.demo.__main__ import count, ended_well
from prefect_gpu.demo.cluster.show import ClusterShow
from prefect_gpu.lab.sandbox import stop_on_signals

_LONGEST_PREFIX = 8  # of an interface's name, which may have 15 letters


def main(arguments: list[str] | None = None) -> int:
    """Run the demo.

    Returns:
        The exit code: 0 if all runs completed, 1 if something failed or is missing, 2 for a wrong argument, 130 if it
        was stopped.
    """
    parser = argparse.ArgumentParser(
        prog="python -m prefect_gpu.demo.cluster",
        description="Three Docker nodes on this machine: a sweep, a gang, and a node that is lost on the way.",
    )
    parser.add_argument("--trials", type=count, default=6, help="trainings in the sweep [default: 6]")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for pictures and models")
    parser.add_argument(
        "--prefix", type=_prefix, default="pgl", help="the nodes' names, bridge and folder begin so [default: pgl]"
    )
    parser.add_argument(
        "--subnet",
        type=_subnet,
        default="10.80.0",
        help="first three numbers of the nodes' addresses, which nothing else may use [default: 10.80.0]",
    )
    chosen = parser.parse_args(arguments)
    stop_on_signals()
    show = ClusterShow(chosen.output, trials=chosen.trials, prefix=chosen.prefix, subnet=chosen.subnet)
    return ended_well(show.run)


def _prefix(text: str) -> str:
    if not (text.isascii() and text.isalnum() and len(text) <= _LONGEST_PREFIX):
        raise argparse.ArgumentTypeError(f"at most {_LONGEST_PREFIX} letters and digits")
    return text.lower()


def _subnet(text: str) -> str:
    try:
        ipaddress.IPv4Address(f"{text}.1")
    except ValueError:
        raise argparse.ArgumentTypeError("three numbers, such as 10.80.0") from None
    return text


if __name__ == "__main__":
    sys.exit(main())
