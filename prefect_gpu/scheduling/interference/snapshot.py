"""What a contention-aware policy sees: who runs where, and who could start where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.interference.sensitivity import Candidate, Key, Running
from prefect_gpu.scheduling.interference.spreading import (
    avoided,
    can_spread,
    node_sets,
    pieces,
    widths,
)
from prefect_gpu.scheduling.model.jobs import Job, Request
from prefect_gpu.scheduling.state.fits import free_by_node

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision

_PREFERRED = (1, 2, 4, 8, 16, 3, 5, 6, 7)  # numbers of nodes for jobs that were never measured
_LEAST_S = 1.0


class Spreads:
    """On how many nodes jobs go, where nothing was measured of it; DeepShare's :class:`.Speeds` knows more."""

    def worthwhile(self, request: Request, nodes: int, largest_node: int) -> tuple[int, ...]:
        """Numbers of nodes to spread a job over, the most preferred first; none if it cannot be spread.

        Args:
            nodes: Nodes that there are.
            largest_node: Devices of the largest.
        """
        return tuple(width for width in widths(request, _PREFERRED) if width <= nodes) if can_spread(request) else ()

    def stretch(self, key: Key) -> float:
        """By which factor a job takes longer on so many nodes than its estimate says, both alone."""
        return 1.0


def key_of(job: Job, nodes: int) -> Key:
    """What contention is known for: the job's program on its devices, spread over so many nodes."""
    return Key(job.request.kind, job.request.total_gpus, nodes)


def seconds_left(job: Job, now: float) -> float:
    """Seconds that remain alone; of a job of which nothing is known, those that it has had are the best guess."""
    found = job.remaining_s(now)
    return job.attained(now) if found is None else found


def running_jobs(decision: Decision) -> dict[str, Running]:
    """Where each running job that holds devices is, by its id."""
    state = decision.state
    found = {}
    for job in state.running.values():
        devices = job.placement.all_devices if job.placement else ()
        nodes = frozenset(state.number_of(device) for device in devices if state.has_node(device))
        if nodes:
            found[job.id] = Running(key_of(job, len(nodes)), nodes)
    return found


def ways_to_start(decision: Decision, jobs: Sequence[Job], spreads: Spreads) -> list[Candidate]:
    """All ways to start some waiting jobs, each of which stands for those like it.

    A candidate's ``job`` is its place in ``jobs``. The seconds that remain are those of the estimate; of a job of
    which nothing is known, those that it has had are the best guess.
    """
    state = decision.state
    on: dict[int, set[str]] = {}
    for name, one in running_jobs(decision).items():
        for number in one.nodes:
            on.setdefault(number, set()).add(name)
    jobs_on = {number: frozenset(names) for number, names in on.items()}
    candidates = []
    rooms: dict[int, dict[int, int]] = {}  # jobs are much alike
    known: dict[tuple[int, int, tuple[tuple[int, int], ...]], tuple[frozenset[int], ...]] = {}
    for at, job in enumerate(jobs):
        found = spreads.worthwhile(job.request, len(state.numbered), state.largest_node)
        if not found:
            continue
        needs = job.least_bytes  # that is all there is to it on devices that nobody is on
        if needs not in rooms:
            free_here = free_by_node(job, state)
            rooms[needs] = {n: len(devices) for n, devices in free_here.items()}
        shunned = avoided(job, state)
        room = {n: count for n, count in rooms[needs].items() if n not in shunned}
        left_s = seconds_left(job, decision.now)
        count, size = pieces(job.request)
        for width in found:
            least = count // width * size
            alike = width, least, tuple(room.items())
            if alike not in known:
                known[alike] = tuple(node_sets(width, room, least, jobs_on, state))
            sets = known[alike]
            if sets:
                key = key_of(job, width)
                candidates.append(Candidate(at, key, sets, max(_LEAST_S, left_s * spreads.stretch(key))))
    return candidates
