"""How long a job will train, learned from the jobs that have finished.

Only what a submitter knows is used: the model, the batch size, the GPUs and, where given, the iterations. Two ways are
followed side by side, and the one that has predicted more narrowly is taken: a job's iterations times the seconds per
iteration of jobs like it, or the durations of jobs like it. Both are averaged as logarithms, so that an estimate is a
median: half of such jobs take longer. (While few jobs have finished, those are the short ones, so that durations are
underestimated at first; seconds per iteration are not.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from prefect_gpu.estimation.online.grouped_means import MOST_GROUPS, GroupedMeans, Prediction

SHORTEST, LONGEST = math.log(1e-3), math.log(1e10)  # logarithms of the seconds that every estimate stays between
NINE_IN_TEN = 1.2816  # standard deviations below which nine tenths of a normal distribution lie
UNLEARNED = math.log(100.0)  # how far off the guess before the first job may be
# Variances of logarithms that are assumed until jobs have shown better: like jobs' iterations take within ±40 % of each
# other, their whole durations within a factor of three.
PRIOR_RATES, PRIOR_DURATIONS = 0.1, 1.0
# Whatever a job does beside its iterations takes some seconds, which blur the rate of one with few iterations: this
# many tell half as much about the rate as very many, a tenth of them a hundredth. (The weight must not depend on how
# long the job took: where iterations say little about durations, long jobs would count most, and bias all estimates.)
SETTLED = math.log(300.0)

_Place = tuple[str, int, "int | None"]


class Submission(Protocol):
    """What is known of a job when it is submitted; a ``TraceJob`` is one."""

    @property
    def model(self) -> str:
        """What it trains; empty if unknown."""

    @property
    def gpus(self) -> int:
        """GPUs that it asks for."""

    @property
    def batch_size(self) -> int | None:
        """Samples per iteration; None: unknown."""

    @property
    def iterations(self) -> int | None:
        """Iterations until it is done, at least 0; None or 0: unknown."""


@dataclass(frozen=True, slots=True)
class DurationEstimate:
    """How long a job is expected to train on the GPUs that it asks for.

    Attributes:
        duration_s: Median of what is expected; positive and finite.
        low_s: One such job in ten takes less.
        high_s: One such job in ten takes more.
        from_jobs: Finished jobs of the narrowest group that says anything about it; 0: a guess.
        basis: What was learned from, for people.
    """

    duration_s: float
    low_s: float
    high_s: float
    from_jobs: int
    basis: str


class OnlineDurations:
    """Learns from every job that finishes, and estimates those that have not.

    Jobs of the same model, GPUs and batch size count most; where few of them have finished, those of the same model and
    GPUs, of the same model, and all jobs stand in for them (see :mod:`prefect_gpu.estimation.online.grouped_means`).

    Args:
        prior_s: Estimate before anything has finished, in seconds.
        prior_iteration_s: The same for one iteration of a job that gives its iterations.

    Example:
        >>> learned = OnlineDurations()
        >>> learned.finished(job, 190.0)  # doctest: +SKIP
        >>> learned.estimate(other).duration_s  # doctest: +SKIP
    """

    def __init__(self, prior_s: float = 3600.0, prior_iteration_s: float = 0.3) -> None:
        for name, value in (("prior_s", prior_s), ("prior_iteration_s", prior_iteration_s)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name}={value!r} is not positive and finite: give seconds.")
        self._prior_s, self._prior_iteration_s = prior_s, prior_iteration_s
        self._rates = GroupedMeans(3, PRIOR_RATES)
        self._durations = GroupedMeans(3, PRIOR_DURATIONS)
        self._known: dict[tuple[_Place, bool], _Outlook] = {}  # until the next job finishes

    def finished(self, job: Submission, duration_s: float) -> None:
        """Learn from a job that trained to its end on the GPUs that it asked for.

        Args:
            job: As it was submitted.
            duration_s: Seconds that it trained for; time in queues does not belong in it.

        Raises:
            ValueError: The duration is negative or not finite.
        """
        if not 0 <= duration_s < math.inf:
            raise ValueError(f"duration_s={duration_s!r} is negative or not finite: give the seconds that it took.")
        place = (job.model, job.gpus, job.batch_size)
        duration = min(max(math.log(duration_s), SHORTEST), LONGEST) if duration_s else SHORTEST
        self._durations.add(place, duration)
        if job.iterations:
            iterations = math.log(job.iterations)
            self._rates.add(place, duration - iterations, 1 / (1 + math.exp(2 * (SETTLED - iterations))))
        self._known.clear()

    def estimate(self, job: Submission) -> DurationEstimate:
        """How long a job will train. Takes a few microseconds, fewer for a job like one asked for just before."""
        place = (job.model, job.gpus, job.batch_size)
        counted = bool(job.iterations)
        outlook = self._known.get((place, counted))
        if outlook is None:
            if len(self._known) >= MOST_GROUPS:
                self._known.clear()
            outlook = self._known[place, counted] = self._outlook(place, counted)
        median = outlook.median + math.log(job.iterations) if job.iterations and outlook.rated else outlook.median
        low_s, duration_s, high_s = (
            math.exp(min(max(value, SHORTEST), LONGEST))
            for value in (median - outlook.spread, median, median + outlook.spread)
        )
        return DurationEstimate(duration_s, low_s, high_s, outlook.members, outlook.basis)

    def _outlook(self, place: _Place, counted: bool) -> _Outlook:
        """The narrower of the two predictions, for jobs whose iterations are counted or not."""
        whole = self._durations.predict(place)
        if whole is None:
            prior_s = self._prior_iteration_s if counted else self._prior_s
            return _Outlook(counted, math.log(prior_s), UNLEARNED, 0, "no job has finished yet")
        rate = self._rates.predict(place) if counted else None
        rated = rate is not None and rate.variance <= whole.variance
        chosen = rate if rate is not None and rated else whole
        basis = f"{'seconds per iteration' if rated else 'durations'} of {_jobs(place, chosen)}"
        return _Outlook(rated, chosen.mean, NINE_IN_TEN * math.sqrt(chosen.variance), chosen.members, basis)


class _Outlook(NamedTuple):
    """What to expect of one kind of job: logarithms of the median, and of the factor within which eight in ten lie."""

    rated: bool  # whether the median is that of one iteration
    median: float
    spread: float
    members: int
    basis: str


def _jobs(place: _Place, prediction: Prediction) -> str:
    """Which jobs a prediction is made from."""
    model, gpus, batch_size = place
    parts = [f"model {model}" if model else "an unnamed model", f"{gpus} GPUs"]
    if batch_size is not None:
        parts.append(f"batch size {batch_size}")
    like = ", ".join(parts[: prediction.depth]) or "any kind"
    return f"{prediction.members} finished job{'s' if prediction.members > 1 else ''} of {like}"
