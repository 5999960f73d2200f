"""The cluster demo's last page: what became of each run, and what to look at next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from prefect_gpu.demo.closing import best_model, shown_path
from prefect_gpu.estimation.submission import RESUMED_AT
from prefect_gpu.reporting.tables import FIGURES, WHOLE, WORDS, each, plain_table
from prefect_gpu.storage.row import HistoryRow


def results_table(rows: Sequence[HistoryRow], results: Mapping[str, Any]) -> Table:
    """One line per run, in the order of their first start.

    Args:
        rows: One per try.
        results: What each run has returned.
    """
    columns = [*each(WORDS, "Run", "Nodes, try by try"), *each(FIGURES, "Tries", "Steps", "Carried on from")]
    table = plain_table(*columns, ("Outcome", WHOLE), ("Test data right", {"justify": "right"}), gap=2)
    tries: dict[str, list[HistoryRow]] = {}
    for row in rows:
        tries.setdefault(row.run_id, []).append(row)
    for run_id, own in tries.items():
        last = own[-1]
        nodes = " → ".join(_nodes_of(row) for row in own)
        resumed = last.features.get(RESUMED_AT) if len(own) > 1 else None
        table.add_row(
            Text(last.run_name or run_id, no_wrap=True, overflow="ellipsis"), Text(nodes), Text(str(len(own))),
            Text("–" if last.steps_done is None else str(last.steps_done)),
            Text("" if len(own) == 1 else f"step {resumed or 0}"),
            Text(last.outcome, style="green" if last.outcome == "completed" else "bold red"),
            Text(_accuracy(results.get(run_id))),
        )  # fmt: skip
    return table


def closing_words(output: Path, rows: Sequence[HistoryRow], lost: str) -> str:
    """What came of it, and where the pictures are, as Rich's markup."""
    again = {row.run_id for row in rows if row.attempt > 1}
    shown = shown_path(output)
    lines = [""]
    if lost:
        count = f"{len(again)} runs were" if len(again) != 1 else "1 run was"
        lines.append(f"{count} tried again because {lost} was lost, and carried on from the last checkpoint.")
    lines += [
        *best_model(output / "sweep"),
        "",
        "[bold]Look at what the nodes did[/]",
        f"  {shown}/timeline.png   a picture: a lane for each device, and when a node was down",
        f"  {shown}/timeline.html  the same to point at and zoom into, in a browser",
        "",
        "[bold]Next[/]",
        "  docs/how-to/from-one-machine-to-a-swarm.md    the same on machines of your own",
        "  flows/data_parallel.py                        the gang: one model on several devices",
    ]
    return "\n".join(lines)


def _nodes_of(row: HistoryRow) -> str:
    counts: Counter[str] = Counter()
    for node, devices in row.places:
        counts[node or "?"] += len(devices)
    return ", ".join(f"{node} ×{count}" if count > 1 else node for node, count in counts.items())


def _accuracy(result: Any) -> str:
    value = result.get("test") if isinstance(result, Mapping) else result
    return f"{value:.1%}" if isinstance(value, float) else "–"
