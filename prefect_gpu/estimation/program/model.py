"""What the finished runs of one program say about its next ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from prefect_gpu.estimation.online.pace import learn_pace
from prefect_gpu.estimation.program.change import Change, find_change
from prefect_gpu.estimation.program.declared import Rule, fill, learn_rules
from prefect_gpu.estimation.program.features import Encoder, Value, flatten, plain_name
from prefect_gpu.estimation.program.gaussian_process import MOST_RUNS, MOST_SEARCHED, GaussianProcess
from prefect_gpu.estimation.program.gaussian_process import fit as fit_process
from prefect_gpu.estimation.program.shared_slopes import Slopes, expected
from prefect_gpu.estimation.runs import MEMORY_BYTES, STEP_S, TARGETS, TRAINING_S, FinishedRun, Known
from prefect_gpu.estimation.scales import is_logarithmic, to_scale

STEPS = "@steps"
# Parts of the least that was measured which may be a base: interpreter, libraries, what is needed whatever the sizes.
_BASES = (0.0, 0.5, 0.8)
_LEAST_FOR_BASE = 12  # runs
_MOST_FOR_RULES = 50  # the newest runs: a rule that holds in so many holds


@dataclass(frozen=True)
class Prediction:
    """One target of one run, on the scale that is learned: mean and standard deviation.

    Attributes:
        base: What every run of the program needs beside that, in the target's unit.
    """

    mean: float
    std: float
    base: float = 0.0


class ProgramModel:
    """Learned from the runs of one program. The same runs give the same model.

    Args:
        runs: Finished runs, oldest first.
        usual_spread: By target: how far apart a program's runs usually are, on the learned scale.
        slopes: By target: what sizes do to it in all programs.

    Attributes:
        runs: Those it was learned from: the newest.
        rules: How what runs declare follows from their parameters.
        change: A change of the program that its runs show; None: there is none.
        usable: Of each run, the facts that are known before it starts.
        pace: How its trainings go on after their first steps; None: nobody knows.
    """

    def __init__(
        self,
        runs: Sequence[FinishedRun],
        usual_spread: Mapping[str, float],
        slopes: Mapping[str, Slopes] = MappingProxyType({}),
    ) -> None:
        self._slopes = slopes
        self._base: dict[str, float] = {}
        self.runs = tuple(runs[-MOST_RUNS:])
        facts = [flatten(run.known)[0] for run in self.runs]
        self.rules: dict[str, Rule] = learn_rules(facts[-_MOST_FOR_RULES:])
        self.usable = [self._learnable(run) for run in facts]
        self.encoder = Encoder(self.usable)
        self._x = self.encoder.matrix(self.usable)
        self._groups = self.encoder.groups
        self.pace = learn_pace(self.runs)
        self.models = self._fit(usual_spread)
        self.change = self._find_change()
        if self.change is not None:
            since = np.array([float(at >= self.change.first) for at in range(len(self.runs))])
            self._x = np.column_stack([self._x, since])
            self._groups = np.append(self._groups, len(self.encoder.columns))
            self.models = self._fit(usual_spread)
            self.change = replace(self.change, factor=self._changed_by(self.change.target))

    @property
    def completed(self) -> int:
        """Completed runs it was learned from."""
        return sum(run.completed for run in self.runs)

    def base(self, target: str) -> float:
        """What every run needs of a target beside what is learned on its scale, in the target's unit."""
        return self._base.get(target, 0.0)

    def rows(self, target: str) -> list[int]:
        """Which of the runs tell something about a target."""
        return [at for at, run in enumerate(self.runs) if target in run.measured]

    def values(self, target: str) -> np.ndarray:
        """What those runs measured, on the learned scale."""
        return np.array([self.measured(target, at) for at in self.rows(target)])

    def measured(self, target: str, at: int) -> float:
        """What the run with this index measured, on the learned scale."""
        return to_scale(target, self.runs[at].measured[target])

    def table(
        self, target: str, rows: Sequence[int] | None = None, base: float | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(Rows of numbers, what was measured, the column of each number) of the runs that tell about a target.

        Args:
            rows: Only these of its runs.
            base: What is taken off before the scale is applied; by default what was found best.
        """
        rows = self.rows(target) if rows is None else rows
        base = self._base.get(target, 0.0) if base is None else base
        measured = (self.runs[at].measured[target] - base for at in rows)
        common = (self._common(self.usable[at], target, base) for at in rows)
        y = [to_scale(target, value) - usual for value, usual in zip(measured, common, strict=True)]
        return self._x[list(rows)], np.array(y), self._groups

    def _common(self, facts: Mapping[str, Value], target: str, base: float) -> float:
        """What the slopes of all programs make of a run; they are those of costs without a base."""
        return 0.0 if base else expected(facts, self._slopes.get(target, {}))

    def _learnable(self, run: Mapping[str, Value]) -> dict[str, Value]:
        """What of a run's facts is known before it starts: its parameters, and what follows from them."""
        return {name: value for name, value in fill(run, self.rules).items() if name[0] != "@" or self._adds(name)}

    def _adds(self, name: str) -> bool:
        """Whether a declared value says more than the parameters that it follows from do one by one."""
        rule = self.rules.get(name)
        return rule is not None and len(rule.over) + len(rule.under) > 1

    def _targets(self) -> list[str]:
        # Training is steps times seconds per step where the steps are known beforehand.
        derived = TRAINING_S if STEPS in self.rules and self.rows(STEP_S) else None
        return [target for target in TARGETS if target != derived and self.rows(target)]

    def _fit(self, usual_spread: Mapping[str, float]) -> dict[str, GaussianProcess]:
        models = {}
        for target in self._targets():
            self._base[target], models[target] = self.fit(target, self.rows(target), usual_spread.get(target, 1.0))
        return models

    def fit(self, target: str, rows: Sequence[int], usual_spread: float = 1.0) -> tuple[float, GaussianProcess]:
        """(The base under which each run is predicted best from the others, the model) for a target and some runs."""
        newest = rows[-MOST_SEARCHED:]
        least = min(self.runs[at].measured[target] for at in rows)
        tried = _BASES if is_logarithmic(target) and len(newest) >= _LEAST_FOR_BASE and least > 0 else (0.0,)
        found: list[tuple[float, float]] = []
        for part in tried if len(tried) > 1 else ():
            model = fit_process(*self.table(target, newest, part * least), usual_spread=usual_spread)
            # On different scales densities are compared in the target's own unit.
            logs = sum(to_scale(target, self.runs[at].measured[target] - part * least) for at in newest)
            found.append((model.left_out_density() - logs, -part))
        base = -max(found, default=(0.0, 0.0))[1] * least
        return base, fit_process(*self.table(target, rows, base), usual_spread=usual_spread)

    def _find_change(self) -> Change | None:
        for target in (STEP_S, TRAINING_S, MEMORY_BYTES):
            if target in self.models:
                rows, model = self.rows(target), self.models[target]
                found = find_change(model.left_out, [self.runs[at].ended_at for at in rows], target)
                if found is not None:
                    return Change(rows[found.first], found.at, found.factor, target)
        return None

    def _changed_by(self, target: str) -> float:
        """By which factor the runs before a change would have had more of a target after it: the median of them."""
        before, after = self._x.copy(), self._x.copy()
        before[:, -1], after[:, -1] = 0.0, 1.0
        base, logs = self._base[target], [self.models[target].predict(x)[0] for x in (before, after)]
        then, now = (base + np.exp(log) for log in logs)
        return float(np.median(now / then))

    def row(self, known: Known) -> tuple[np.ndarray, dict[str, Value], list[str]]:
        """(The numbers, the facts, what is odd about them) of a run that is to be estimated."""
        facts, warnings = flatten(known)
        facts = fill(facts, self.rules)
        usable = {name: value for name, value in facts.items() if name[0] != "@" or self._adds(name)}
        numbers = self.encoder.row(usable, warnings)
        if self.change is not None:
            numbers.append(1.0)
        return np.array(numbers), facts, warnings

    def predict(self, row: np.ndarray, facts: Mapping[str, Value]) -> dict[str, Prediction]:
        """What to expect of a run, by target, on the learned scales."""
        found = {}
        for target, model in self.models.items():
            mean, std = model.predict(row[None, :])
            base = self._base[target]
            found[target] = Prediction(float(mean[0]) + self._common(facts, target, base), float(std[0]), base)
        steps = facts.get(STEPS)
        if STEP_S in found and isinstance(steps, float) and steps > 0:
            of_step = found[STEP_S]
            found[TRAINING_S] = Prediction(of_step.mean + math.log(steps), of_step.std, of_step.base * steps)
        return found

    def neighbours(self, row: np.ndarray, target: str, most: int) -> list[tuple[FinishedRun, float]]:
        """The runs most like one, nearest first, with their distances (1: as different as such runs usually are)."""
        model = self.models[target]
        order, away = model.nearest(row, most)
        rows = self.rows(target)
        return [(self.runs[rows[at]], float(distance)) for at, distance in zip(order, away, strict=True)]

    def relevance(self, target: str) -> list[tuple[str, float]]:
        """(Name, share of 1) of the columns that matter for a target, the most important first."""
        names = [plain_name(column.name) for column in self.encoder.columns]
        names += ["change of the program"] if self.change is not None else []
        shares = self.models[target].relevance(self._groups).tolist() if names else []
        return sorted(zip(names, shares, strict=True), key=lambda item: (-item[1], item[0]))
