"""What an allocation is made of, and the ways to tell jobs why they wait."""

from __future__ import annotations

import abc
from collections.abc import Callable

from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.state.capability import explain_impossible, gibibytes
from prefect_gpu.scheduling.state.endings import needs_s
from prefect_gpu.scheduling.state.fits import nodes_for, usable_now
from prefect_gpu.scheduling.state.state import State
from prefect_gpu.scheduling.state.waiting import Line
from prefect_gpu.units import plural


class Action(abc.ABC):
    """One step of an allocation: starts jobs, or makes room. One object serves one scheduler: it may remember things.

    Attributes:
        ranks_running: Whether it needs ``state.ranking``.
    """

    ranks_running: bool = False

    @abc.abstractmethod
    def act(self, decision: Decision) -> bool:
        """Look at the jobs, and use the verbs of ``decision``. Called after each event that changed something.

        Returns:
            Whether it has decided about all jobs: the actions after it are left out this time.
        """


class When(Action):
    """Another action, in those decisions only that it suits.

    Args:
        suits: Whether it does.
        action: The other one.
    """

    def __init__(self, suits: Callable[[Decision], bool], action: Action) -> None:
        self._suits, self._action = suits, action
        self.ranks_running = action.ranks_running

    def act(self, decision: Decision) -> bool:
        """See the class."""
        return self._suits(decision) and self._action.act(decision)


def tell_early(decision: Decision) -> None:
    """Tell the jobs that are not due why they wait."""
    for job in decision.state.queue_of_waiting.not_due():
        reason = "it is not due yet" if job.not_before > decision.now else "its launch failed and is tried again soon"
        decision.hold(job, "due", reason)


def tell_limit(decision: Decision, line: Line) -> bool:
    """Tell all of a line which limit of the user's keeps it from starting; False if none does."""
    limit = decision.state.limit_on(line.queue)
    if limit is not None:
        tell_line(decision, line, *limit)
    return limit is not None


def tell_line(decision: Decision, line: Line, code: str, reason: str | Callable[[], str]) -> None:
    """Tell all of a line why they wait; only those who have not been told the same already.

    Args:
        reason: The words, or what makes them; it is called only if there is somebody to tell.
    """
    jobs = list(line.untold.values()) if line.told == code else [entry[1] for entry in line.entries]
    line.told = code
    line.untold = {}
    if not jobs:
        return
    words = reason if isinstance(reason, str) else reason()
    for job in jobs:
        decision.hold(job, code, words)


def _too_short(line: Line, state: State) -> str:
    """How many free devices leave service too soon for the first of a line, in words."""
    if not state.any_end:
        return ""
    job = line.entries[0][1]
    there = usable_now(job, state)
    usable = state.capability.usable(job.request, job.room_bytes)
    soon = sum(1 for device in usable if device not in there and state.is_free(device))
    if not soon:
        return ""
    free = "1 that is free leaves" if soon == 1 else f"{soon} that are free leave"
    needs = f"for which it needs {needs_s(job, state):.0f} s"
    return f"; {free} service before it could reach a checkpoint or its end, {needs}"


def why_not(decision: Decision, line: Line) -> tuple[str, Callable[[], str]]:
    """(code, reason) why no node can hold the first of a line now; devices kept for others are not the reason."""
    state, capability, request = decision.state, decision.state.capability, line.request
    if not state.nodes:
        return "nodes", lambda: "no node is known yet"
    if not capability.possible(request):
        return "never", lambda: explain_impossible(request, state)
    if not request.total_gpus:
        cores, first = plural(request.cpus or 1, "core"), line.entries[0][1]
        if state.any_end and len(nodes_for(first, state)) < len(state.nodes):
            for_s = f"{needs_s(first, state):.0f} s, until a checkpoint or its end"
            return "cores", lambda: f"it needs {cores} for {for_s}, and no node that stays so long has so many free"
        return "cores", lambda: f"it needs {cores}, and no node has so many free"
    expected = line.room_bytes > (request.gpu_memory_bytes or 0)
    least = line.room_bytes if expected else request.gpu_memory_bytes
    memory = f" with {gibibytes(least)}{', judging by earlier runs,' if expected else ''}" if least else ""
    wanted = f"{plural(request.total_gpus, 'device')}{memory}"
    where = "" if request.spans or request.workers > 1 else " on one node"
    usable = capability.usable(request, line.room_bytes)
    if request.shareable:
        company = [device for device in state.shared_devices() if device in usable]
        if company:
            left = max(state.device(device).memory_bytes - state.granted_bytes(device) for device in company)
            return "memory", lambda: f"it needs {wanted}{where}, and shared devices have at most {gibibytes(left)} left"

    def busy() -> str:
        if len(usable) == state.device_count:
            count = state.device_count - state.free_count
        else:
            count = sum(1 for device in usable if not state.is_free(device))
        are = "is" if count == 1 else "are"
        return f"it needs {wanted}{where}, and {count} of {len(usable)} {are} in use{_too_short(line, state)}"

    return "devices", busy
