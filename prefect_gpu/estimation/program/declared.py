"""What runs will declare of themselves, deduced from their parameters before they have started.

A run says how many steps it has, and how large its batches are, when its process has begun. It is placed before that.
Most often the numbers are parameters, or simple products of them: ``steps = epochs × n_samples ÷ batch_size``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

from prefect_gpu.estimation.program.features import Value, plain_name

_TOLERANCE = 0.02  # rounding up to whole batches, most of all
_EXACT = 1e-6  # a quotient that is rounded up fits exactly, or it is not the reason
_MOST_ROUNDED = math.log(2) / 2  # rounding up to whole batches makes products differ by this at most, either way
_MOST_PARAMETERS = 12  # that products are sought among
_LEAST = 3  # runs with different values before a product is believed


@dataclass(frozen=True)
class Rule:
    """How a declared value follows from parameters: ``factor × product of over ÷ product of under``; or a constant.

    With few batches in an epoch, it matters that the last is not full: ``epochs × ⌈n ÷ batch_size⌉``.

    Attributes:
        constant: The value, if it is always the same.
        factor, over, under: The product otherwise.
        runs: How many runs it held in.
        whole: The factor whose quotient by the divisor is rounded up; empty: none.
    """

    constant: Value | None = None
    factor: float = 1.0
    over: tuple[str, ...] = ()
    under: tuple[str, ...] = ()
    runs: int = 0
    whole: str = ""

    def apply(self, run: Mapping[str, Value]) -> Value | None:
        """The value for a run of these facts; None if a parameter is missing or makes no sense."""
        if self.constant is not None:
            return self.constant
        product = self.factor
        for name in (*self.over, *self.under):
            number = run.get(name)
            if not isinstance(number, float) or number <= 0:
                return None
            product = product * number if name in self.over else product / number
        if self.whole:
            product *= math.exp(_rounding(run, self.whole, self.under))
        return product if 0 < product < math.inf else None

    def describe(self) -> str:
        """The right-hand side for people."""
        if self.constant is not None:
            return f"{self.constant:g}" if isinstance(self.constant, float) else repr(self.constant)
        divided = "".join(f" ÷ {plain_name(name)}" for name in self.under)
        factors = [] if abs(self.factor - 1) <= _TOLERANCE else [f"{self.factor:.4g}"]
        factors += [plain_name(name) for name in self.over if name != self.whole]
        if self.whole:
            return " × ".join([*factors, f"⌈{plain_name(self.whole)}{divided}⌉"])
        return " × ".join(factors) + divided


def learn_rules(runs: Sequence[Mapping[str, Value]]) -> dict[str, Rule]:
    """The rule of each declared value (``@name``) of one program's runs; those that follow none are left out.

    Args:
        runs: The facts of finished runs, from :func:`prefect_gpu.estimation.program.features.flatten`; newest last.
    """
    names = sorted({name for run in runs for name in run if name.startswith("@")})
    return {name: rule for name in names if (rule := _learn(name, [run for run in runs if name in run])) is not None}


def fill(run: Mapping[str, Value], rules: Mapping[str, Rule]) -> dict[str, Value]:
    """A run's facts with what can be deduced added; what it declared itself stays."""
    filled = dict(run)
    for name, rule in rules.items():
        if name not in filled:
            value = rule.apply(run)
            if value is not None:
                filled[name] = value
    return filled


def _learn(name: str, runs: Sequence[Mapping[str, Value]]) -> Rule | None:
    values = [run[name] for run in runs]
    if all(value == values[0] for value in values):
        # Constant so far. If a parameter is too, it is more likely to be the reason than chance.
        equal = [key for key in runs[-1] if key[0] not in "@#" and all(run.get(key) == values[0] for run in runs)]
        if equal and isinstance(values[0], float):
            return Rule(over=(min(equal, key=lambda key: (key.rpartition(".")[2] != name[1:], key)),), runs=len(runs))
        return Rule(constant=values[0], runs=len(runs))
    numbers = [value for value in values if isinstance(value, float) and value > 0]
    if len(numbers) < len(values) or len(set(numbers)) < min(_LEAST, len(runs)) or len(runs) < 2:
        return None
    logs = [math.log(number) for number in numbers]
    given = [{key: value for key, value in run.items() if isinstance(value, float) and value > 0} for run in runs]
    shared = [key for key in sorted(given[-1]) if key[0] not in "@#" and all(key in run for run in given)]
    known = {key: [math.log(run[key]) for run in given] for key in shared[:_MOST_PARAMETERS]}
    varying = [key for key, column in known.items() if max(column) > min(column)]
    best: tuple[float, Rule] | None = None
    for over, under in _products(varying, len(runs)):
        rests = [
            log - sum(known[name][at] for name in over) + sum(known[name][at] for name in under)
            for at, log in enumerate(logs)
        ]
        off = (max(rests) - min(rests)) / 2
        for whole in ("", *over) if under and off <= _MOST_ROUNDED else ("",):
            exact = [rest - _rounding(run, whole, under) for rest, run in zip(rests, given, strict=True)]
            off = (max(exact) - min(exact)) / 2
            if off <= (_EXACT if whole else _TOLERANCE) and (best is None or off < best[0] - 1e-9):
                best = off, Rule(None, math.exp((max(exact) + min(exact)) / 2), over, under, len(runs), whole)
    return None if best is None else best[1]


def _rounding(run: Mapping[str, Value], whole: str, under: Sequence[str]) -> float:
    """What rounding a quotient up adds to its logarithm."""
    over, divisor = (run[whole], run[under[0]]) if whole else (1.0, 1.0)
    quotient = over / divisor if isinstance(over, float) and isinstance(divisor, float) else 0.0
    return math.log(math.ceil(quotient) / quotient) if 1e-9 < quotient < 2**53 else 0.0


def _products(names: Sequence[str], runs: int) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """(Factors, divisors) of the products that so many runs could tell apart, simple ones first."""
    yield from (((one,), ()) for one in names)
    if runs >= _LEAST:
        yield from (((), (one,)) for one in names)
        yield from ((pair, ()) for pair in combinations(names, 2))
        yield from (((one,), (other,)) for one, other in permutations(names, 2))
    if runs > _LEAST:
        yield from ((pair, (one,)) for pair in combinations(names, 2) for one in names if one not in pair)
