"""Who runs in the next round of Shockwave's world: the published schedules, the shortest first, and ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prefect_gpu.papers.shockwave.world import RESTART_S, Job
from prefect_gpu.papers.unsuitable import Unsuitable
from prefect_gpu.scheduling.order.finish_time import Stay, ranked


class Replay:
    """Whoever was in this round of a schedule that somebody else made.

    Args:
        rounds: The jobs of each round.
    """

    def __init__(self, rounds: Iterable[Sequence[str]]) -> None:
        self._rounds = iter(rounds)

    def decide(self, jobs: Sequence[Job], now: float, gpus: int) -> list[Job]:
        """Those of the next round that are there; none after the last. Raises Unsuitable if they ask for too much."""
        by_name = {job.name: job for job in jobs}
        found = [by_name[name] for name in next(self._rounds, ()) if name in by_name]
        asked = sum(job.trace.gpus for job in found)
        if asked > gpus:
            raise Unsuitable(
                f"the schedule hands out {asked} GPUs at a time, and there are {gpus}: replay it on a cluster as large "
                "as the one that it was made for."
            )
        return found


class ShortestFirst:
    """Shortest remaining time first, at the present speed."""

    def decide(self, jobs: Sequence[Job], now: float, gpus: int) -> list[Job]:
        """As many as fit."""
        return _fitting(sorted(jobs, key=lambda job: job.left_s), gpus)


class LongestFirst:
    """Longest remaining time first, at the present speed: the last job ends early, and nobody else does."""

    def decide(self, jobs: Sequence[Job], now: float, gpus: int) -> list[Job]:
        """As many as fit."""
        return _fitting(sorted(jobs, key=lambda job: -job.left_s), gpus)


class Fair:
    """By :func:`~prefect_gpu.scheduling.order.finish_time.ranked`.

    It knows how many steps a job has to do and how fast it does them now, and learns nothing of batch sizes to come. A
    job's part of the cluster is one of as many as have been submitted by now.
    """

    def __init__(self) -> None:
        self._submitted: set[str] = set()

    def decide(self, jobs: Sequence[Job], now: float, gpus: int) -> list[Job]:
        """As many as fit, in that order."""
        self._submitted.update(job.name for job in jobs)
        part = min(1.0, gpus / max(1, len(self._submitted)))
        by_name = {job.name: job for job in jobs}
        stays = [
            Stay(
                job.name,
                job.trace.gpus,
                now - job.trace.submit_s,
                job.served_s,
                job.left_s + (0.0 if job.running else RESTART_S),
                part,
            )
            for job in jobs
        ]
        return _fitting([by_name[stay.id] for stay in ranked(stays, gpus)], gpus)


def _fitting(jobs: Iterable[Job], gpus: int) -> list[Job]:
    """In this order, whoever finds enough GPUs."""
    found = []
    for job in jobs:
        if job.trace.gpus <= gpus:
            gpus -= job.trace.gpus
            found.append(job)
    return found
