"""From what is known of a run to numbers that a model can use.

Users pass whatever they like to their flows: numbers, texts, switches, nested settings, run labels, seeds. What says
something is found from the history: columns that never vary are left out, and so are texts that hardly ever repeat
(names, dates, ids). Sizes are taken as logarithms, because costs are products of sizes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prefect_gpu.estimation.runs import Known

Value = float | str

MOST_COLUMNS = 64  # of one program; those given most often
MOST_CATEGORIES = 8  # of one column; rarer ones count as one
_MOST_DEPTH = 4  # of nested parameters
_LONGEST_TEXT = 64
_LARGEST = 1e100  # numbers beyond it are taken as this large: their squares would not be finite
_BEYOND = math.log(10.0)  # how far outside what was seen a logarithm may lie; further out is taken as this far
LEAST_SPREAD = 0.25  # of a column's logarithms: values closer together say little of what others would do
_ODD = math.log(2.0)  # from how far outside on it is worth a warning


def flatten(known: Known) -> tuple[dict[str, Value], list[str]]:
    """Every fact by name, and what is wrong with some of them.

    Numbers and switches become floats, texts stay; a list becomes its length and, of numbers, their sum. What is no
    finite number is left out, with a warning; what is None is left out.

    Example:
        >>> flatten(Known("train", {"lr": 0.1, "model": {"layers": [8, 4]}}))[0]["model.layers.sum"]
        12.0
    """
    values: dict[str, Value] = {}
    warnings: list[str] = []
    _flatten("", known.parameters, values, warnings, 0)
    values.pop("", None)  # a name may be empty where users pass any keyword
    if known.named:
        chosen = tuple(known.named)
        values = {name: value for name, value in values.items() if _is_named(name, chosen)}
        missing = [name for name in chosen if not any(_is_named(found, (name,)) for found in values)]
        warnings += [
            f"feature {name!r} is named for {known.program!r}, but the run has no such parameter" for name in missing
        ]
    declared: dict[str, Value] = {}
    _flatten("", known.declared, declared, warnings, 0)
    values |= {f"@{name}": value for name, value in declared.items()}
    for name, number in (
        ("#gpus", known.gpus),
        ("#workers", known.workers),
        ("#servers", known.servers),
        ("#cpus", known.cpus),
    ):
        if number is not None and math.isfinite(number):
            values[name] = float(number)
    if known.category:
        values["#category"] = known.category
    if known.device_kind:
        values["#device_kind"] = known.device_kind
    return values, warnings


def plain_name(column: str) -> str:
    """A column's name as people know it: without the mark of what the run declared or asked for."""
    return column.lstrip("@#")


def _is_named(column: str, names: Sequence[str]) -> bool:
    return any(column == name or column.startswith(f"{name}.") for name in names)


def _flatten(prefix: str, value: Any, values: dict[str, Value], warnings: list[str], depth: int) -> None:
    if isinstance(value, Mapping):
        if depth < _MOST_DEPTH:
            for key, item in value.items():
                _flatten(f"{prefix}.{key}" if prefix else str(key), item, values, warnings, depth + 1)
    elif isinstance(value, bool):
        values[prefix] = float(value)
    elif isinstance(value, int | float | np.integer | np.floating):
        _put_number(prefix, value, values, warnings)
    elif isinstance(value, list | tuple | set | frozenset):
        values[f"{prefix}.len"] = float(len(value))
        numbers = [item for item in value if isinstance(item, int | float) and not isinstance(item, bool)]
        if value and len(numbers) == len(value):
            _put_number(f"{prefix}.sum", sum(map(_as_float, numbers)), values, warnings)
    elif isinstance(value, str):
        values[prefix] = value[:_LONGEST_TEXT]


def _put_number(name: str, value: Any, values: dict[str, Value], warnings: list[str]) -> None:
    number = _as_float(value)
    if math.isfinite(number):
        values[name] = number
    else:
        warnings.append(f"{name}={number} is not finite, and was left out")


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # Python's integers know no bounds
        return math.inf if value > 0 else -math.inf


@dataclass(frozen=True)
class Column:
    """One fact of the runs of one program (or of all), as it is turned into numbers.

    Attributes:
        name: As in :func:`flatten`.
        categories: The texts that have a number of their own, most frequent first; empty: the column is numeric.
        logarithmic: Whether logarithms are taken.
        low, high: What was seen, after the logarithm.
        centre, scale: What a number is shifted and divided by.
        usual: What stands for a missing value, after shift and scale.
        partly_missing: Whether a number of its own says that the value is missing.
    """

    name: str
    categories: tuple[str, ...] = ()
    logarithmic: bool = False
    low: float = 0.0
    high: float = 0.0
    centre: float = 0.0
    scale: float = 1.0
    usual: float = 0.0
    partly_missing: bool = False

    @property
    def width(self) -> int:
        """Numbers that the column becomes."""
        return (len(self.categories) or 1) + self.partly_missing

    def encode(self, value: Value | None, warnings: list[str] | None = None) -> list[float]:
        """The column's numbers for one run."""
        numbers = self._categories(value, warnings) if self.categories else [self._number(value, warnings)]
        return [*numbers, float(value is None)] if self.partly_missing else numbers

    def _categories(self, value: Value | None, warnings: list[str] | None) -> list[float]:
        text = _text(value)
        if warnings is not None and value is not None and text not in self.categories:
            warnings.append(f"{plain_name(self.name)}={value!r} has not been seen, or rarely")
        return [float(text == category) for category in self.categories]

    def _number(self, value: Value | None, warnings: list[str] | None) -> float:
        number = _as_number(value)
        if number is None:
            if value is not None and warnings is not None:
                warnings.append(f"{plain_name(self.name)}={value!r} is a text where earlier runs had a number")
            return self.usual
        if self.logarithmic:
            number = math.log(number) if number > 0 else -math.inf
        beyond = _BEYOND if self.logarithmic else 2 * (self.high - self.low)
        odd = _ODD if self.logarithmic else 0.5 * (self.high - self.low)
        if warnings is not None and not self.low - odd <= number <= self.high + odd:
            low, high = (math.exp(self.low), math.exp(self.high)) if self.logarithmic else (self.low, self.high)
            warnings.append(f"{plain_name(self.name)}={value!r} is far from what was seen ({low:.6g} to {high:.6g})")
        number = min(max(number, self.low - beyond), self.high + beyond)
        return (number - self.centre) / self.scale


class Encoder:
    """Turns the facts of runs into rows of numbers; made from the runs of a history.

    Args:
        runs: Their facts, from :func:`flatten`.
        most: Columns at most; those given most often.
    """

    def __init__(self, runs: Sequence[Mapping[str, Value]], *, most: int = MOST_COLUMNS) -> None:
        counts = Counter(name for run in runs for name in run)
        often = sorted(counts, key=lambda name: (-counts[name], name))[:most]
        self._given = frozenset(counts)
        columns = (make_column(name, [run.get(name) for run in runs]) for name in sorted(often))
        self.columns: tuple[Column, ...] = tuple(column for column in columns if column is not None)
        # What all runs have in common says nothing of them, but much of one that differs.
        first = runs[0] if len(runs) > 1 else {}
        self._constant = {
            name: value
            for name, value in first.items()
            if not name.startswith("#") and all(run.get(name) == value for run in runs)
        }

    @property
    def groups(self) -> np.ndarray:
        """For each number of a row, which column it belongs to; shape (width,)."""
        return np.repeat(np.arange(len(self.columns)), [column.width for column in self.columns]).astype(int)

    def matrix(self, runs: Iterable[Mapping[str, Value]]) -> np.ndarray:
        """The rows of some runs; shape (runs, width)."""
        rows = [self.row(run) for run in runs]
        return np.array(rows, dtype=float).reshape(len(rows), sum(column.width for column in self.columns))

    def row(self, run: Mapping[str, Value], warnings: list[str] | None = None) -> list[float]:
        """The numbers of one run; what is odd about it is added to ``warnings``."""
        numbers: list[float] = []
        for column in self.columns:
            numbers += column.encode(run.get(column.name), warnings)
        if warnings is not None:
            warnings += [
                f"{plain_name(name)} is new: no earlier run had it"
                for name in run
                if name not in self._given and not name.startswith("#")
            ]
            warnings += [
                f"{plain_name(name)}={run[name]!r} was always {value!r} before"
                for name, value in self._constant.items()
                if run.get(name, value) != value
            ]
        return numbers


def make_column(name: str, values: Sequence[Value | None]) -> Column | None:
    """The column that some values make; None if they say nothing (constant, or all different texts)."""
    present = [value for value in values if value is not None]
    partly_missing = len(values) - len(present) > 0 and 0.05 * len(values) <= len(present) <= 0.95 * len(values)
    numbers = [number for number in map(_as_number, present) if number is not None]
    if present and len(numbers) >= 0.9 * len(present):
        return _numeric(name, numbers, partly_missing)
    counts = Counter(map(_text, present))
    if len(counts) > len(present) / (2 if len(present) <= 3 * MOST_CATEGORIES else 3):
        return None  # names, dates, ids: what has hardly ever been seen before says nothing
    often = [text for text, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_CATEGORIES]]
    return Column(name, tuple(often), partly_missing=partly_missing) if len(counts) > 1 or partly_missing else None


def _numeric(name: str, numbers: list[float], partly_missing: bool) -> Column | None:
    logarithmic = min(numbers) > 0
    taken = [math.log(number) for number in numbers] if logarithmic else numbers
    low, high = min(taken), max(taken)
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-300):
        return Column(name, (), logarithmic, low, high, low, 1.0, 0.0, True) if partly_missing else None
    array = np.array(taken)
    # Halved, so that ranges within which most values lie and ranges with outliers are treated alike.
    centre, scale = float(np.median(array)), float(max(array.std(), (high - low) / 8))
    if logarithmic:  # costs are powers of sizes, and no large ones, however close together the sizes were
        scale = max(scale, LEAST_SPREAD)
    return Column(name, (), logarithmic, low, high, centre, scale, 0.0, partly_missing)


def _as_number(value: Value | None) -> float | None:
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return None
        value = number if math.isfinite(number) else None
    return None if value is None else min(max(value, -_LARGEST), _LARGEST)


def _text(value: Value | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:g}"
