"""The jobs that wait, kept in order, so that a decision looks at the first of each kind and not at all of them."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import Protocol

from prefect_gpu.scheduling.model.cluster import Queue
from prefect_gpu.scheduling.model.jobs import Job, Request
from prefect_gpu.scheduling.order.orders import Key, Order, Usage
from prefect_gpu.scheduling.state.capability import Capability
from prefect_gpu.scheduling.state.learned import Learned
from prefect_gpu.scheduling.state.lengths import expected_left

_LEAST_LOOK_S = 30.0  # between two looks at whether a job is late by now: others come and go meanwhile


class Unsortable(RuntimeError):
    """The order has no key for a waiting job, or one that cannot be compared. The job waits in no line then.

    Attributes:
        error: What the order raised.
    """

    def __init__(self, job: Job, error: Exception) -> None:
        super().__init__(f"{job.label}: {error}")
        self.job, self.error = job, error


class Books(Usage, Protocol):
    """What those who wait must know of everything else."""

    capability: Capability
    learned: Learned
    shared_s: float

    def part(self) -> float: ...

    def queue(self, queue_id: str) -> Queue: ...


class Line:
    """Waiting jobs that are due and need the same in the same queue: if one cannot start, no later one can.

    Attributes:
        room_bytes: See :class:`~prefect_gpu.scheduling.model.jobs.Job`; the same for all of the line.
        told: Code of the reason that all of the line but ``untold`` were last told.
    """

    __slots__ = ("entries", "queue", "request", "room_bytes", "told", "untold")

    def __init__(self, queue: str, request: Request, room_bytes: int = 0) -> None:
        self.queue = queue
        self.request = request
        self.room_bytes = room_bytes
        self.entries: list[tuple[Key, Job]] = []
        self.told: str | None = None
        self.untold: dict[str, Job] = {}


class Waiting:
    """All jobs that wait. Due ones stand in lines; the others are on a calendar until they are due.

    Args:
        order: Sorts the due jobs. If the keys of its waiting jobs change with time, lines are sorted at each look.
        patience_s: A due job that has waited so long becomes impatient: it comes before all others of its priority.
        most_late: See :class:`~prefect_gpu.scheduling.profiles.Profile`.
    """

    def __init__(self, order: Order, patience_s: float, most_late: float = 0.0) -> None:
        self._order = order
        self._patience_s = patience_s
        self._most_late = most_late
        self._lines: dict[tuple[str, Request, int], Line] = {}
        self._entry: dict[str, tuple[Line, Key, Job]] = {}
        self._calendar: list[tuple[float, str]] = []
        self._not_due: dict[str, Job] = {}
        self._impatient_at: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._entry) + len(self._not_due)

    def holds(self, job: Job) -> bool:
        """Whether the job waits here."""
        return job.id in self._entry or job.id in self._not_due

    def not_due(self) -> list[Job]:
        """The jobs that are not due yet."""
        return list(self._not_due.values())

    def lines(self) -> list[Line]:
        """The lines that have jobs, in no particular order."""
        return [line for line in self._lines.values() if line.entries]

    def add(self, job: Job, state: Books, now: float) -> None:
        """A job waits from now on."""
        if job.due_at > now:
            self._not_due[job.id] = job
            heapq.heappush(self._calendar, (job.due_at, job.id))
        else:
            self._enter(job, state, now)

    def remove(self, job: Job) -> None:
        """A job waits no more. Nothing happens if it did not."""
        if self._not_due.pop(job.id, None) is not None:
            return
        found = self._entry.pop(job.id, None)
        if found is None:
            return
        line, key, _ = found
        at = bisect_left(line.entries, key, key=_key_of)
        while line.entries[at][1] is not job:  # an order with equal keys: look at them one by one
            at += 1
        del line.entries[at]
        line.untold.pop(job.id, None)
        if not line.entries:
            del self._lines[line.queue, line.request, line.room_bytes]

    def wake(self, state: Books, now: float) -> None:
        """Bring the lines up to date: who has become due, who has lost patience, and whose key has changed."""
        while self._calendar and self._calendar[0][0] <= now:
            _, job_id = heapq.heappop(self._calendar)
            job = self._not_due.get(job_id)
            if job is not None and job.due_at <= now:
                del self._not_due[job_id]
                self._enter(job, state, now)
        while self._impatient_at and self._impatient_at[0][0] <= now:
            _, job_id = heapq.heappop(self._impatient_at)
            entry = self._entry.get(job_id)
            if entry is None:
                continue
            line, _, job = entry
            if job.impatient:
                continue
            later = self.goes_first_at(job, state, now)
            if later > now:
                heapq.heappush(self._impatient_at, (max(later, now + _LEAST_LOOK_S), job.id))
            else:
                untold = job.id in line.untold
                self.remove(job)
                job.impatient = job.late = True
                self._enter(job, state, now, untold=untold)
        if not self._order.steady:
            self.sort(state, now)

    def sort(self, state: Books, now: float) -> None:
        """Make all keys anew: queues have got other priorities, or the order depends on the time."""
        for line in self._lines.values():
            line.entries = _in_order([(self._key(job, state, now), job) for _, job in line.entries])
            for key, job in line.entries:
                self._entry[job.id] = (line, key, job)

    def regroup(self, state: Books, now: float) -> None:
        """The sizes of the devices have changed, and with them which of them jobs wait for."""
        for line, _, job in list(self._entry.values()):
            if state.capability.room_for(job) != line.room_bytes:
                self.remove(job)
                self._enter(job, state, now)

    def next_moment(self) -> float | None:
        """When the next job becomes due or impatient, or None."""
        while self._calendar and self._calendar[0][1] not in self._not_due:
            heapq.heappop(self._calendar)
        while self._impatient_at and self._impatient_at[0][1] not in self._entry:
            heapq.heappop(self._impatient_at)
        moments = [heap[0][0] for heap in (self._calendar, self._impatient_at) if heap]
        return min(moments, default=None)

    def in_order(self) -> Walk:
        """Go through the due jobs, first things first; see :class:`Walk`."""
        return Walk(self.lines())

    def key_of(self, job: Job) -> Key | None:
        """The key of a due job, as of the last :meth:`wake`."""
        entry = self._entry.get(job.id)
        return entry[1] if entry else None

    def _enter(self, job: Job, state: Books, now: float, *, untold: bool = True) -> None:
        job.room_bytes = state.capability.room_for(job)
        stands = (job.queue, job.request, job.room_bytes)
        impatient_at = self.goes_first_at(job, state, now)
        job.impatient = impatient_at <= now
        job.late |= job.impatient
        if not job.impatient and impatient_at != float("inf"):
            heapq.heappush(self._impatient_at, (impatient_at, job.id))
        key = self._key(job, state, now)
        line = self._lines.get(stands)
        if line is None:
            line = self._lines[stands] = Line(*stands)
        try:
            insort(line.entries, (key, job), key=_key_of)
        except TypeError as error:
            raise Unsortable(job, error) from error
        self._entry[job.id] = (line, key, job)
        if untold or job.hold != line.told:
            line.untold[job.id] = job

    def patient_until(self, job: Job) -> float:
        """From when on it is not asked to wait any more although there is room."""
        return max(job.not_before, job.gave_way_at) + self._patience_s

    def still_late(self, job: Job, state: Books, now: float) -> bool:
        """Whether a job that was late is so even if it goes on at once: it may be longer than was thought."""
        job.late = job.late and self.goes_first_at(job, state, now) <= now
        return job.late

    def goes_first_at(self, job: Job, state: Books, now: float) -> float:
        """From when on nobody who is more patient may overtake a due job, as things stand; infinite: never.

        A job is late by its estimate, however little that tells. Of a job whose length nobody knows, what such jobs
        need in the mean counts, and the mean length of those that ended at least: a newcomer is short as a rule, but
        one that waits is not late because of that.
        """
        if not (self._most_late and job.request.total_gpus) or self._patience_s == float("inf"):
            return self.patient_until(job)
        left_s, certain = expected_left(job, now, state.learned.lengths, as_told=True)
        alone_s = job.attained(now) + left_s
        if not certain:
            lengths, held_s = state.learned.lengths, job.attained(now)
            alone_s = max(alone_s, lengths.mean_s(), held_s + lengths.mean_left_s(job.request.total_gpus, held_s))
        part = state.part()
        if job.shared_at_s is None:
            job.shared_at_s = state.shared_s - part * max(0.0, now - job.not_before)
        had_s = state.shared_s - job.shared_at_s
        late_at = now + max(0.0, (self._most_late * alone_s - had_s) / part)
        return max(job.not_before + self._patience_s, late_at)

    def _key(self, job: Job, state: Books, now: float) -> Key:
        priority = state.queue(job.queue).priority
        if job.impatient:
            return (priority, 0, job.not_before, job.submitted_at, job.id)
        try:
            return (priority, 1, *self._order.key(job, state, now))
        except Exception as error:
            raise Unsortable(job, error) from error


class Walk:
    """One pass over the due jobs in order, in which whole lines can be left out from some point on.

    Args:
        turns: What counts right after the priority of the queue, for each line; None: nothing does.
    """

    def __init__(self, lines: Sequence[Line], turns: Sequence[object] | None = None) -> None:
        self._turns = turns
        self._heap: list[tuple[Key, int, int, Line]] = [
            (self._key(line, number, 0), number, 0, line) for number, line in enumerate(lines)
        ]
        try:
            heapq.heapify(self._heap)
        except TypeError:
            raise self._unsortable() from None

    def _key(self, line: Line, number: int, at: int) -> Key:
        key = line.entries[at][0]
        return key if self._turns is None else (key[0], self._turns[number], *key[1:])

    def __iter__(self) -> Iterator[tuple[Line, Job]]:
        """Yields (line, job). Take a job away or call :meth:`leave` before going on; else the next in line comes."""
        heap = self._heap
        while heap:
            _, number, at, line = heap[0]
            job = line.entries[at][1]
            self._left = False
            yield line, job
            if self._left:
                heapq.heappop(heap)
                continue
            if at < len(line.entries) and line.entries[at][1] is job:
                at += 1
            if at < len(line.entries):
                try:
                    heapq.heapreplace(heap, (self._key(line, number, at), number, at, line))
                except TypeError as error:
                    raise Unsortable(line.entries[at][1], error) from error
            else:
                heapq.heappop(heap)

    def _unsortable(self) -> Unsortable:
        """Whose key cannot be compared with those before it."""
        heap: list[tuple[Key, int, int, Line]] = []
        for entry in sorted(self._heap, key=lambda entry: entry[1]):
            try:
                heapq.heappush(heap, entry)
            except TypeError as error:
                return Unsortable(entry[3].entries[0][1], error)
        raise AssertionError("all keys can be compared")

    def leave(self) -> None:
        """Leave out the rest of the line of the job last yielded."""
        self._left = True


def _in_order(entries: list[tuple[Key, Job]]) -> list[tuple[Key, Job]]:
    try:
        return sorted(entries, key=_key_of)
    except TypeError as error:
        found: list[tuple[Key, Job]] = []
        for entry in entries:  # whose key cannot be compared with those before it?
            try:
                insort(found, entry, key=_key_of)
            except TypeError:
                raise Unsortable(entry[1], error) from error
        raise


def _key_of(entry: tuple[Key, Job]) -> Key:
    return entry[0]
