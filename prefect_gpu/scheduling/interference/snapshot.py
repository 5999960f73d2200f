"""What a contention-aware policy sees: who runs where, who could start where, and what is free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.interference.sensitivity import Candidate, Key, Running, SensitivityTable
from prefect_gpu.scheduling.interference.spreading import (
    avoided,
    by_domain,
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


class Speeds:
    """Speeds of jobs alone, by how they are spread.

    Args:
        measured: Speed in any unit by model, devices and number of nodes. A job whose model and devices are among them
            goes on a number of nodes that was measured; its estimate is taken to be for the fewest of these.

        fewest: Whether a job goes on more nodes than would hold it only if it is measured to be faster there.

    Raises:
        ValueError: A speed is not positive.
    """

    def __init__(self, measured: Mapping[Key, float] | None = None, *, fewest: bool = False) -> None:
        self._fewest = fewest
        self._by_width: dict[tuple[str, int], dict[int, float]] = {}
        for key, speed in sorted((measured or {}).items()):
            if not speed > 0:
                raise ValueError(f"speed of {key} is {speed}: give the measured one, above 0")
            self._by_width.setdefault((key.model, key.gpus), {})[key.nodes] = speed

    def widths(self, request: Request, nodes: int) -> tuple[int, ...]:
        """Numbers of nodes to spread a job over, the most preferred first; none if it cannot be spread."""
        if not can_spread(request):
            return ()
        measured = self._by_width.get((request.kind, request.total_gpus))
        preferred = sorted(measured, reverse=True) if measured else _PREFERRED
        return tuple(width for width in widths(request, preferred) if width <= nodes)

    def worthwhile(self, request: Request, nodes: int, largest_node: int) -> tuple[int, ...]:
        """As :meth:`widths`; with ``fewest``, without more nodes than would hold the job if it is no faster there.

        On more of them it meets more others, and two that hold the same nodes by halves keep each other from ever
        getting a whole one.

        Args:
            largest_node: Devices of the largest node.
        """
        found = self.widths(request, nodes)
        measured = self._by_width.get((request.kind, request.total_gpus))
        if not measured or not self._fewest:
            return found
        count, size = pieces(request)
        fewest = min((width for width in found if count // width * size <= largest_node), default=0)
        faster = measured.get(fewest, 0.0)
        return tuple(w for w in found if w == fewest or (w > fewest and measured[w] > faster))

    def knows(self, key: Key) -> bool:
        """Whether a job is measured on some number of nodes: it goes on no other."""
        return (key.model, key.gpus) in self._by_width

    def stretch(self, key: Key) -> float:
        """By which factor a job takes longer on so many nodes than on the fewest that were measured, both alone."""
        measured = self._by_width.get((key.model, key.gpus))
        if not measured or key.nodes not in measured:
            return 1.0
        return measured[min(measured)] / measured[key.nodes]


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


def look(decision: Decision, jobs: Sequence[Job], speeds: Speeds) -> View:
    """The view of some waiting jobs, each of which stands for those like it.

    A candidate's ``job`` is its place in ``jobs``. The seconds that remain are those of the estimate; of a job of
    which nothing is known, those that it has had are the best guess.
    """
    state = decision.state
    running = running_jobs(decision)
    on: dict[int, set[str]] = {}
    for name, one in running.items():
        for number in one.nodes:
            on.setdefault(number, set()).add(name)
    jobs_on = {number: frozenset(names) for number, names in on.items()}
    candidates = []
    rooms: dict[int, dict[int, int]] = {}  # jobs are much alike
    known: dict[tuple[int, int, tuple[tuple[int, int], ...]], tuple[frozenset[int], ...]] = {}
    for at, job in enumerate(jobs):
        found = speeds.worthwhile(job.request, len(state.numbered), state.largest_node)
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
                candidates.append(Candidate(at, key, sets, max(_LEAST_S, left_s * speeds.stretch(key))))
    free = {books.number: len(books.free) for books in state.numbered}
    sizes = {books.number: len(books.node.devices) for books in state.numbered}
    table, domains = state.learned.sensitivity, by_domain(state, list(free))
    return View(candidates, list(running.values()), free, sizes, table, domains)


def keys_in(view: View) -> list[Key]:
    """Those of all ways to start a job, and of the running jobs."""
    return [*(one.key for one in view.candidates), *(one.key for one in view.running)]


def worths_in(view: View, power: float) -> dict[Key, float]:
    """What a second of each job's work is worth; see :meth:`.SensitivityTable.worths`. A power of 0: nothing said."""
    if not power:
        return {}
    keys = keys_in(view)
    worths = view.table.worths([key.model for key in keys], power)
    return {key: worths[key.model] for key in keys}
