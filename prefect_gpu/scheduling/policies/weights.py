"""One owner of the shares of running jobs: several policies may want a job to give way, and none undoes another."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prefect_gpu.scheduling.jobs import Job
    from prefect_gpu.scheduling.verbs import Desk


class Weights:
    """What each policy asks of the weight of each running job; the least of it holds. Shared by a profile's reactions.

    Example:
        >>> from prefect_gpu.scheduling.jobs import Job, Request
        >>> class Said:
        ...     def set_share(self, job, weight, reason):
        ...         print(job.id, weight, reason)
        >>> weights, job = Weights(), Job("a", Request(), "", 0.0, 0.0)
        >>> weights.ask(Said(), job, "separation", 0.0, "it slows b down")
        a 0.0 it slows b down
        >>> weights.ask(Said(), job, "demotion", 0.25, "it has converged")
        >>> weights.ask(Said(), job, "separation", 1.0, "b has ended")
        a 0.25 it has converged
    """

    def __init__(self) -> None:
        self._asked: dict[str, dict[str, tuple[float, str]]] = {}

    def ask(self, desk: Desk, job: Job, source: str, weight: float, reason: str) -> None:
        """Let a running job have this weight at most, as far as ``source`` is concerned.

        Args:
            desk: Where a change is said; it must be able to change shares.
            source: Which policy asks; what it asked of the job before is forgotten.
            weight: 0 to 1; 1 asks for nothing.
            reason: For people.

        Raises:
            ValueError: The weight is out of range.
        """
        if not 0.0 <= weight <= 1.0:
            raise ValueError(f"weight is {weight}: give a share from 0, to pause, to 1, a full one")
        before = self.of(job.id)
        asked = self._asked.setdefault(job.id, {})
        asked.pop(source, None)
        if weight < 1.0:
            asked[source] = (weight, reason)
        if not asked:
            del self._asked[job.id]
        after = self.of(job.id)
        if after != before:
            least = min(asked.values(), key=lambda one: one[0], default=(weight, reason))
            desk.set_share(job, after, least[1])

    def of(self, job_id: str) -> float:
        """The weight that holds for a job now."""
        return min((weight for weight, _ in self._asked.get(job_id, {}).values()), default=1.0)

    def asked_by(self, source: str, job_id: str) -> float:
        """The weight that one policy asks for."""
        return self._asked.get(job_id, {}).get(source, (1.0, ""))[0]

    def forget(self, job_id: str) -> None:
        """The job has ended: nothing is said any more."""
        self._asked.pop(job_id, None)
