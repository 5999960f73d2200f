"""``prefect-gpu papers``: what each paper claims, beside what its profile and ours show here."""

from __future__ import annotations

import dataclasses
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prefect_gpu.cli import common

if TYPE_CHECKING:
    from prefect_gpu.papers.comparison import Comparison


def papers(
    only: Annotated[
        list[str] | None, typer.Option(metavar="PAPER", help="Only this paper; may be given several times.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller workloads: seconds, and rougher figures.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write a JSON list, one object per figure.")] = False,
) -> None:
    """Simulate the experiments of the five papers under their own profiles and under adaptive.

    For each figure of a paper: its baseline and result as printed; the same baseline, the paper's profile and adaptive,
    simulated here. Only the baseline is calibrated. A figure holds where the paper's profile improves on the baseline
    at least as much as the paper says; adaptive holds where it is at least as good as the paper's profile. All five
    take some minutes.
    """
    known = workloads()
    chosen = {name: known[_find(name, known)] for name in dict.fromkeys(only)} if only else known
    if not chosen:
        common.fail("This installation has no paper's workload. Install prefect-gpu again.")
    comparisons = []
    for name, compare in chosen.items():
        typer.echo(f"Simulating {name} …", err=True)
        comparisons += compare(quick=quick)
    if as_json:
        common.print_json([as_object(one) for one in comparisons])
    else:
        _show(comparisons)


def workloads() -> dict[str, Callable[..., list[Comparison]]]:
    """For each paper by the name of its package, the function that simulates its experiments."""
    from prefect_gpu import papers as package

    found = {}
    for paper in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if paper.ispkg and find_spec(f"{paper.name}.experiments") is not None:
            found[paper.name.rpartition(".")[2]] = import_module(f"{paper.name}.experiments").compare
    return found


def as_object(comparison: Comparison) -> dict[str, Any]:
    """A comparison with what follows from it: improvements as fractions of the baseline, and whether they hold."""
    return dataclasses.asdict(comparison) | {
        "improvement": comparison.improvement,
        "adaptive_improvement": comparison.adaptive_improvement,
        "holds": comparison.holds,
        "adaptive_holds": comparison.adaptive_holds,
    }


def _find(name: str, known: Iterable[str]) -> str:
    plain = name.lower().replace("-", "").replace("_", "")
    found = [one for one in known if one.replace("_", "") == plain]
    if not found:
        common.fail(f"--only {name} is none of {', '.join(known)}.", code=2)
    return found[0]


def _show(comparisons: Sequence[Comparison]) -> None:
    from rich.text import Text

    from prefect_gpu.reporting.tables import WORDS, each, plain_table

    columns = each(WORDS, "Paper", "Setting", "Metric (better than)")
    table = plain_table(*columns, *each({"justify": "right"}, "As printed", "Here", "adaptive"))
    notes: dict[str, list[str]] = {}
    for one in comparisons:
        printed = _change(one.paper_baseline, one.paper_result, one.paper_improvement)
        here = Text(_change(one.baseline, one.result, one.improvement))
        ours = Text(_change(None, one.adaptive, one.adaptive_improvement))
        for cell, holds in ((here, one.holds), (ours, one.adaptive_holds)):
            cell.append(" ✓" if holds else " ✗", style="green" if holds else "bold red")
        table.add_row(one.paper, one.setting, f"{one.metric} ({one.against})", printed, here, ours)
        if one.assumed and one.assumed not in notes.setdefault(one.paper, []):
            notes[one.paper].append(one.assumed)
    screen = common.console()
    screen.print(table)
    screen.print()
    screen.print("✓ the profile improves as the paper says or more; adaptive is as good as the profile. ✗ it is not.")
    failing = [one for one in comparisons if not one.holds]
    behind = [one for one in comparisons if not one.adaptive_holds]
    screen.print(
        f"{len(comparisons) - len(failing)} of {len(comparisons)} figures hold; adaptive is at least as good in "
        f"{len(comparisons) - len(behind)}."
    )
    for paper, lines in notes.items():
        screen.print()
        screen.print(f"Assumed for {paper}:", style="bold")
        for line in lines:
            screen.print(f"- {line}", markup=False)


def _change(baseline: float | None, result: float | None, improvement: float) -> str:
    """``120 → 80 (33 %)``; what is not known is left out."""
    figures = " → ".join(_number(value) for value in (baseline, result) if value is not None)
    return f"{figures} ({improvement:.1%})" if figures else f"{improvement:.1%}"


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) > 1e-9 else "0"
