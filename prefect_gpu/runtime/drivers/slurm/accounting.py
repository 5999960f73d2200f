"""How jobs ended, where the cluster keeps accounts: ``sacct`` knows it long after ``squeue`` has forgotten them.

``squeue`` shows a job for some minutes after its end (``MinJobAge``). A worker that was away for longer learns only
here whether its allocation reached its time limit, lost its node or was cancelled, and by whom.
"""

from __future__ import annotations

import contextlib
import logging
import pwd
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

from prefect_gpu.runtime.drivers.slurm.cluster import OUT_OF_MEMORY, JobEnd, SlurmError, has_ended

OPTIONS = ("--noheader", "--parsable2", "--format=JobID,State")
_ABSENT = "Slurm accounting storage is disabled"
_AWAY_S = 60.0  # then slurmdbd is asked again

logger = logging.getLogger("prefect_gpu.slurm.accounting")


class Accounting:
    """Asks for the ends of jobs, and spares whoever does not answer.

    Args:
        ask: Gives the ends of some jobs.
    """

    def __init__(self, ask: Callable[[list[str]], Awaitable[Mapping[str, JobEnd]]]) -> None:
        self._ask = ask
        self._absent = False
        self._away_until = 0.0

    async def ends(self, ids: Iterable[str]) -> Mapping[str, JobEnd]:
        """See :meth:`.Cluster.ends`."""
        numbers = sorted(set(ids))
        if not numbers or self._absent or time.monotonic() < self._away_until:
            return {}
        try:
            return await self._ask(numbers)
        except SlurmError as error:
            self._absent = _ABSENT in str(error)
            self._away_until = time.monotonic() + _AWAY_S
            logger.debug("The cluster's accounting does not tell how jobs ended: %s", error)
            return {}


def ends_of(told: str) -> dict[str, JobEnd]:
    """What ``sacct`` says, with :data:`OPTIONS`: lines of a job and its steps, of which those that are over count.

    Example:
        >>> ends_of("7|FAILED\\n7.batch|FAILED\\n7.0|OUT_OF_MEMORY\\n8|RUNNING\\n")
        {'7': JobEnd(state='FAILED', out_of_memory=True)}
        >>> ends_of("9+0|COMPLETED\\n9+0.batch|COMPLETED\\n9+1|NODE_FAIL\\n")  # a heterogeneous job
        {'9': JobEnd(state='NODE_FAIL', out_of_memory=False)}
    """
    states: dict[str, list[str]] = {}
    out_of_memory = set()
    for line in told.splitlines():
        name, _, state = line.strip().partition("|")
        part, _, step = name.partition(".")
        job = part.partition("+")[0]
        if not step and has_ended(state.partition(" ")[0]):
            states.setdefault(job, []).append(state)
        if state.partition(" ")[0] == OUT_OF_MEMORY:
            out_of_memory.add(job)
    ends = {job: next((one for one in ended if one != "COMPLETED"), ended[0]) for job, ended in states.items()}
    return {job: JobEnd(named(end), job in out_of_memory) for job, end in ends.items()}


def named(state: str) -> str:
    """A state with the name of who has cancelled the job, of whom Slurm tells the number."""
    words, by, number = state.partition(" by ")
    with contextlib.suppress(KeyError, ValueError):
        return f"{words}{by}{pwd.getpwuid(int(number)).pw_name}"
    return state
