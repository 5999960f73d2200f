"""How the nodes of allocations reach the worker, as its own side sees that: by themselves, or through a tunnel."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Mapping
from logging import Logger, LoggerAdapter
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from prefect_gpu.runtime.drivers.slurm import words
from prefect_gpu.runtime.drivers.slurm.cluster import hostnames
from prefect_gpu.runtime.drivers.slurm.pilots import Pilot
from prefect_gpu.runtime.drivers.slurm.tunnel import CHANNEL, SERVER, SshTunnel, from_worker
from prefect_gpu.training.protocol import ENV_CHANNEL, ENV_CHANNEL_FILE

_OF_SERVER = ("PREFECT_API_URL", "PREFECT_SERVER_UI_API_URL")
_TROUBLED_S = 5.0  # a tunnel that has not been open for so long is told of


class Reach:
    """See the module.

    Args:
        tunnel: What the operator says, its last target being Prefect's server; None: there is none.
    """

    def __init__(self, tunnel: words.Tunnel | None, logger: Logger | LoggerAdapter[Any]) -> None:
        self._tunnel, self._logger = tunnel, logger
        self._open: dict[str, tuple[SshTunnel, asyncio.Task[None]]] = {}  # by agent
        self._trouble = ""

    def begin(self, hub: str, channel: str) -> words.Tunnel | None:
        """What agents are told of it.

        Args:
            hub, channel: URLs at which the two are reached from its other end; empty: there is none.
        """
        if self._tunnel is not None:
            server = self._tunnel.targets[SERVER] if self._tunnel.targets else ""
            host, port = urlsplit(hub).netloc.rpartition(":")[0], urlsplit(channel).port if channel else None
            targets = (urlsplit(hub).netloc, f"{host}:{port}" if port else "", server)
            self._tunnel = dataclasses.replace(self._tunnel, targets=targets)
        return self._tunnel

    async def keep(self, pilots: Iterable[Pilot]) -> None:
        """Have a tunnel to each node of these allocations that needs one of ours, and no other one."""
        tunnel = self._tunnel
        if tunnel is None or tunnel.opened_by != "worker":
            return
        wanted = set()
        for pilot in pilots:
            if pilot.job is None or not pilot.job.runs or not pilot.record.ports:
                continue
            for rank, host in enumerate(hostnames(pilot.job.nodes)):
                wanted.add(agent := words.agent_id(pilot.name, rank))
                if agent not in self._open:
                    ssh = SshTunnel(f"node {host}", self._logger)
                    ssh.aim(from_worker(tunnel, pilot.record.ports, host))
                    self._open[agent] = ssh, asyncio.create_task(ssh.run(), name=f"tunnel {host}")
        over = self._open.keys() - wanted
        failed = [ssh.trouble for agent in over if (ssh := self._open[agent][0]).failing_s]
        self._trouble = failed[0] if failed else self._trouble  # which is why its allocation is over, most likely
        await self._end(over)

    async def close(self) -> None:
        """Close all tunnels of ours. The nodes' own go on."""
        await self._end(set(self._open))

    def works(self) -> None:
        """A node has been heard of: whatever was wrong with others before is so no more."""
        self._trouble = ""

    @property
    def trouble(self) -> str:
        """Why nodes are not reached, without a full stop; empty: they are, or that is the nodes' own matter."""
        failing = [ssh.trouble for ssh, _ in self._open.values() if ssh.failing_s > _TROUBLED_S]
        self._trouble = failing[0] if failing else self._trouble
        return self._trouble[:1].upper() + self._trouble[1:]

    def environment(self, env: Mapping[str, str], record: words.Record) -> dict[str, str]:
        """What a run in an allocation is told, with what leads through the tunnel."""
        env, tunnel = dict(env), self._tunnel
        if tunnel is None or not record.ports:
            return env
        if tunnel.targets[CHANNEL] and ENV_CHANNEL in env:
            env[ENV_CHANNEL] = f"ws://127.0.0.1:{record.ports[CHANNEL]}"
            env.pop(ENV_CHANNEL_FILE, None)  # the next worker, wherever it is, is at the same port
        if tunnel.targets[SERVER]:
            for name in _OF_SERVER:
                if at(env.get(name, "")) == tunnel.server:
                    env[name] = _moved(env[name], f"127.0.0.1:{record.ports[SERVER]}")
        return env

    async def _end(self, agents: Iterable[str]) -> None:
        ended = [self._open.pop(agent)[1] for agent in list(agents)]
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)


def at(url: str) -> str:
    """Host and port of a URL, ``HOST:PORT``; empty: it names no host.

    Example:
        >>> at("http://user@login1:4200/api"), at("https://prefect.lab/api"), at("http://[::1]:4200/api"), at("")
        ('login1:4200', 'prefect.lab:443', '[::1]:4200', '')
    """
    parts = urlsplit(url)
    if not parts.hostname:
        return ""
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def _moved(url: str, to: str) -> str:
    parts = urlsplit(url)
    user, mark, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user}{mark}{to}"))
