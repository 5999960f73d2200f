"""Tables of how good estimates have been, and what they share with those that explain one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from prefect_gpu.cli import common
from prefect_gpu.estimation import runs as r
from prefect_gpu.estimation.accuracy import Comparison, judge
from prefect_gpu.phases import named
from prefect_gpu.reporting import accuracy as figures
from prefect_gpu.reporting.tables import FIGURES, WORDS, each, plain_table
from prefect_gpu.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

_MOST_RUNS = 20
_MOST_FLOWS = 40


def show_accuracy(screen: Console, compared: Sequence[Comparison], *, runs: bool = False) -> None:
    """How good the estimates of all flows have been."""
    judged = judge(compared)
    if not judged:
        say(
            screen,
            "No run that had been estimated has completed yet. A flow's runs are estimated once one of them has "
            "completed: prefect-gpu estimate FLOW shows how.",
        )
        return
    table = table_of("Flow", "Runs", named("training"), "Newest", "Within", "To end", "Memory", "Within")
    shown = judged[1 : _MOST_FLOWS + 1]
    for one in shown:
        table.add_row(Text(one.program or "", no_wrap=True, overflow="ellipsis"), *figures.cells(one))
    if len(judged) > 2:
        table.add_section()
        table.add_row("All flows", *figures.cells(judged[0]))
    screen.print(table)
    screen.print()
    if len(judged) - 1 > len(shown):
        say(screen, f"{len(judged) - 1 - len(shown)} flows with fewer runs are left out; --json has them all.")
    say(
        screen,
        f"{named('training')}, To end, Memory: median error of the estimates made before runs trained, as a part "
        f"of what was measured. Newest: of the newest {figures.WINDOW} runs. Within: part of the runs whose value was "
        f"in the interval that was estimated; the aim is {figures.COVERAGE:.0%}.",
        style="dim",
    )
    if runs:
        show_runs(screen, compared, {})


def show_runs(screen: Console, compared: Sequence[Comparison], names: Mapping[str, str]) -> None:
    """The newest runs that had been estimated: what was expected, what was measured."""
    newest = sorted(compared, key=lambda one: (-one.ended_at, one.run_id))[:_MOST_RUNS]
    heading(screen, f"The newest {common.plural(len(newest), 'run')} that had been estimated")
    table = table_of("Run", "Expected", named("training"), "Off", "Expected", "Memory", "Off")
    for one in newest:
        cells: list[str | Text] = []
        for target in (r.TRAINING_S, r.MEMORY_BYTES):
            pair = one.pair(target)
            if pair is None:
                cells += ["–"] * 3
                continue
            expected, measured = pair
            off = f"{(expected.median - measured) / measured:+.0%}"
            inside = expected.low <= measured <= expected.high
            cells += [amount(target, expected.median), amount(target, measured), Text(off, "" if inside else "yellow")]
        name = names.get(one.run_id, f"{one.program} {one.run_id[:8]}")
        table.add_row(Text(name, no_wrap=True, overflow="ellipsis"), *cells)
    screen.print(table)


def amount(target: str, value: float) -> str:
    """A target's value for people: ``1.2 s``, ``340 MiB``, ``47%``."""
    if target.endswith("_s") and target != r.NETWORK_BYTES_PER_S:
        if value < 0.95:
            return f"{value * 1e3:.3g} ms"
        return format_seconds(value)
    if target == r.CPU_CORES:
        return f"{value:.2g}"
    if target in (r.UTILISATION, r.UTILISATION_STD):
        return f"{value:.0%}"
    return format_bytes(round(value)) + ("/s" if target == r.NETWORK_BYTES_PER_S else "")


def table_of(first: str, *others: str) -> Table:
    """A plain table; all columns but the first have numbers, and only the first and the last give way."""
    *figures, last = others
    return plain_table((first, WORDS), *each(FIGURES, *figures), (last, {"justify": "right"}), caption_justify="left")


def heading(screen: Console, text: str) -> None:
    """A line above a table."""
    screen.print()
    screen.print(Text(text, style="bold"))


def say(screen: Console, text: str, style: str = "") -> None:
    """A sentence; what users named is taken as it is."""
    screen.print(Text(text, style=style))
