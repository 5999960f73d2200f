"""What a run will need, learned from the runs that have finished (Liquid §4 and §6.1).

Each program has a model of its own (``program/model.py``) once some of its runs have finished; of programs that are
new, a model across all programs says what it can (``program/cross_program.py``). How wide the intervals must be is
measured on runs that were left out (``program/calibration.py``).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import numpy as np

from prefect_gpu.estimation.program.calibration import Calibration, reach
from prefect_gpu.estimation.program.cross_program import CrossProgramModel
from prefect_gpu.estimation.program.features import flatten, plain_name
from prefect_gpu.estimation.program.gaussian_process import LEAST_RUNS, MOST_RUNS
from prefect_gpu.estimation.program.kinds import KindRatios, Shift
from prefect_gpu.estimation.program.memory import as_needed, least_memory, submission_key
from prefect_gpu.estimation.program.model import Prediction, ProgramModel
from prefect_gpu.estimation.program.shared_slopes import shared_slopes
from prefect_gpu.estimation.runs import (
    MEMORY_BYTES,
    NOTHING_KNOWN,
    STEP_S,
    TARGETS,
    TRAINING_S,
    FinishedRun,
    Interval,
    Known,
    RunEstimate,
)
from prefect_gpu.estimation.scales import from_scale, is_logarithmic, to_scale
from prefect_gpu.estimation.throughput.scaling_curve import throughput_of
from prefect_gpu.units import plural

_SELF_RELIANT = 60  # runs from which on a program needs nothing that was learned from others
_WIDEST = math.log(100.0)  # of logarithms: far from all that was seen, no model knows how much it does not know
_ODD_WIDENS = 0.5  # each odd thing about a submission makes its intervals wider by this part
_MOST_SAID = 10  # of what is odd about a run's parameters
_SPREAD_BEFORE = {True: 1.0, False: 0.2}  # of logarithms, of fractions, before programs have shown how far they spread


class Estimator:
    """Learned once, and then only asked: it never changes, so that any thread may ask it.

    Args:
        runs: The finished runs of a history, in any order. The same runs give the same estimator.
        coverage: How often intervals are to hold, 0 to 1.
        seed: For the models that draw random numbers.
        before: An estimator that was learned earlier: of programs that have no new runs, its models are taken over.

    Attributes:
        calibration: How far the intervals must reach, by target, measured on runs that were left out.
        kinds: How much faster programs are on one kind of device than on another.

    Raises:
        ValueError: The coverage is not between 0 and 1.

    Example:
        >>> estimator = Estimator(finished_runs)  # doctest: +SKIP
        >>> estimator.estimate(Known("train", {"lr": 0.1})).targets["training_s"].high  # doctest: +SKIP
    """

    def __init__(
        self,
        runs: Sequence[FinishedRun] = (),
        *,
        coverage: float = 0.9,
        seed: int = 0,
        before: Estimator | None = None,
    ) -> None:
        if not 0 < coverage < 1:
            raise ValueError(f"coverage={coverage!r} is not between 0 and 1: give how often intervals are to hold.")
        self.coverage = coverage
        grouped: dict[str, list[FinishedRun]] = defaultdict(list)
        for run in sorted(runs, key=lambda run: (run.ended_at, run.run_id)):
            grouped[run.known.program].append(run)
        self._least = {name: least_memory(of_program) for name, of_program in grouped.items()}
        telling = {
            name: [as_needed(run) for run in of_program if run.measured and (run.completed or run.out_of_memory)]
            for name, of_program in sorted(grouped.items())
        }
        telling = {name: of_program[-MOST_RUNS:] for name, of_program in telling.items() if of_program}
        usual = usual_spreads(list(telling.values()))
        slopes = shared_slopes(list(telling.values()))
        self.programs: dict[str, ProgramModel] = {
            name: self._model(name, of_program, usual, slopes, before) for name, of_program in telling.items()
        }
        self.learned_from = sum(len(of_program) for of_program in telling.values())
        self.calibration = Calibration(self.programs, usual, coverage)
        self.cross_program = CrossProgramModel(self.programs, seed)
        self.kinds = KindRatios(self.programs)

    @staticmethod
    def _model(
        name: str,
        runs: list[FinishedRun],
        usual: dict[str, float],
        slopes: dict[str, dict[str, float]],
        before: Estimator | None,
    ) -> ProgramModel:
        if len(runs) < _SELF_RELIANT:
            return ProgramModel(runs, usual, slopes)
        known = before.programs.get(name) if before is not None else None
        return known if known is not None and known.runs == tuple(runs) else ProgramModel(runs, usual)

    def estimate(self, known: Known) -> RunEstimate:
        """What a run will need. Nothing that a user passes makes this fail; what is odd is said in the warnings."""
        model = self.programs.get(known.program)
        if model is None or not model.models:
            return self._of_unseen(known)
        unseen, shift = self._unseen_kind(known)
        row, facts, odd = model.row(replace(known, device_kind=shift[0]) if shift else known)
        warnings = _few(odd)
        if unseen and not shift:
            warnings.append(f"no run was on {known.device_kind}, and no other flow tells how fast that is")
        few = model.completed < LEAST_RUNS
        reaches = self.calibration.few if few else self.calibration.known
        widened = 1.0 + _ODD_WIDENS * len(warnings)
        predicted = model.predict(row, facts)
        if shift:
            predicted = {target: _shifted(target, one, shift[1]) for target, one in predicted.items()}
        found = {target: _interval(target, one, reaches[target] * widened) for target, one in predicted.items()}
        least = self._least[known.program].get(submission_key(flatten(known)[0]))
        if least is not None:
            found[MEMORY_BYTES] = _at_least(found.get(MEMORY_BYTES), least)
            warnings.append(f"a run like it ran out of memory: it is given at least {least / 2**30:.2f} GiB")
        if model.change is not None and model.change.is_large:
            warnings.append(
                f"the program seems to have changed: since {_moment(model.change.at)} its "
                f"{plain_name(model.change.target)} is {model.change.factor:.2g} times what it was before"
            )
        basis = f"{plural(model.completed, 'finished run')} of {known.program}"
        if shift:
            basis += f" on {shift[0]}, and what other flows gain or lose on {known.device_kind}"
        out = least is not None
        return RunEstimate(found, model.completed, basis, self.coverage, tuple(warnings), model.pace, out)

    def _unseen_kind(self, known: Known) -> tuple[bool, tuple[str, Shift] | None]:
        """(Whether its program was seen on other kinds of devices only, what the kind changes if that is known)."""
        seen = self.kinds.seen(known.program)
        if not known.device_kind or not seen or known.device_kind in seen:
            return False, None
        return True, self.kinds.shift(known.program, known.device_kind)

    def by_kind(self, known: Known, kinds: Sequence[str]) -> dict[str, Interval]:
        """Seconds that a run trains for on each kind of device of which runs tell something; empty below two kinds.

        Where the number of its steps is unknown, they are the seconds of one step.
        """
        told = [kind for kind in kinds if self._tells(known.program, kind)]
        if len(told) < 2:
            return {}
        found = {kind: self.estimate(replace(known, device_kind=kind)).targets for kind in told}
        for target in (TRAINING_S, STEP_S):
            if all(target in targets for targets in found.values()):
                return {kind: targets[target] for kind, targets in found.items()}
        return {}

    def _tells(self, program: str, kind: str) -> bool:
        return kind in self.kinds.seen(program) or self.kinds.shift(program, kind) is not None

    def throughput(self, known: Known, max_gpus: int, *, apart: bool = False) -> tuple[float, ...]:
        """Steps per second on 1, 2, … GPUs (F-scheduling's f_M); empty if no run of the program has told.

        Args:
            apart: On several nodes, and not on one.
        """
        model = self.programs.get(known.program)
        return () if model is None else throughput_of(model, known, max_gpus, apart=apart)

    def _of_unseen(self, known: Known) -> RunEstimate:
        facts, odd = flatten(known)
        warnings = _few(odd)
        predicted = self.cross_program.predict(facts)
        if not predicted:
            return replace(NOTHING_KNOWN, coverage=self.coverage, warnings=tuple(warnings))
        widened = 1.0 + _ODD_WIDENS * len(warnings)
        found = {}
        for target, mean in predicted.items():
            errors = self.cross_program.left_out.get(target)
            if errors is not None:
                width = reach(errors, self.coverage, 4 * _SPREAD_BEFORE[is_logarithmic(target)])
                found[target] = _interval(target, Prediction(mean, width), widened)
        basis = f"runs of {len(self.programs)} other programs; none of {known.program} has finished yet"
        return RunEstimate(found, 0, basis, self.coverage, tuple(warnings))


def _few(warnings: list[str]) -> list[str]:
    """The first of them: each is a line in the log of the run, which may have thousands of odd parameters."""
    more = len(warnings) - _MOST_SAID
    return warnings if more <= 1 else [*warnings[:_MOST_SAID], f"and {more} more of its parameters are odd"]


def usual_spreads(programs: Sequence[Sequence[FinishedRun]]) -> dict[str, float]:
    """How far apart the runs of one program usually are, by target, on the learned scales: the median of programs."""
    found = {}
    for target in TARGETS:
        spreads = []
        for runs in programs:
            values = [to_scale(target, run.measured[target]) for run in runs if target in run.measured]
            if len(values) >= LEAST_RUNS:
                spreads.append(float(np.std(values)))
        found[target] = max(0.05, float(np.median(spreads))) if spreads else _SPREAD_BEFORE[is_logarithmic(target)]
    return found


def _interval(target: str, predicted: Prediction, reach: float) -> Interval:
    away = reach * predicted.std
    if is_logarithmic(target):
        away = min(away, _WIDEST)
    return Interval(*(predicted.base + from_scale(target, predicted.mean + side * away) for side in (0, -1, 1)))


def _shifted(target: str, one: Prediction, shift: Shift) -> Prediction:
    """The same on another kind of device, which changes how long steps take and nothing else."""
    if target not in (STEP_S, TRAINING_S):
        return one
    std = math.sqrt(one.std**2 + shift.std**2)
    return Prediction(one.mean + shift.mean, std, one.base * math.exp(shift.mean))


def _moment(at: float) -> str:
    try:
        return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):  # a run may say that it ended in the year 300000
        return f"{at:g}"


def _at_least(interval: Interval | None, least: float) -> Interval:
    if interval is None:
        return Interval(least, least, least * 1.5)
    return Interval(max(interval.median, least), interval.low, max(interval.high, least))
