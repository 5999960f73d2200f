"""The one form in which every benchmark is started and reports."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Claim:
    """One claim: what was measured, what was asked, and whether it holds.

    Attributes:
        asked: A comparison with a number, such as ``">= 25"``.
    """

    name: str
    value: float
    asked: str
    holds: bool


def command_line(doc: str | None, *, quick: str) -> argparse.ArgumentParser:
    """The options that every benchmark has.

    Args:
        doc: The benchmark's docstring, for ``--help``.
        quick: What ``--quick`` does.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help=quick)
    return parser


def at_least(name: str, value: float, bound: float) -> Claim:
    """A claim that a value is no smaller than a bound."""
    return Claim(name, value, f">= {bound:g}", value >= bound)


def at_most(name: str, value: float, bound: float) -> Claim:
    """A claim that a value is no larger than a bound."""
    return Claim(name, value, f"<= {bound:g}", value <= bound)


def below(name: str, value: float, bound: float) -> Claim:
    """A claim that a value is smaller than a bound."""
    return Claim(name, value, f"< {bound:g}", value < bound)


def report(benchmark: str, claims: list[Claim], details: dict[str, Any], *, as_json: bool) -> int:
    """Print the result, as one JSON object or as a table.

    Returns:
        The exit code: 1 when a claim does not hold.
    """
    if as_json:
        print(json.dumps({"benchmark": benchmark, "claims": [asdict(claim) for claim in claims], **details}))
    else:
        _print_table(benchmark, claims)
        for name, value in details.items():
            print(f"{name}: {value}")
    failed = [claim.name for claim in claims if not claim.holds]
    if failed:
        print(f"does not hold: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _print_table(benchmark: str, claims: list[Claim]) -> None:
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:  # the GPU kit runs where little is installed
        for claim in claims:
            print(f"{claim.name}: {_shown(claim.value)} (asked {claim.asked}): {'yes' if claim.holds else 'NO'}")
        return
    table = Table(title=benchmark, box=None)
    for title in ("claim", "value", "asked", "holds"):
        table.add_column(title)
    for claim in claims:
        table.add_row(claim.name, _shown(claim.value), claim.asked, "yes" if claim.holds else "[bold red]no")
    Console().print(table)


def _shown(value: float) -> str:
    return f"{value:,.0f}" if 10_000 <= abs(value) < 1e12 else f"{value:.4g}"
