"""Why a run is estimated as it is: the runs it was learned from, what matters, and how good that has been."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from prefect_gpu.estimation.accuracy import Score
from prefect_gpu.estimation.program.features import Value, flatten, plain_name
from prefect_gpu.estimation.program.gaussian_process import LEAST_RUNS
from prefect_gpu.estimation.program.model import STEPS, ProgramModel
from prefect_gpu.estimation.runs import MEMORY_BYTES, STEP_S, TRAINING_S, Interval, Known, RunEstimate
from prefect_gpu.estimation.scales import is_logarithmic
from prefect_gpu.estimation.throughput.scaling_curve import Speed, speeds_on

if TYPE_CHECKING:
    from prefect_gpu.estimation.estimator import Estimator

_LEAST_SHARE = 0.005  # of what matters; what is below is noise


@dataclass(frozen=True)
class Neighbour:
    """A finished run that is like the one asked about.

    Attributes:
        run_id: Its name.
        distance: How far away it is; 0: the same in everything that matters.
        differing: By parameter, (its value, the value asked about), what matters most first; None: it had none.
        measured: By target, in the units of the targets.
        out_of_memory: Whether it ran out of memory; its memory is then what it is taken to have needed.
    """

    run_id: str
    distance: float
    differing: Mapping[str, tuple[Value | None, Value | None]]
    measured: Mapping[str, float]
    out_of_memory: bool = False


@dataclass(frozen=True)
class Deduced:
    """A value that runs declare when they start, deduced from the parameters beforehand.

    Attributes:
        name: ``steps``, ``batch_size``, or a feature.
        rule: What it follows from: ``epochs × 100``.
        value: What that makes of the run asked about; None: a parameter for it is missing.
        runs: Finished runs in which it held.
    """

    name: str
    rule: str
    value: Value | None
    runs: int


@dataclass(frozen=True)
class OnKind:
    """What a run would take on one kind of device.

    Attributes:
        seconds: Of its training; of one step, where the number of steps is unknown.
        runs: Finished runs of the program on that kind; 0: it follows from what other programs gain or lose there.
    """

    kind: str
    seconds: Interval
    runs: int


@dataclass(frozen=True)
class Explanation:
    """An estimate and where it comes from.

    Attributes:
        known: What was asked about.
        estimate: What it is expected to need, with the warnings.
        neighbours: The finished runs most like it, nearest first; none of a program that is new.
        matters: By target, the share of 1 of each parameter that matters, the most important first; a target that is
            missing has too few runs. Training time is in it as the time of one step where it is deduced from that.
        deduced: What is known beforehand of the values that runs declare.
        left_out: By target, how well the runs of this program are estimated from its other runs.
        regressors: By target, the regressor that was chosen across programs; only of a program that is new.
        speeds: Its speed on 1, 2, 3 … devices, where runs of the program were elastic or have had different numbers.
        kinds: What it takes on each kind of device of which something is known, if these are several.
    """

    known: Known
    estimate: RunEstimate
    neighbours: tuple[Neighbour, ...] = ()
    matters: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    deduced: tuple[Deduced, ...] = ()
    left_out: Mapping[str, Score] = field(default_factory=dict)
    regressors: Mapping[str, str] = field(default_factory=dict)
    speeds: tuple[Speed, ...] = ()
    kinds: tuple[OnKind, ...] = ()


def explain(estimator: Estimator, known: Known, *, most_neighbours: int = 5, max_gpus: int = 1) -> Explanation:
    """The estimate of a run, and why it is so.

    Args:
        estimator: What was learned.
        known: What is known of the run.
        most_neighbours: Finished runs to name at most.
        max_gpus: Most devices that it could use. If its program was seen on more, those count.

    Example:
        >>> known = Known("train", {"epochs": 20})
        >>> explain(Estimator(finished_runs), known).deduced[0].rule  # doctest: +SKIP
        'epochs × 100'
    """
    estimate = estimator.estimate(known)
    model = estimator.programs.get(known.program)
    if model is None or not model.models:
        return Explanation(known, estimate, regressors=dict(estimator.cross_program.chosen))
    matters = {
        target: {name: share for name, share in model.relevance(target) if share >= _LEAST_SHARE}
        for target in model.models
        if len(model.rows(target)) >= LEAST_RUNS
    }
    return Explanation(
        known,
        estimate,
        _neighbours(model, known, most_neighbours),
        matters,
        _deduced(model, known),
        _left_out(model, estimator.calibration.known),
        speeds=_speeds(model, known, max_gpus),
        kinds=tuple(
            OnKind(kind, seconds, estimator.kinds.seen(known.program)[kind])
            for kind, seconds in estimator.by_kind(known, estimator.kinds.known).items()
        ),
    )


def _neighbours(model: ProgramModel, known: Known, most: int) -> tuple[Neighbour, ...]:
    target = next(
        (name for name in (TRAINING_S, STEP_S, MEMORY_BYTES) if name in model.models), next(iter(model.models))
    )
    row, facts, _ = model.row(known)
    facts_of = {id(run): its for run, its in zip(model.runs, model.usable, strict=True)}
    rank = {name: place for place, (name, _) in enumerate(model.relevance(target))}
    names = sorted(_telling(model, facts), key=lambda name: (rank.get(plain_name(name), len(rank)), name))
    found = []
    for run, distance in model.neighbours(row, target, most):
        its = facts_of[id(run)]
        differing = {
            plain_name(name): (its.get(name), facts.get(name)) for name in names if its.get(name) != facts.get(name)
        }
        found.append(Neighbour(run.run_id, distance, differing, run.measured, run.out_of_memory))
    return tuple(found)


def _speeds(model: ProgramModel, known: Known, max_gpus: int) -> tuple[Speed, ...]:
    counts = {int(run.known.gpus) for run in model.runs if STEP_S in run.measured}
    counts.update(*(run.speeds for run in model.runs))
    most = max(counts, default=0) if len(counts) > 1 else 0
    return speeds_on(model, known, max(most, max_gpus)) if max(most, max_gpus) > 1 else ()


def _telling(model: ProgramModel, facts: Mapping[str, Value]) -> set[str]:
    """What may tell runs apart: all that is learned from, and what never differed before now.

    What runs declare is left out: where it is known beforehand, it follows from the rest.
    """
    learned = {column.name for column in model.encoder.columns}
    never = {name for name in facts if name not in learned and len({run.get(name) for run in model.usable}) == 1}
    return {name for name in learned | never if name[0] != "@"}


def _deduced(model: ProgramModel, known: Known) -> tuple[Deduced, ...]:
    facts = flatten(known)[0]
    return tuple(
        Deduced(plain_name(name), rule.describe(), rule.apply(facts), rule.runs)
        for name, rule in sorted(model.rules.items(), key=lambda item: (item[0] != STEPS, item[0]))
    )


def _left_out(model: ProgramModel, reaches: Mapping[str, float]) -> dict[str, Score]:
    found = {}
    for target, fitted in model.models.items():
        measured = np.array([model.runs[at].measured[target] for at in model.rows(target)])
        if len(measured) < LEAST_RUNS:
            continue  # leaving one of a few out says nothing
        within = np.abs(fitted.left_out) <= reaches[target] * fitted.left_out_std
        # What is left out is measured minus predicted: of logarithms, the logarithm of their ratio.
        error = np.abs(np.expm1(np.clip(-fitted.left_out, -50, 50)))
        if not is_logarithmic(target):
            some = measured > 0
            error = np.abs(fitted.left_out[some]) / measured[some]
        if len(error):
            found[target] = Score(len(measured), float(np.median(error)), float(within.mean()))
    if TRAINING_S not in found and STEP_S in found:
        found[TRAINING_S] = found[STEP_S]  # which it is deduced from
    return found
