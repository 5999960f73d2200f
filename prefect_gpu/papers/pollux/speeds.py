"""What ours knows of the jobs of Pollux' world: all tables, or what was measured while jobs trained."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from prefect_gpu.estimation.goodput.noise import Noise, gain
from prefect_gpu.estimation.goodput.step_time import StepTime
from prefect_gpu.papers.pollux.tables import Application, Batch, Candidates, Placement, packed
from prefect_gpu.papers.pollux.world import Job

_FIXED = {"ncf": 32_768}
"""The one batch size of models that always run on one GPU."""
_FIRST_S = 600.0  # a job of a model that nobody has seen run is taken for that short, on one GPU


@dataclass(frozen=True)
class Course:
    """How a model gets on upon one placement.

    Attributes:
        goodput: Progress per second, by epoch.
        batches: The batch that gives it, by epoch.
        after_s: Seconds from the end of each epoch to the end of the job.
    """

    goodput: np.ndarray
    batches: tuple[Batch, ...]
    after_s: np.ndarray

    @classmethod
    def of(cls, application: Application, goodput: np.ndarray, batches: tuple[Batch, ...]) -> Course:
        """From the goodput in each epoch."""
        ends = np.array([0.0, *application.ends[: application.epochs]])
        with np.errstate(divide="ignore"):
            epochs_s = np.diff(ends) / goodput
        return cls(goodput, batches, np.append(np.cumsum(epochs_s[:0:-1])[::-1], 0.0))

    def left_s(self, job: Job) -> float:
        """Seconds until the job has ended."""
        goodput = float(self.goodput[job.epoch])
        if goodput <= 0:
            return math.inf
        return (job.application.ends[job.epoch] - job.progress) / goodput + float(self.after_s[job.epoch])


def gpus_of(application: Application, most: int, per_node: int) -> list[int]:
    """On how many GPUs a job may run: up to a node, then whole nodes."""
    if application.name in _FIXED:
        return [1]
    counts = [*range(1, per_node), *range(per_node, most + 1, per_node)]
    return [count for count in counts if count <= application.most_gpus]


class TrueSpeeds:
    """All tables are known, and so is what later epochs will bring."""

    def __init__(self) -> None:
        self._courses: dict[tuple[str, Placement], Course] = {}

    def course(self, application: Application, placement: Placement) -> Course:
        """How the model gets on there."""
        key = (application.name, placement)
        if key not in self._courses:
            if application.name in _FIXED:
                batch = application.fixed(_FIXED[application.name], sum(placement))
                each = [application.goodput(placement, batch, epoch) for epoch in range(application.epochs)]
                self._courses[key] = Course.of(application, np.array(each), (batch,) * application.epochs)
            else:
                best = application.best(placement)
                self._courses[key] = Course.of(application, best.goodput, best.batches)
        return self._courses[key]

    def speeds(self, job: Job, most: int, per_node: int) -> dict[int, float]:
        """What part of what is left of the job it gets done per second, by GPUs."""
        counts = gpus_of(job.application, most, per_node)
        return {n: 1 / self.course(job.application, packed(n, per_node)).left_s(job) for n in counts}

    def batch(self, job: Job, placement: Placement) -> Batch:
        """The best one."""
        return self.course(job.application, placement).batches[job.epoch]

    def trained(self, job: Job) -> None:
        """Nothing is left to learn."""


@dataclass
class _Learned:
    noise: Noise
    steps: StepTime = field(default_factory=StepTime)
    courses: dict[tuple[int, int], tuple[tuple[int, int], Course]] = field(default_factory=dict)

    @property
    def version(self) -> tuple[int, int]:
        return self.noise.version, self.steps.version


class LearnedSpeeds:
    """Declared epochs, and what jobs of the same model have measured so far: step times, and the gradient's noise."""

    def __init__(self) -> None:
        self._models: dict[str, _Learned] = {}

    def speeds(self, job: Job, most: int, per_node: int) -> dict[int, float]:
        """What part of what is left of the job it gets done per second, by GPUs."""
        learned = self._of(job)
        if not learned.steps.known:
            return {1: 1 / _FIRST_S}
        counts = gpus_of(job.application, most, per_node)
        return {n: 1 / self._course(job, packed(n, per_node)).left_s(job) for n in counts}

    def batch(self, job: Job, placement: Placement) -> Batch:
        """The one that is expected to be the best."""
        application, gpus = job.application, sum(placement)
        if application.name in _FIXED:
            return application.fixed(_FIXED[application.name], gpus)
        if not self._of(job).steps.known:
            return application.fixed(max(application.initial, application.least_local * gpus), gpus)
        return self._course(job, placement).batches[job.epoch]

    def trained(self, job: Job) -> None:
        """Step time and noise are measured as the job trains."""
        learned, batch = self._of(job), job.batch
        step_s, sync_s = job.application.step_s(job.placement, batch.atomic)
        learned.steps.report(len(job.placement), sum(job.placement), batch.atomic, step_s, sync_s)
        learned.noise.report(job.epoch, *job.application.noise(batch.total(sum(job.placement)), job.epoch))

    def _of(self, job: Job) -> _Learned:
        name = job.application.name
        if name not in self._models:
            self._models[name] = _Learned(Noise(job.application.epochs))
        return self._models[name]

    @staticmethod
    def _candidates(application: Application, gpus: int) -> Candidates:
        fixed = _FIXED.get(application.name)
        if fixed is None:
            return application.candidates(gpus)
        batch = application.fixed(fixed, gpus)
        scale = np.array([batch.total(gpus) / application.initial])
        return Candidates((batch,), np.array([float(batch.atomic)]), np.array([batch.accumulation]), scale)

    def _course(self, job: Job, placement: Placement) -> Course:
        """What is expected of a placement; only the numbers of nodes and GPUs count."""
        learned, application = self._of(job), job.application
        nodes, gpus = len(placement), sum(placement)
        version, course = learned.courses.get((nodes, gpus), (None, None))
        if course is None or version != learned.version:
            of = self._candidates(application, gpus)
            step_s, compute_s = learned.steps.predict(nodes, gpus, of.atomic)
            noise = learned.noise.by_epoch()[:, None]
            best = of.best(gain(np.ones(1), noise, of.scale) / (step_s + compute_s * of.accumulation))
            course = Course.of(application, best.goodput, best.batches)
            learned.courses[nodes, gpus] = learned.version, course
        return course
