"""Plain tables for a terminal: a line below the titles, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table

#: How a column is: of figures; of words that stay whole; of words that give way where there is too little room.
FIGURES: Mapping[str, Any] = {"justify": "right", "no_wrap": True}
WHOLE: Mapping[str, Any] = {"no_wrap": True}
WORDS: Mapping[str, Any] = {}


def each(how: Mapping[str, Any], *titles: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Several columns that are alike."""
    return [(title, how) for title in titles]


def plain_table(*columns: tuple[str, Mapping[str, Any]], gap: int = 1, **options: Any) -> Table:
    """A table without rows.

    Args:
        columns: Of each its title, and how it is.
        gap: Blanks between two columns.
        options: More, as of :class:`rich.table.Table`.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False, **options)
    for title, how in columns:
        table.add_column(title, **how)
    return table
