"""``prefect-gpu history --by``: what owners, programs or kinds of device have had, and what that cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from prefect_gpu.cli import common
from prefect_gpu.storage.row import HistoryRow

NOBODY = "–"  # the rows of which it is not known

GROUPS: Mapping[str, Callable[[HistoryRow], str | None]] = {
    "owner": lambda row: row.owner,
    "program": lambda row: row.flow_name,
    "kind": lambda row: "virtual" if row.virtual else row.device_kind,
}
"""What may be summed by, and what a row says of it."""

_JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Sum:
    """Of some runs together.

    Attributes:
        name: Of the owner, program or kind; None: of the runs of which it is not known.
        runs: How many tries of runs there are.
        device_s: Device seconds, as far as they are known.
        energy_j: Joules, likewise; None: of no run.
        energy_runs: Of how many runs the energy is known.
        cost: Likewise.
        cost_runs: Of how many runs the cost is known.
    """

    name: str | None
    runs: int
    device_s: float
    energy_j: float | None
    energy_runs: int
    cost: float | None
    cost_runs: int


def sums(rows: Sequence[HistoryRow], by: str) -> list[Sum]:
    """Sum up rows; who had most device time comes first."""
    grouped: dict[str | None, list[HistoryRow]] = {}
    for row in rows:
        grouped.setdefault(GROUPS[by](row) or None, []).append(row)
    found = [_sum(name, group) for name, group in grouped.items()]
    return sorted(found, key=lambda one: (-one.device_s, one.name or ""))


def _sum(name: str | None, rows: Sequence[HistoryRow]) -> Sum:
    energies = _known(row.energy_j for row in rows)
    costs = _known(row.cost for row in rows)
    device_s = sum(_known(row.device_s for row in rows))
    energy_j, cost = (sum(energies) if energies else None), (sum(costs) if costs else None)
    return Sum(name, len(rows), device_s, energy_j, len(energies), cost, len(costs))


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def show_sums(found: Sequence[Sum], by: str, since: datetime | None) -> None:
    """Print the sums as a table, and say what is not in them."""
    from rich.text import Text

    from prefect_gpu.reporting.tables import FIGURES, WORDS, each, plain_table

    screen = common.console()
    if not found:
        when = f" since {since:%Y-%m-%d %H:%M}" if since else ""
        screen.print(f"No run of this kind has finished{when}.")
        return
    heads = each(FIGURES, "Runs", "Device hours", "Energy (kWh)", "Cost")
    table = plain_table((by.capitalize(), WORDS), *heads)
    for one in found:
        energy = NOBODY if one.energy_j is None else f"{one.energy_j / _JOULES_PER_KWH:.4g}"
        cost = NOBODY if one.cost is None else f"{one.cost:,.2f}"
        table.add_row(Text(one.name or NOBODY), str(one.runs), f"{one.device_s / 3600:.4g}", energy, cost)
    screen.print(table)
    runs = sum(one.runs for one in found)
    missing = {
        "The energy": runs - sum(one.energy_runs for one in found),
        "The cost": runs - sum(one.cost_runs for one in found),
    }
    for what, count in missing.items():
        if count:
            screen.print(f"{what} of {count} of {common.plural(runs, 'run')} is not known, and not in the sums.")
