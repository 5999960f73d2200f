"""How many workers does each elastic gang have, on one node or on several? The sizes of ``goodput``, bound to jobs.

What is decided about here: gangs with ``max_workers`` above ``workers`` whose speed is known, and the jobs that wait
beside them. The counts come from :func:`.sizes`, the places from the profile's placement; a gang is placed whole, at
every size, or stays as it is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from prefect_gpu.scheduling.allocation.base import Action
from prefect_gpu.scheduling.decision import Decision, names
from prefect_gpu.scheduling.elastic.gang_trial import Outcome, speed_on, try_out
from prefect_gpu.scheduling.elastic.goodput import Growing, sizes, worth
from prefect_gpu.scheduling.interference.guard import contention_known
from prefect_gpu.scheduling.model.jobs import Job, Status
from prefect_gpu.scheduling.preemption.minimum_runtime import left_alone_until
from prefect_gpu.scheduling.preemption.units import restart_s
from prefect_gpu.scheduling.state.lengths import expected_left

PAYS_OFF = 5.0
"""So many restarts must another number of workers pay off: this one, and that the next change may come soon. It is the
ratio of :data:`.goodput.RESTART_S` to the restarts of the world in which that was chosen."""
LEAST_FASTER = 1.05
"""So many times as fast must a gang be with more workers: less may be an error of the measurement."""

_MOST_WAITING = 32
_MOST_TRIALS = 8


def is_growing(job: Job) -> bool:
    """Whether the job can have a varying number of workers, and its speed with them is known."""
    return job.request.grows and any(job.estimate.throughput)


@dataclass
class _Contenders:
    """Who gets devices: gangs that run and may be resized now, and jobs that wait, in their order."""

    running: list[Job]
    waiting: list[Job]
    growing: dict[str, Growing]


class ResizeGangs(Action):
    """Sizes by marginal progress per work left, for elastic gangs that run and that wait; with guards.

    1. *Who.* Elastic gangs that train and are protected no more, and the first jobs that wait. A gang that runs keeps
       its minimum; a job that is late, or of a better queue than the gangs, is given its devices before anybody grows.
    2. *Sizes.* :func:`.sizes`, with what is left of each, its speed by number of devices (on several nodes, if they
       are more than any node has), and :data:`PAYS_OFF` times its restart, as measured, for any number but its own.
       Devices that this leaves over go to whoever gains most.
    3. *Places* (:mod:`.gang_trial`), on trial: those that shrink keep some of their devices, those that start, and then
       those that grow, are placed as any gang. Whoever finds no place competes no more, and the sizes are made again.
       A gang that would grow over several nodes does so if it is worth it at the speed that it has there.
    4. *Applied* is only what brings something: a gang shrinks where others get the devices that it gives up, and grows
       where that pays.

    Where no job asks for a varying number of workers it does nothing. A gang of which nothing is known starts with its
    minimum, like any other job, by the actions after this one.
    """

    def act(self, decision: Decision) -> bool:
        """See the class."""
        if decision.state.growing_count:
            found = self._contenders(decision)
            if found is not None and (found.running or any(map(is_growing, found.waiting))):
                outcome = self._settle(decision, found)
                if outcome is not None:
                    _apply(decision, outcome)
            decision.about = None
        return False

    # -- who ------------------------------------------------------------------------------------------------------

    def _contenders(self, decision: Decision) -> _Contenders | None:
        """None: devices are kept for a job that is late and cannot have them even so."""
        state, growing = decision.state, dict[str, Growing]()
        running = []
        for job in state.running.values():
            if is_growing(job) and self._resizable(job, decision):
                one = _growing(job, decision)
                if one is not None:
                    running.append(job)
                    growing[job.id] = one
        gpus = state.free_count - sum(one.least - len(one.nodes) for one in growing.values())
        elastic = [*running, *(line.entries[0][1] for line in state.queue_of_waiting.lines() if line.request.grows)]
        worst = max((state.queue(job.queue).priority for job in elastic), default=0)
        waiting, more = list[Job](), Counter[str]()
        given: Counter[str] = Counter()  # devices by owner
        walk = decision.walk()
        for line, job in walk:
            request, decision.about = job.request, job
            if (
                len(waiting) >= _MOST_WAITING
                or not request.total_gpus
                or state.limit_on(line.queue, more) is not None
                or decision.kept_back(request, given) is not None
                or not state.capability.possible(request)
                or contention_known(job, state)
            ):
                walk.leave()
                continue
            one = _growing(job, decision) if is_growing(job) else _rigid(job, decision)
            if one is None:
                walk.leave()
                continue
            if job.late or state.queue(job.queue).priority < worst:
                least = min(size for size, speed in one.speed.items() if speed > 0)
                if least > gpus:
                    if job.late:
                        return None
                    walk.leave()
                    continue
                one = replace(one, least=least)
                gpus -= least
            growing[job.id] = one
            waiting.append(job)
            more[job.queue] += 1
            given[request.owner] += request.total_gpus
        return _Contenders(running, waiting, growing)

    @staticmethod
    def _resizable(job: Job, decision: Decision) -> bool:
        """Whether the gang trains and is protected no more; else, when to look again."""
        state = decision.state
        if job.status is not Status.TRAINING or not decision.may_stop(job) or state.successor(job.id) is not None:
            return False
        until = left_alone_until(job, math.inf)
        if until > decision.now:
            decision.look_again_at(until)
        return until <= decision.now

    # -- sizes ----------------------------------------------------------------------------------------------------

    def _settle(self, decision: Decision, found: _Contenders) -> Outcome | None:
        """The places that come of it; None: everything stays as it is."""
        contenders, waiting = dict(found.growing), list(found.waiting)
        for _ in range(_MOST_TRIALS):
            ones = list(contenders.values())
            gpus = decision.state.free_count + sum(len(one.nodes) for one in ones)
            wanted = _used_up(ones, sizes(ones, gpus), gpus)
            outcome = try_out(decision, found.running, waiting, contenders, wanted, pays)
            if not outcome.failed:
                return outcome if outcome.changes else None
            if any(job.late for job in outcome.failed):
                return None
            for job in outcome.failed:
                del contenders[job.id]
                waiting.remove(job)
        return None


def pays(one: Growing, size: int) -> bool:
    """Whether another number of devices is worth a restart to a gang for its own sake."""
    values, have = dict(worth(one, 0.0)), len(one.nodes)
    faster = one.speed.get(size, 0.0) >= LEAST_FASTER * one.speed.get(have, 0.0)
    return faster and values.get(size, 0.0) > values.get(have, 0.0)


def _growing(job: Job, decision: Decision) -> Growing | None:
    """An elastic gang as a question of counts; None if its speed where it is, or with its minimum, is not known."""
    request, state = job.request, decision.state
    devices = job.placement.all_devices if job.placement is not None else ()
    if not all(map(state.has_node, devices)):
        return None
    most = min(request.most_gpus, len(job.estimate.throughput), state.device_count)
    speed = {
        size: speed_on(job, size, 1 if size <= state.largest_node else 2)
        for size in range(request.total_gpus, most + 1, request.gpus)
    }
    if job.placement is not None and len(devices) in speed:
        speed[len(devices)] = speed_on(job, len(devices), len(job.placement.nodes))
    least = next((size for size, rate in speed.items() if rate > 0), 0)
    rate = speed.get(len(devices) or least, 0.0)
    if not rate:
        return None
    left_s, _ = expected_left(job, decision.now, state.learned.lengths)
    cost_s = restart_s(job)
    # What it has on more than one device counts in proportion, as of those that may have a single one.
    alone = job.estimate.throughput[0]
    alone_s = left_s * rate / alone if alone else left_s * len(devices or range(least))
    return Growing(
        job.id,
        left_s * rate,
        speed,
        tuple(map(state.number_of, devices)),
        least=least if devices else 0,
        restart_s=PAYS_OFF * cost_s if devices else cost_s,
        alone_s=alone_s,
    )


def _rigid(job: Job, decision: Decision) -> Growing:
    """A job that waits for a fixed number of devices, likewise: as one that scales in proportion, up to these."""
    left_s, _ = expected_left(job, decision.now, decision.state.learned.lengths)
    gpus = job.request.total_gpus
    return Growing(job.id, left_s, {gpus: 1.0}, restart_s=restart_s(job), alone_s=gpus * left_s)


def _used_up(ones: Sequence[Growing], wanted: dict[str, int], gpus: int) -> dict[str, int]:
    """The sizes, with devices that are left over given to those that gain most from them.

    The envelope leaves sizes between its corners out, and a segment that is wider than what is left.
    """
    left = gpus - sum(wanted.values())
    worths = [(one, dict(worth(one, 0.0))) for one in ones] if left > 0 else []
    while left > 0:
        best: tuple[float, str, int] | None = None
        for one, values in worths:
            have = wanted.get(one.id, 0)
            for size, value in values.items():
                gain = (value - values.get(have, 0.0)) / (size - have) if have < size <= have + left else 0.0
                if gain > 0 and (best is None or gain > best[0]):
                    best = gain, one.id, size
        if best is None:
            break
        _, name, size = best
        left -= size - wanted.get(name, 0)
        wanted[name] = size
    return wanted


def _apply(decision: Decision, outcome: Outcome) -> None:
    """First those that shrink, then those that start, then those that grow: each may go where one before was."""
    given = [(job, set(place.all_devices)) for job, place in (*outcome.starts, *outcome.grows)]
    for job, place in outcome.shrinks:
        own = job.placement
        assert own is not None
        taken = [other.label for other, devices in given if devices.intersection(own.all_devices)]
        if taken:
            gain = "gain" if len(taken) > 1 else "gains"
            words = f"it keeps {len(place.parts)} of its {len(own.parts)} workers, as {names(tuple(taken))} {gain} more"
        else:
            words = f"with {len(place.parts)} of its {len(own.parts)} workers it is faster"
        decision.move(job, place, words)
    for job, place in outcome.starts:
        if not decision.may_have(job, len(place.all_devices)):
            continue
        on = names(place.all_devices)
        if is_growing(job):
            words = f"with {len(place.parts)} of at most {job.request.max_workers} workers it makes the most of {on}"
        elif outcome.shrinks:
            words = f"{on} {'are' if len(place.all_devices) > 1 else 'is'} worth more to it than to those that shrink"
        else:
            words = f"{on} {'are' if len(place.all_devices) > 1 else 'is'} free"
        decision.launch(job, place, words)
    for job, place in outcome.grows:
        assert job.placement is not None
        if not decision.may_have(job, len(place.all_devices)):
            continue
        decision.move(job, place, f"{len(place.parts)} workers make it faster than {len(job.placement.parts)}")
