"""What a second of each job's work costs a cluster on which jobs on several nodes slow each other down."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from prefect_gpu.papers.deepshare.compositions import Latest, TooMany
from prefect_gpu.papers.deepshare.speeds import Speeds
from prefect_gpu.scheduling.interference.sensitivity import Key
from prefect_gpu.scheduling.interference.spreading import key_of, seconds_left

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision

_RENEWED = 0.05  # of the time that this work would take alone: then the prices are looked at again


class Prices:
    """The price of a job: seconds of a device for each second of its work on one, if all is done in the best company.

    All work of the jobs that are waiting or running is taken together, see
    :meth:`~prefect_gpu.papers.deepshare.compositions.Compositions.prices`. A job that nearly everybody slows down costs
    much: it should run while there is good company for it. Jobs that one node holds, or that need whole nodes, cost 1.
    Nodes are taken to be like the largest.

    Args:
        speeds: On how many nodes jobs go.
    """

    def __init__(self, speeds: Speeds) -> None:
        self._speeds = speeds
        self._known: dict[tuple[str, int], float] = {}
        self._any = False
        self._renew_at = -math.inf
        self._keys: Sequence[Key] = ()
        self._latest = Latest()

    def of(self, keys: Iterable[Key], decision: Decision) -> dict[Key, float] | None:
        """The price of each of these; None if there is none to tell.

        So it is where no job needs several nodes, where a node has no room for parts of two jobs, or where there are
        too many kinds of jobs to look at all compositions.
        """
        wanted = list(keys)
        if decision.now >= self._renew_at or any((key.model, key.gpus) not in self._known for key in wanted):
            self._renew(decision)
        return {key: self._known.get((key.model, key.gpus), 1.0) for key in wanted} if self._any else None

    def _renew(self, decision: Decision) -> None:
        state = decision.state
        waiting = (entry[1] for line in state.queue_of_waiting.lines() for entry in line.entries)
        nodes, capacity = len(state.numbered), state.largest_node
        left_s: dict[Key, float] = {}  # seconds of nodes
        self._known, self._any = {}, False
        for job in [*waiting, *state.running.values()]:
            found = self._speeds.worthwhile(job.request, nodes, capacity)
            width = next((one for one in found if job.request.total_gpus <= capacity * one), 0)
            key = key_of(job, width)
            self._known[key.model, key.gpus] = 1.0
            seconds = seconds_left(job, decision.now)
            if width > 1 and key.gpus < capacity * width:
                left_s[key] = left_s.get(key, 0.0) + seconds * width
        sizes = [key.gpus // key.nodes for key in left_s]
        alone_s = sum(left_s[key] * size for key, size in zip(left_s, sizes, strict=True)) / max(1, nodes * capacity)
        self._renew_at = decision.now + _RENEWED * alone_s if left_s else math.inf
        if not left_s or 2 * min(sizes) > capacity:
            return
        if not set(left_s) <= set(self._keys):  # else, those who have gone make no difference
            self._keys = sorted(left_s)
        keys = self._keys
        table = state.learned.sensitivity
        ratios = np.array([[table.ratio(own, other) for other in keys] for own in keys])
        try:
            compositions = self._latest.of([key.gpus // key.nodes for key in keys], ratios, capacity)
        except TooMany:
            self._keys = ()
            return
        work_s = np.array([left_s.get(key, 0.0) for key in keys])
        for key, seconds in zip(keys, compositions.prices(work_s), strict=True):
            if key in left_s:
                self._known[key.model, key.gpus] = float(seconds) * capacity * key.nodes / key.gpus
        self._any = True
