"""Reading tables: comma-separated text with a header, plain or gzipped, one row at a time.

Byte order marks, either kind of line ending, blank lines and spaces around values are all fine. Everything else that
is not a table of the expected columns is a :class:`TraceError` that names the place.
"""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from prefect_gpu.simulation.traces.job import TraceError

MOST_GPUS = 1_000_000
LARGEST = 10**15  # of any number in a trace: products of two stay finite, and whole numbers exact
_LONGEST_LINE = 1 << 20  # bytes; a longer one is no row of a trace, and would only fill the memory
_GZIP = b"\x1f\x8b"


def open_bytes(path: Path) -> BinaryIO:
    """The file's content, unpacked if it is gzipped, whatever its name. Raises OSError if it cannot be opened."""
    with path.open("rb") as plain:
        packed = plain.read(2) == _GZIP
    return cast(BinaryIO, gzip.open(path)) if packed else path.open("rb")


def text_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file with their endings. Raises TraceError for anything else, OSError if there is none."""
    line = 0
    with open_bytes(path) as file:
        while True:
            line += 1
            try:
                raw = file.readline(_LONGEST_LINE + 1)
                if not raw:
                    return
                text = raw.decode("utf-8-sig" if line == 1 else "utf-8")
            except UnicodeDecodeError as error:
                remedy = "save the file as UTF-8 text."
                raise TraceError(path, line, "", raw[error.start : error.end], "is not UTF-8", remedy) from None
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                remedy = "pack or copy it again."
                raise TraceError(path, None, "", None, f"is a damaged gzip file ({error})", remedy) from None
            if len(raw) > _LONGEST_LINE:
                problem = f"is longer than {_LONGEST_LINE:,} bytes"
                raise TraceError(path, line, "", text[:20], problem, "is this a trace? Give one job per line.")
            yield text


class Row:
    """One row of a table, asked for values by the names of the columns. Every refusal is a :class:`TraceError`."""

    __slots__ = ("_cells", "_columns", "_named", "line", "path")

    def __init__(
        self, path: Path, line: int, columns: dict[str, int], cells: Sequence[str], named: dict[str, int] | None = None
    ) -> None:
        self.path, self.line, self._columns, self._cells = path, line, columns, cells
        self._named = {} if named is None else named  # lines of the names so far, shared by the rows of a table

    def wrong(self, column: str, value: object, problem: str, remedy: str) -> TraceError:
        """The error to raise for a value of this row."""
        return TraceError(self.path, self.line, column, value, problem, remedy)

    def get(self, column: str) -> str:
        """The text in a column; empty if there is no such column or nothing in it."""
        index = self._columns.get(column)
        return "" if index is None else self._cells[index].strip()

    def text(self, column: str) -> str:
        """The text in a column, which must not be empty."""
        value = self.get(column)
        if not value:
            raise self.wrong(column, value, "is empty", "fill it in or remove the row.")
        return value

    def name(self, column: str) -> str:
        """The text in a column, which must differ from that of every row before."""
        value = self.text(column)
        before = self._named.setdefault(value, self.line)
        if before != self.line:
            raise self.wrong(column, value, f"stands in line {before} too", "give every job a name of its own.")
        return value

    def number(self, column: str, least: float = 0.0) -> float:
        """A number between ``least`` and :data:`LARGEST`."""
        text = self.text(column)
        try:
            value = float(text) if text.isascii() and "_" not in text else math.nan
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self.wrong(column, text, "is not a number", "write plain digits, such as 42 or 1.5.")
        if value > LARGEST:
            raise self.wrong(column, text, f"is more than {LARGEST:g}", "is it in the right unit and column?")
        if value < least:
            problem = "is negative" if least == 0 else f"is less than {least:g}"
            raise self.wrong(column, text, problem, f"give a number of at least {least:g}.")
        return value

    def whole(self, column: str, least: int = 0, most: int | None = None) -> int:
        """A whole number between ``least`` and ``most`` (or :data:`LARGEST`); ``8.0`` counts as one."""
        value = self.number(column, least)
        if value != int(value):
            raise self.wrong(column, self.get(column), "is not a whole number", "give a count.")
        if most is not None and value > most:
            raise self.wrong(column, self.get(column), f"is more than {most:,}", "is this the right column?")
        return int(value)

    def gpus(self, column: str, least: int = 1) -> int:
        """A count of GPUs."""
        return self.whole(column, least, MOST_GPUS)


def read_table(path: Path, required: Sequence[str]) -> Iterator[Row]:
    """The rows of a comma-separated file whose first line names the columns; further columns may stand there.

    Args:
        path: The file; gzip is unpacked.
        required: Columns that must be there.

    Yields:
        Every row that is not blank, in the order of the file.

    Raises:
        TraceError: It is no such table; raised when the line in question is reached.
    """
    table = _cells(path)
    line, names = next(table, (1, []))
    names = [name.strip() for name in names]
    if not names:
        raise TraceError(path, None, "", None, "is empty", f"its first line must name {', '.join(required)}.")
    columns = {name: index for index, name in enumerate(names)}
    if len(columns) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise TraceError(path, line, twice, None, "names two columns", "give each column a name of its own.")
    for name in required:
        if name not in columns:
            found = f"is missing among the columns {', '.join(names)[:200]}"
            raise TraceError(path, line, name, None, found, "add it, or read the file as another format.")
    named: dict[str, int] = {}
    for line, cells in table:
        if len(cells) != len(names):
            problem = f"has {len(cells)} values where the header names {len(names)} columns"
            raise TraceError(path, line, "", ",".join(cells), problem, "is the row cut off, or a comma unquoted?")
        yield Row(path, line, columns, cells, named)


def header(path: Path) -> list[str]:
    """Names in the first line that is not blank of a comma-separated file; empty for an empty one."""
    return [name.strip() for name in next(_cells(path), (1, []))[1]]


def _cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and values of every row that is not blank."""
    reader = csv.reader(text_lines(path), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            problem = f"is not comma-separated text ({error})"
            raise TraceError(path, line, "", None, problem, "mend the quotes or the line ending.") from None
        if any(cell.strip() for cell in cells):
            yield line, cells
