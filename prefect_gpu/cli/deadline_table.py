"""``prefect-gpu history --deadlines``: runs with deadlines, and how many promises were kept."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from prefect_gpu.cli import common
from prefect_gpu.storage.row import HistoryRow
from prefect_gpu.units import format_seconds


def with_deadline(rows: Sequence[HistoryRow]) -> list[HistoryRow]:
    """The rows of runs that had one."""
    return [row for row in rows if row.deadline_at is not None]


def was_kept(row: HistoryRow) -> bool | None:
    """Whether a run was done by its deadline; None: it ended otherwise, so that nobody can say."""
    if row.outcome != "completed" or row.deadline_at is None:
        return False if row.deadline_at is not None and row.ended_at > row.deadline_at else None
    return row.ended_at <= row.deadline_at


def counted(rows: Sequence[HistoryRow]) -> dict[str, Any]:
    """How promises ended: ``promised``, ``kept``, ``broken``; what failed or was cancelled in time is neither."""
    promised = [was_kept(row) for row in rows if row.promised is not None]
    return {"promised": len(promised), "kept": promised.count(True), "broken": promised.count(False)}


def show_deadlines(rows: Sequence[HistoryRow]) -> None:
    """The table, and the sum below it."""
    from rich.text import Text

    from prefect_gpu.reporting.tables import FIGURES, WORDS, each, plain_table

    screen, found = common.console(), with_deadline(rows)
    if not found:
        screen.print("No run with a deadline has finished yet.")
        return
    table = plain_table(*each(WORDS, "Run", "Flow", "Deadline", "Promised"), ("To spare", FIGURES), ("Kept", WORDS))
    words = {True: "yes", False: "no", None: "–"}
    for row in found:
        assert row.deadline_at is not None
        spare_s = row.deadline_at - row.ended_at
        table.add_row(
            Text(row.run_name or row.run_id),
            Text(row.flow_name),
            datetime.fromtimestamp(row.deadline_at).strftime("%Y-%m-%d %H:%M:%S"),
            "no" if row.promised is None else f"{row.promised:.0%}",
            f"{'-' if spare_s < 0 else ''}{format_seconds(abs(spare_s))}",
            words[was_kept(row)],
        )
    screen.print(table)
    sums = counted(found)
    decided = sums["kept"] + sums["broken"]
    part = f" ({100 * sums['kept'] / decided:.0f} of 100)" if decided else ""
    screen.print(f"\n{sums['kept']} of {common.plural(decided, 'promise')} kept{part}.")
