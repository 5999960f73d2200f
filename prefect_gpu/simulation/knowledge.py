"""What a simulated scheduler is told of the durations of jobs: the truth, what was learned so far, or nothing."""

from __future__ import annotations

import abc
import math
import random
from collections.abc import Callable

from prefect_gpu.estimation.online.durations import OnlineDurations, Submission

_Kind = tuple[str, int, "int | None"]


class Knowledge(abc.ABC):
    """Follows the jobs of one simulation, in the order in which things happen there."""

    @abc.abstractmethod
    def submitted(self, job_id: str, job: Submission, service_s: float) -> float | None:
        """A job is submitted.

        Args:
            job_id: Its name.
            job: What its submitter knows.
            service_s: What only the future knows: the seconds that it will train for.

        Returns:
            The seconds of service that the scheduler is told; None for nothing.
        """

    def finished(self, job_id: str, service_s: float) -> list[tuple[str, float]]:
        """A job has ended after so many seconds of service.

        Returns:
            Other jobs, not yet ended, of which something else is told from now on: (name, seconds of service).
        """
        return []


class Exact(Knowledge):
    """The truth, or with an error the truth times a random factor whose median is 1.

    Args:
        error: Standard deviation of the factor's logarithm: with 0.3, two estimates in three are within 35 %.
        seed: Makes the errors the same in every simulation; they do not depend on the order of the jobs.

    Raises:
        ValueError: The error is negative or not finite.
    """

    def __init__(self, error: float = 0.0, seed: int = 0) -> None:
        if not 0 <= error < math.inf:
            raise ValueError(f"error={error!r} is negative or not finite: give 0 for the truth, or a size such as 0.3.")
        self._error, self._seed = error, seed

    def submitted(self, job_id: str, job: Submission, service_s: float) -> float | None:
        """See the class."""
        if not self._error:
            return service_s
        return service_s * math.exp(random.Random(f"{self._seed} {job_id}").gauss(0.0, self._error))


class Nothing(Knowledge):
    """Durations are unknown."""

    def submitted(self, job_id: str, job: Submission, service_s: float) -> float | None:
        """See the class."""
        return None


class Learned(Knowledge):
    """Estimates from the jobs that have ended before, made when a job is submitted.

    What is known of a kind of job (model, GPUs, batch size) changes most when one of the kind ends; then the estimates
    of others of that kind are renewed, those first whose last estimate is the oldest.

    Args:
        most: Estimates to renew at most when a job ends; it bounds the time of a decision.
    """

    def __init__(self, most: int = 32) -> None:
        self._most = most
        self._durations = OnlineDurations()
        self._jobs: dict[str, Submission] = {}  # not yet ended
        self._of_kind: dict[_Kind, dict[str, None]] = {}  # the oldest estimate first

    def submitted(self, job_id: str, job: Submission, service_s: float) -> float | None:
        """See the class; the true service is not looked at."""
        self._jobs[job_id] = job
        of_kind = self._of_kind.setdefault(_kind(job), {})
        of_kind.pop(job_id, None)
        of_kind[job_id] = None
        return self._durations.estimate(job).duration_s

    def finished(self, job_id: str, service_s: float) -> list[tuple[str, float]]:
        """See the class."""
        job = self._jobs.pop(job_id, None)
        if job is None:
            return []
        self._durations.finished(job, service_s)
        kind = _kind(job)
        of_kind = self._of_kind[kind]
        del of_kind[job_id]
        if not of_kind:
            del self._of_kind[kind]
        renewed = []
        for name in [name for name, _ in zip(of_kind, range(self._most), strict=False)]:
            del of_kind[name]
            of_kind[name] = None
            renewed.append((name, self._durations.estimate(self._jobs[name]).duration_s))
        return renewed


def _kind(job: Submission) -> _Kind:
    return job.model, job.gpus, job.batch_size


KNOWLEDGE: dict[str, Callable[[], Knowledge]] = {"exact": Exact, "learned": Learned, "none": Nothing}
