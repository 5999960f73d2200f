"""Jobs spread evenly over nodes: on how many they may go, what a set of nodes means for them, and who runs where."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import combinations

from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.interference.sensitivity import Candidate, Key, Running
from prefect_gpu.scheduling.model.cluster import Device, Placement
from prefect_gpu.scheduling.model.jobs import Job, Request
from prefect_gpu.scheduling.model.kinds import Wants
from prefect_gpu.scheduling.placement.granting import grant, joined
from prefect_gpu.scheduling.sharing.rules import Sharing
from prefect_gpu.scheduling.state.fits import free_by_node
from prefect_gpu.scheduling.state.state import State

MOST_NODES = 8
_PREFERRED = (1, 2, 4, 8, 16, 3, 5, 6, 7)  # numbers of nodes for jobs that were never measured
_LEAST_S = 1.0


def pieces(request: Request) -> tuple[int, int]:
    """(how many pieces the job falls into, devices of each): a GPU each of a run that spans, the instances of a gang.

    A run that neither spans nor is a gang is one piece.
    """
    if request.spans:
        return request.gpus, 1
    return request.workers, request.gpus


def widths(request: Request, preferred: Sequence[int]) -> tuple[int, ...]:
    """Numbers of nodes that the job's pieces spread evenly over, in the order of preference.

    Args:
        preferred: Numbers of nodes to think of, the preferred first.
    """
    count, _ = pieces(request)
    return tuple(width for width in preferred if 0 < width <= count and count % width == 0)


def can_spread(request: Request) -> bool:
    """Whether the request is one that is spread here: it wants devices, always as many, and no parameter servers."""
    return request.total_gpus > 0 and request.servers == 0 and not request.max_gpus and not request.max_workers


def fits_evenly(job: Job, state: State, preferred: Sequence[int], without: Container[int] = ()) -> bool:
    """Whether nodes of one domain could hold the job in equal parts if they were empty.

    Args:
        preferred: Numbers of nodes to think of.
        without: Numbers of the nodes that are left out.
    """
    if not can_spread(job.request):
        return False
    count, size = pieces(job.request)
    room: dict[str, list[int]] = {}  # devices of each node, by domain
    for books in state.numbered:
        if books.number not in without:
            large = sum(map(job.fits_on, books.node.devices))
            room.setdefault(books.node.domain, []).append(large)
    return any(
        sum(devices >= count // width * size for devices in nodes) >= width
        for width in widths(job.request, preferred)
        for nodes in room.values()
    )


def kept_from(job: Job, state: State) -> list[Job]:
    """The running jobs that a job does not meet again, since one was stopped for the other; ordered by their names."""
    others = state.learned.anti_affinity.others(job.id)
    return [state.running[name] for name in sorted(others) if name in state.running]


def avoided(job: Job, state: State) -> frozenset[int]:
    """Numbers of the nodes that a job is not to be started on now.

    Those of the jobs that it is kept from: it waits for room on others. There are none if the job could not be on other
    nodes even if all their devices were free.
    """
    others = kept_from(job, state)
    if not others:
        return frozenset()
    taken = frozenset(
        state.number_of(device)
        for other in others
        for device in (other.placement.all_devices if other.placement else ())
        if state.has_node(device)
    )
    return taken if fits_evenly(job, state, range(1, MOST_NODES + 1), without=taken) else frozenset()


def placed(
    job: Job, numbers: Sequence[int], room: Mapping[int, Sequence[Device]], state: State, sharing: Sharing
) -> Placement:
    """The placement of a job spread evenly over these nodes: one part for each node, or for each instance of a gang."""
    count, size = pieces(job.request)
    each = count // len(numbers)
    in_parts = (1, each * size) if job.request.spans else (each, size)
    parts = []
    for number in numbers:
        node, devices = state.numbered[number].node, room[number]
        for part in range(in_parts[0]):
            own = devices[part * in_parts[1] : (part + 1) * in_parts[1]]
            parts.append(grant(job, node, tuple(device.id for device in own), state, sharing))
    return joined(parts)


def node_sets(
    width: int, room: Mapping[int, int], least: int, jobs_on: Mapping[int, frozenset[str]], state: State
) -> Iterator[frozenset[int]]:
    """Sets of so many nodes of one domain with room on each; of sets that are alike, the first.

    Nodes are alike if equally many devices are free there and the same jobs are on them. On a large cluster, only
    some nodes are thought of: those with the fewest jobs, and of these the ones with the fewest devices free.

    Args:
        width: Nodes of each set.
        room: Devices free on each node, by its number.
        least: Devices that must be free on each.
        jobs_on: The jobs on each node.
    """
    for numbers in by_domain(state, [number for number, free in room.items() if free >= least]):
        alike: dict[tuple[int, int, frozenset[str]], list[int]] = {}
        for number in numbers:
            jobs = jobs_on.get(number, frozenset())
            alike.setdefault((len(jobs), room[number], jobs), []).append(number)
        kinds = sorted(alike.items(), key=lambda item: (item[0][:2], item[1][0]))
        chosen = sorted([n for _, group in kinds for n in group[:width]][: max(width, MOST_NODES)])
        kind_of = {number: at for at, (_, group) in enumerate(kinds) for number in group}
        seen: set[tuple[int, ...]] = set()
        for some in combinations(chosen, width):
            signature = tuple(sorted(kind_of[number] for number in some))
            if signature not in seen:
                seen.add(signature)
                yield frozenset(some)


def by_domain(state: State, numbers: Sequence[int]) -> list[list[int]]:
    """Those nodes of each domain, in the given order."""
    found: dict[str, list[int]] = {}
    for number in numbers:
        found.setdefault(state.numbered[number].node.domain, []).append(number)
    return list(found.values())


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
            found[job.id] = Running(Key(job.request.kind, len(devices), len(nodes)), nodes)
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
    rooms: dict[tuple[int, Wants | None], dict[int, int]] = {}  # jobs are much alike
    known: dict[tuple[int, int, tuple[tuple[int, int], ...]], tuple[frozenset[int], ...]] = {}
    for at, job in enumerate(jobs):
        found = spreads.worthwhile(job.request, len(state.numbered), state.largest_node)
        if not found:
            continue
        needs = job.least_bytes, job.request.wants  # that is all there is to it on devices that nobody is on
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
