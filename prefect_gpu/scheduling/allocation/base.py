"""The question that every allocation answers, and the ways to tell jobs why they wait."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.state.capability import Capability, explain_impossible, gibibytes
from prefect_gpu.scheduling.state.waiting import Line

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision
    from prefect_gpu.scheduling.state.state import State


class Allocation(abc.ABC):
    """Decides who starts and who makes room. One object serves one scheduler: it may remember things.

    Attributes:
        ranks_running: Whether it needs ``state.ranking``.
    """

    ranks_running: bool = False

    def bind(self, state: State) -> None:
        """Called once, before anything else."""
        self.capability = state.capability

    @abc.abstractmethod
    def allocate(self, decision: Decision) -> None:
        """Look at all the jobs, and use the verbs of ``decision``. Called after each event that changed something."""


def tell_early(decision: Decision) -> None:
    """Tell the jobs that are not due why they wait."""
    for job in decision.state.queue_of_waiting.not_due():
        reason = "it is not due yet" if job.not_before > decision.now else "its launch failed and is tried again soon"
        decision.hold(job, "due", reason)


def tell_line(decision: Decision, line: Line, code: str, reason: Callable[[], str]) -> None:
    """Tell all of a line why they wait; only those who have not been told the same already."""
    jobs = list(line.untold.values()) if line.told == code else [entry[1] for entry in line.entries]
    line.told = code
    line.untold = {}
    if not jobs:
        return
    words = reason()
    for job in jobs:
        decision.hold(job, code, words)


def why_not(decision: Decision, line: Line, capability: Capability) -> tuple[str, Callable[[], str]]:
    """(code, reason) why no node can hold the first of a line now; devices kept for others are not the reason."""
    state, request = decision.state, line.request
    if not state.nodes:
        return "devices", lambda: "no node is known yet"
    if not capability.possible(request):
        return "never", lambda: explain_impossible(request, state)
    if not request.total_gpus:
        cores = request.cpus or 1
        return "cores", lambda: f"it needs {cores} core{'s' if cores != 1 else ''}, and no node has so many to give"
    expected = line.room_bytes > (request.gpu_memory_bytes or 0)
    least = line.room_bytes if expected else request.gpu_memory_bytes
    memory = f" with {gibibytes(least)}{', judging by earlier runs,' if expected else ''}" if least else ""
    wanted = f"{request.total_gpus} device{'s' if request.total_gpus != 1 else ''}{memory}"
    where = "" if request.spans or request.workers > 1 else " on one node"
    usable = capability.usable(request, line.room_bytes)
    if request.shareable:
        company = [device for device in state.shared_devices() if device in usable]
        if company:
            left = max(state.device(device).memory_bytes - state.granted_bytes(device) for device in company)
            return "memory", lambda: f"it needs {wanted}{where}, and a shared one has at most {gibibytes(left)} left"

    def busy() -> str:
        if len(usable) == state.device_count:
            count = state.device_count - state.free_count
        else:
            count = sum(1 for device in usable if not state.is_free(device))
        return f"it needs {wanted}{where}, and {count} of {len(usable)} are in use"

    return "devices", busy
