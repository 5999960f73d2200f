"""Plain tables for a terminal: a line below the titles, and nothing else."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

#: How a column is: of figures; of words that stay whole; of words that give way where there is too little room.
FIGURES: Mapping[str, Any] = {"justify": "right", "no_wrap": True}
WHOLE: Mapping[str, Any] = {"no_wrap": True}
WORDS: Mapping[str, Any] = {"overflow": "fold"}

_LEAST = 18  # characters to which words give way, before columns do
_BOUNDLESS = 10_000


def each(how: Mapping[str, Any], *titles: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Several columns that are alike."""
    return [(title, how) for title in titles]


def plain_table(
    *columns: tuple[str, Mapping[str, Any]], gap: int = 1, leave_out: Sequence[str] = (), **options: Any
) -> PlainTable:
    """A table without rows.

    Args:
        columns: Of each its title, and how it is.
        gap: Blanks between two columns.
        leave_out: The titles of columns that a narrow terminal does without, the least important first. The table says
            which it has left out.
        options: More, as of :class:`rich.table.Table`.
    """
    table = PlainTable(box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False, **options)
    table.leave_out = leave_out
    for title, how in columns:
        table.add_column(title, **how)
    return table


class PlainTable(Table):
    """A table that does without some of its columns where there is no room for figures and names beside them.

    Attributes:
        leave_out: See :func:`plain_table`.
    """

    leave_out: Sequence[str] = ()

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """A row. Names that users give are shown by what a terminal can only show: see :func:`harmless`."""
        super().add_row(*map(_harmless, cells), **options)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = next((one for one in self._ever_narrower() if one._least(console, options) <= options.max_width), None)
        if table is None:  # what is left is broken into lines, and not cut off
            [*_, table] = self._ever_narrower()
            table = self._of(replace(one, no_wrap=False, overflow="fold") for one in table.columns)
        yield from Table.__rich_console__(table, console, options)
        shown = {*map(_title, table.columns)}
        if left := [_title(one) for one in self.columns if _title(one) not in shown]:
            yield Text(f"Left out, as there is no room: {', '.join(left)}.", "bright_black")

    def _ever_narrower(self) -> Iterator[PlainTable]:
        """This table, then without one column, without two, …"""
        for count in range(len(self.leave_out) + 1):
            yield self._of(one for one in self.columns if _title(one) not in self.leave_out[:count])

    def _of(self, columns: Iterable[Column]) -> PlainTable:
        table = copy(self)
        table.columns = Table(*map(replace, columns)).columns  # which numbers them
        return table

    def _least(self, console: Console, options: ConsoleOptions) -> int:
        """How wide it is with all figures and names, and what gives way in its least width."""
        tight = self._of(
            one if one.no_wrap else replace(one, max_width=one.min_width or _LEAST) for one in self.columns
        )
        return Measurement.get(console, options.update_width(_BOUNDLESS), tight).maximum


def harmless(text: str) -> str:
    """A text in which nothing tells a terminal to do something: to clear itself, say."""
    return "".join("\N{REPLACEMENT CHARACTER}" if _commands(letter) else letter for letter in text)


def _commands(letter: str) -> bool:
    return letter != "\n" and unicodedata.category(letter) == "Cc"


def _harmless(cell: RenderableType | None) -> RenderableType | None:
    if isinstance(cell, Text):
        cell.plain = harmless(cell.plain)  # as long as it was, so that its styles stay where they are
        return cell
    return harmless(cell) if isinstance(cell, str) else cell


def _title(column: Column) -> str:
    return str(column.header).replace("-\n", "").replace("\n", " ")
