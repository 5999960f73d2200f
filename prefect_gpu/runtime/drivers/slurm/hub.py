"""The worker's side of the agents: they connect to it, are asked, and answer.

An agent uses the channel of runs (:mod:`prefect_gpu.runtime.channel`), with its token, its order and its patience: what
it has to say is kept until it has been heard, and it finds the next worker by itself. It never has to be reached.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from logging import Logger, LoggerAdapter
from typing import Any

from prefect_gpu.runtime.channel import ChannelServer
from prefect_gpu.runtime.drivers.base import LaunchError
from prefect_gpu.runtime.drivers.slurm import words


class AgentLost(LaunchError):
    """The agent is no more, and neither is its allocation."""

    away = True


class AgentHub:
    """Asks the agents, and hears what they report.

    Args:
        host, port, advertise: See :class:`.ChannelServer`.
        on_event: Called with agent, kind and data of what is no answer.
    """

    def __init__(
        self,
        on_event: Callable[[str, str, dict[str, Any]], None],
        *,
        host: str,
        port: int,
        advertise: str | None,
        logger: Logger | LoggerAdapter[Any],
    ) -> None:
        self._on_event = on_event
        self._server = ChannelServer(self._heard, host=host, port=port, advertise=advertise, logger=logger)
        self._agents: set[str] = set()  # those that are admitted
        self._asked: dict[str, tuple[str, asyncio.Future[dict[str, Any]]]] = {}
        self._telling: set[asyncio.Future[bool]] = set()

    async def start(self) -> None:
        """Begin to listen. Agents that connect wait until :meth:`open`.

        Raises:
            OSError: The address is in use, or is not this machine's.
        """
        await self._server.start(waiting=True)

    def open(self) -> None:
        """From now on it is known which agents there are: whoever is none of them is told to end."""
        self._server.open()

    async def close(self) -> None:
        """Stop listening. The agents go on, and look for the next worker."""
        await self._server.close()
        for _, answer in self._asked.values():
            answer.cancel()

    @property
    def url(self) -> str:
        """Where agents reach it."""
        return self._server.url

    def admit(self, agent: str, token: str) -> None:
        """Let an agent connect with its token."""
        self._agents.add(agent)
        self._server.admit(agent, token)

    def drop(self, agent: str) -> None:
        """The agent's allocation is over. Questions to it fail from now on, also those that were asked before."""
        self._agents.discard(agent)
        self._server.revoke(agent)
        for _, answer in [one for one in self._asked.values() if one[0] == agent]:
            if not answer.done():
                answer.set_exception(_lost())

    def connected(self, agent: str) -> bool:
        """Whether the agent is connected, as far as anybody can know."""
        return self._server.connected(agent)

    def must_be_there(self, agent: str) -> None:
        """Whoever waits for an agent that is no more would wait for ever.

        Raises:
            AgentLost: Its allocation is over.
        """
        if agent not in self._agents:
            raise _lost()

    async def ask(self, agent: str, what: str, **data: Any) -> dict[str, Any]:
        """Ask, as soon as the agent is connected, and wait for its answer.

        Raises:
            LaunchError: The agent's own: it could not do it.
            AgentLost: Its allocation has ended, or does so meanwhile.
        """
        self.must_be_there(agent)
        number = secrets.token_hex(8)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked[number] = agent, answer
        try:
            # Each its own kind: of one kind, only the newest would be kept for an agent that is away.
            await self._server.instruct(agent, f"{what}:{number}", data)
            told = await answer
        finally:
            del self._asked[number]
        if "error" in told:
            raise words.error_of(told)
        return told

    def tell(self, agent: str, what: str, about: str, **data: Any) -> None:
        """Tell it something that only the newest word about counts of. Returns at once."""
        telling = asyncio.ensure_future(self._server.instruct(agent, f"{what}:{about}", data))
        self._telling.add(telling)
        telling.add_done_callback(self._telling.discard)

    def _heard(self, agent: str, kind: str, at: float, data: dict[str, Any]) -> None:
        if kind == words.ANSWER:
            _, answer = self._asked.get(str(data.get("id")), ("", None))
            if answer is not None and not answer.done():
                answer.set_result(data)
        else:
            self._on_event(agent, kind, data)


def _lost() -> AgentLost:
    return AgentLost("its allocation is over")
