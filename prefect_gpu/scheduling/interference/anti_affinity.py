"""Jobs that were parted because they slowed each other down: they do not meet again while there is another way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect_gpu.scheduling.interference.spreading import MOST_NODES, fits_evenly

if TYPE_CHECKING:
    from prefect_gpu.scheduling.model.jobs import Job
    from prefect_gpu.scheduling.state.state import State


class AntiAffinity:
    """Remembers who was stopped because of whom, until one of the two is over.

    That two *programs* slow each other down is the business of the table, which may find a meeting worth its price.
    These two jobs have met already, and one of them has been stopped for it: to bring them together again would cost
    another stop.
    """

    def __init__(self) -> None:
        self._from: dict[str, set[str]] = {}

    def part(self, one: str, other: str) -> None:
        """Keep two jobs apart from now on."""
        self._from.setdefault(one, set()).add(other)
        self._from.setdefault(other, set()).add(one)

    def forget(self, job: str) -> None:
        """The job is over."""
        for other in self._from.pop(job, ()):
            others = self._from[other]
            others.discard(job)
            if not others:
                del self._from[other]

    def others(self, job: Job, state: State) -> list[Job]:
        """The running jobs that a job is kept apart from, in order of their names."""
        return [state.running[name] for name in sorted(self._from.get(job.id, ())) if name in state.running]

    def avoided(self, job: Job, state: State) -> frozenset[int]:
        """Numbers of the nodes that a job is not to be started on now.

        Those of the jobs that it is kept apart from: it waits for room on others. There are none if the job could not
        be on other nodes even if all their devices were free.
        """
        others = self.others(job, state)
        if not others:
            return frozenset()
        taken = frozenset(
            state.number_of(device)
            for other in others
            for device in (other.placement.all_devices if other.placement else ())
            if state.has_node(device)
        )
        return taken if fits_evenly(job, state, range(1, MOST_NODES + 1), without=taken) else frozenset()
