"""Who has claimed a run: the words that a claim leaves in Prefect, and what a run's history says of its claims."""

from __future__ import annotations

from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import StateType

from prefect_gpu.worker.server.states import CLAIMED


def claim_words(worker: str, folder: str, scope: str = "") -> str:
    """What the state of a run says that a worker has claimed.

    Args:
        folder: Name of the launch's folder.
        scope: See :meth:`prefect_gpu.runtime.drivers.base.Driver.scope`; empty for a process of this machine.
    """
    return f"{CLAIMED} {worker} ({folder}" + (for_scope(scope) if scope else ")")


def claimed_for(message: str) -> str:
    """The folder that the words of a claim name; empty: they are no such words.

    Example:
        >>> claimed_for(claim_words("gpu (1)", "the-launch-1", "engine-7"))
        'the-launch-1'
    """
    return message.rpartition(" (")[2].partition(")")[0] if message.startswith(CLAIMED) else ""


def for_scope(scope: str) -> str:
    """The part of a claim that says for which scope it is."""
    return f") for {scope}."


class Claims:
    """Reads the claims of runs from their histories."""

    def __init__(self, client: PrefectClient) -> None:
        self._client = client

    async def last(self, run_id: UUID) -> str:
        """The words of the run's last claim; empty if there is none."""
        history = await self._client.read_flow_run_states(run_id)
        return next((s.message for s in reversed(history) if s.type is StateType.PENDING and s.message), "")

    async def last_has(self, run_id: UUID, words: str) -> bool:
        """Whether these words are part of the last claim of the run."""
        return words in await self.last(run_id)

    async def is_anew(self, run_id: UUID, folder: str) -> bool:
        """Whether the run was claimed for another launch after that of this folder.

        Then that launch was settled. Its worker was killed before it could forget it, and the run is another's by now.
        """
        return claimed_for(await self.last(run_id)) not in ("", folder)

    async def worker(self, run_id: UUID) -> str:
        """The name of the worker that claimed the run last; empty if nobody did."""
        return (await self.last(run_id)).removeprefix(f"{CLAIMED} ").rpartition(" (")[0]

    async def began(self, run_id: UUID, folder: str) -> bool:
        """Whether the run has run since its last claim, which was for that folder."""
        ran = False
        for state in reversed(await self._client.read_flow_run_states(run_id)):
            if state.type is StateType.PENDING and state.message:
                return ran and folder in state.message
            ran = ran or state.type is StateType.RUNNING
        return False
