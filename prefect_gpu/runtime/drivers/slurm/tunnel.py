"""A tunnel by ssh that is kept open: its program is started, and started again whenever it has ended.

Whoever can connect to the other side keeps it: the agent on a node that reaches a login node, or else the worker, if
only that can connect to the nodes. Either way its ports are the node's own, so nothing else differs.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import random
import signal
import time
from collections.abc import Sequence
from logging import Logger, LoggerAdapter
from typing import Any

from prefect_gpu.runtime.drivers.slurm.words import Tunnel

HUB, CHANNEL, SERVER = range(3)
"""What the ports of an allocation lead to, in their order."""

OPENS_S = 30.0
"""Whoever has never been reached gives up after so many seconds without a tunnel."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_STEADY_S = 20.0  # longer than it takes to find out that there is no connection: one that lasts so long is one
_SAID_CHARACTERS = 500
_PR_SET_PDEATHSIG = 1
# Ssh takes the first value of each option that it is given: an operator's own are in between.
_ALWAYS = ("-N", "-T", "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes", "-o", "ControlPath=none")
_BY_DEFAULT = ("-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")
_prctl = ctypes.CDLL(None).prctl


def from_node(tunnel: Tunnel, ports: Sequence[int]) -> list[str]:
    """The program by which a node opens it.

    Example:
        >>> from_node(Tunnel(via="login1", targets=("10.0.0.1:4290", "", "")), (20001, 20002, 20003))[-4:]
        ['-L', '127.0.0.1:20001:10.0.0.1:4290', '--', 'login1']
    """
    return _ssh(tunnel, _forwards("-L", tunnel, ports), tunnel.via)


def from_worker(tunnel: Tunnel, ports: Sequence[int], host: str) -> list[str]:
    """The program by which the worker opens it, for one of its nodes.

    Example:
        >>> from_worker(Tunnel(via="gate", targets=("127.0.0.1:4290", "", "")), (20001, 20002, 20003), "node7")[-6:]
        ['-J', 'gate', '-R', '127.0.0.1:20001:127.0.0.1:4290', '--', 'node7']
    """
    jump = ["-J", tunnel.via] if tunnel.via else []
    return _ssh(tunnel, [*jump, *_forwards("-R", tunnel, ports)], host)


def _ssh(tunnel: Tunnel, forwards: Sequence[str], host: str) -> list[str]:
    return ["ssh", *_ALWAYS, *tunnel.options, *_BY_DEFAULT, *forwards, "--", host]


def _forwards(option: str, tunnel: Tunnel, ports: Sequence[int]) -> list[str]:
    leads = [(port, target) for port, target in zip(ports, tunnel.targets, strict=False) if target]
    return [word for port, target in leads for word in (option, f"127.0.0.1:{port}:{target}")]


class SshTunnel:
    """See the module.

    Args:
        name: What it leads to, as people would call it.

    Attributes:
        said: What ssh said last.
    """

    def __init__(self, name: str, logger: Logger | LoggerAdapter[Any]) -> None:
        self.name, self.said = name, ""
        self._logger = logger
        self._command: list[str] = []
        self._aimed = asyncio.Event()
        self._program: asyncio.subprocess.Process | None = None
        self._began = 0.0
        self._failing_since: float | None = None

    def aim(self, command: Sequence[str]) -> None:
        """Keep this program running from now on, and no other one; an empty one: none."""
        if list(command) == self._command:
            return
        self._command = list(command)
        self._aimed.set()
        self._kill()

    @property
    def failing_s(self) -> float:
        """Seconds since it was last open; 0: it is, as far as one can know, or is being opened for the first time."""
        steady = self._program is not None and time.monotonic() - self._began > _STEADY_S
        return 0.0 if steady or self._failing_since is None else time.monotonic() - self._failing_since

    @property
    def trouble(self) -> str:
        """Why it is not open, in a sentence without a full stop."""
        return f"the tunnel by ssh to {self.name} does not open: {self.said.rstrip('.')}"

    async def run(self) -> None:
        """Keep it open until cancelled; then it is closed."""
        pause, told = _FIRST_PAUSE_S, ""
        while True:
            while not self._command:
                self._aimed.clear()
                await self._aimed.wait()
            command, self._began = self._command, time.monotonic()
            last = await self._once(command)
            now = time.monotonic()
            if command is not self._command:  # it was ended for another one
                pause = _FIRST_PAUSE_S
                continue
            self.said = last
            if now - self._began > _STEADY_S:
                pause, told, self._failing_since = _FIRST_PAUSE_S, "", None
            if self._failing_since is None:
                self._failing_since = now
            if last != told:  # not again and again
                told = last
                self._logger.warning("The tunnel by ssh to %s has ended, and is opened again: %s", self.name, told)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # many nodes do not come back in the same moment
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    async def _once(self, command: Sequence[str]) -> str:
        """Run it once. Returns what it said last, or what else there is to say of its end."""
        try:
            self._program = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env={name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"},  # not for ssh
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        except FileNotFoundError:
            return "there is no program `ssh` on this machine"
        except OSError as error:
            return str(error)
        try:
            assert self._program.stderr is not None
            rest = last = ""
            while block := await self._program.stderr.read(4096):
                *lines, rest = (rest + block.decode(errors="replace")).replace("\r", "\n").split("\n")
                rest = rest[-_SAID_CHARACTERS:]
                said = [line.strip() for line in (*lines, rest) if line.strip()]
                if said:
                    last = self.said = said[-1][:_SAID_CHARACTERS]
            code = await self._program.wait()
            return last or f"it ended with code {code}, and said nothing"
        finally:
            self._kill()
            with contextlib.suppress(ProcessLookupError):
                await self._program.wait()
            self._program = None

    def _kill(self) -> None:
        if self._program is not None and self._program.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._program.kill()


def _end_with_parent() -> None:
    """In the program's process: it ends as ours does, however that ends, and not by what Slurm sends to a whole job.

    Until the end of its allocation a run may have something to say.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
