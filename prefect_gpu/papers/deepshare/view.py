"""What a policy that starts jobs sees at a decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.interference.sensitivity import Candidate, Key, Running, SensitivityTable, Start
from prefect_gpu.scheduling.interference.spreading import Spreads, by_domain, running_jobs, ways_to_start

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision
    from prefect_gpu.scheduling.model.jobs import Job


@dataclass(frozen=True)
class View:
    """What a policy that starts jobs sees at a decision.

    Attributes:
        candidates: Ways to start the first waiting job of each kind and size, in the order of the queue.
        running: The running jobs.
        free: Devices free on each node, by its number.
        sizes: Devices of each node, by its number.
        table: How much jobs suffer from each other.
        domains: The nodes of each domain, by their numbers in ascending order; no job is on nodes of two.
    """

    candidates: Sequence[Candidate]
    running: Sequence[Running]
    free: Mapping[int, int]
    sizes: Mapping[int, int]
    table: SensitivityTable
    domains: Sequence[Sequence[int]]

    @property
    def keys(self) -> list[Key]:
        """Those of all ways to start a job, and of the running jobs."""
        return [*(one.key for one in self.candidates), *(one.key for one in self.running)]


Policy = Callable[[View], Sequence[Start]]
"""What to start at this decision; nothing is an answer too. A trained network is one, once it is wrapped."""


def look(decision: Decision, jobs: Sequence[Job], spreads: Spreads) -> View:
    """The view of some waiting jobs; see :func:`.ways_to_start`. A candidate's ``job`` is its place in ``jobs``."""
    state = decision.state
    candidates = ways_to_start(decision, jobs, spreads)
    free = {books.number: len(books.free) for books in state.numbered}
    sizes = {books.number: len(books.node.devices) for books in state.numbered}
    domains = by_domain(state, list(free))
    return View(candidates, list(running_jobs(decision).values()), free, sizes, state.learned.sensitivity, domains)
