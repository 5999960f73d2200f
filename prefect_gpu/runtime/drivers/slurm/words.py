"""What the worker and an agent say to each other, beside what the channel itself says."""

from __future__ import annotations

import itertools
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect_gpu.runtime.drivers.base import LaunchError, LaunchSpec

# Events, of the agent.
ANSWER = "answer"  # {"id", ...}: to what it was asked
EXIT = "exit"  # {"run_dir", "returncode", "max_rss_bytes", "cpu_seconds", "ended_at"}
FAULTS = "faults"  # {"faults": [{"device", "code", "words", "serious"}]}: what is wrong with GPUs of its node
ENDING = "ending"  # {}: Slurm has told it that its allocation ends
OUTPUT = "output"  # {"run_dir", "at", "block"}: a piece of what a run has written, where the worker does not see it

# Instructions, of the worker, each with ":" and a number or a run's folder behind it.
DESCRIBE = "describe"  # {} -> {"host", "job", "address", "cpus", "devices", "adjustable"}
LAUNCH = "launch"  # {"run_dir"}, where SPEC lies, or {"run_dir", "spec"} -> {"pid", "warm"}
ADOPT = "adopt"  # {"run_id", "run_dir"} -> {"pid", "warm"}, or {} if it never started
STOP = "stop"  # {"run_dir", "grace_seconds"} -> {}
CANCELLED = "cancelled"  # {"run_dir"} -> {}: the run is told that the stop that follows is its cancellation
RELINQUISHED = "relinquished"  # {"run_dir"} -> {}: the run is told that the worker tells Prefect of the stop
BIND = "bind"  # {"cpus"}
PRIORITY = "priority"  # {"weight"}
DUTY = "duty"  # {"part"}
FORGET = "forget"  # {}: the worker has all that there is of a run that has ended
GIVE = "give"  # {"run_dir", "name", "content"} -> {}: a small file, for the run's folder

# Files.
AGENTS = "agents.json"  # beside the allocations' records: where the worker is, and how runs are started
SPEC = "spec.json"  # in a run's folder: what is to be started; the agent removes it
PLACE = "place.json"  # in a run's folder: the node that may start it, and no other one
CUT_OFF = "cut-off"  # in a run's folder: its allocation ended under it

ENDED_BY_SLURM = (None, -signal.SIGTERM, -signal.SIGKILL, 128 + signal.SIGTERM)
"""How processes end to which Slurm sends what ends an allocation."""

# Where nodes do not see the worker's folders, these stand for the node's own.
RUN_FOLDER = "/@run"
NODE_FOLDER = "/@node"


@dataclass(frozen=True)
class Tunnel:
    """How nodes reach what they cannot connect to by themselves: by ssh, to ports of their own (:attr:`Record.ports`).

    Attributes:
        via: Where ssh logs in: for the node, the machine that reaches the worker's; for the worker, what it goes
            through on its way to the node, or nothing.
        opened_by: Who starts ssh: ``node`` or ``worker``.
        options: More of ssh's options.
        targets: What the ports lead to, ``HOST:PORT`` as the end of ssh calls it that is not the node's: the hub, the
            channel of runs and Prefect's server; empty: that one is not led to.
        server: ``HOST:PORT`` of Prefect's server as runs would call it without a tunnel.
    """

    via: str = ""
    opened_by: str = "node"
    options: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    server: str = ""


@dataclass(frozen=True)
class Settings:
    """What every agent of a pool is told, by :data:`AGENTS`, which each worker writes anew.

    Attributes:
        url: The hub's.
        warm, preload, after_fork, environ, umask: See :class:`.ProcessDriver`.
        python: The worker's interpreter, which stands for the agent's own in what is to be started.
        own: Names of variables of which the agent's own values count.
        tunnel: How the worker is reached; None: nodes can connect to it.
        alone_s: An agent without a run, and without a worker for so long, gives its node back.
    """

    url: str
    warm: bool = False
    preload: tuple[str, ...] = ()
    after_fork: str | None = None
    environ: dict[str, str] | None = None
    umask: int = -1
    alone_s: float = 120.0
    python: str = ""
    own: tuple[str, ...] = ()
    tunnel: Tunnel | None = None


@dataclass(frozen=True)
class Nodes:
    """Nodes of an allocation that are alike, as their agents are told of it.

    Attributes:
        count: How many there are.
        virtual_devices, virtual_device_memory_bytes: See :class:`.Part`.
    """

    count: int = 1
    virtual_devices: int = 0
    virtual_device_memory_bytes: int = 8 << 30


@dataclass(frozen=True)
class Record:
    """What is kept of an allocation, from before it is submitted until it is over.

    Attributes:
        token: What its agents show.
        shape: Name of its shape.
        parts: Its nodes, each of which has an agent.
        job: Slurm's number; empty: it is not known yet.
        run: The run that it is for, where each has its own; empty: none has begun in it, or it is for several.
        started_at: Unix seconds at which Slurm gave it its nodes; None: it has not been seen to have them.
        ports: Of its nodes, for a tunnel: they lead to its :attr:`Tunnel.targets`, as long as it is there.
        shared: Whether its nodes see the worker's folders.
        asked: See :attr:`.Shape.asked`; empty: an earlier version did not write it down.
    """

    token: str
    shape: str
    parts: tuple[Nodes, ...] = (Nodes(),)
    job: str = ""
    run: str = ""
    started_at: float | None = None
    ports: tuple[int, ...] = ()
    shared: bool = True
    asked: str = ""

    @property
    def agents(self) -> int:
        """How many agents it has."""
        return sum(part.count for part in self.parts)

    def part_of(self, rank: int) -> int:
        """The number of the part that an agent's node belongs to; ranks go through one part after another."""
        ends = itertools.accumulate(part.count for part in self.parts)
        return next((number for number, end in enumerate(ends) if rank < end), 0)


def agent_id(allocation: str, rank: int) -> str:
    """What an agent is called at the hub."""
    return f"{allocation}.{rank}"


def write_secret(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file in one step that only this user can read."""
    write_secret_bytes(path, json.dumps(content).encode())


def write_secret_bytes(path: Path, content: bytes) -> None:
    """Write a file in one step that only this user can read."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    temporary.replace(path)


def spec_as_json(spec: LaunchSpec) -> dict[str, Any]:
    """What an agent must know of a launch. An empty working directory is one of the launch's own."""
    return {
        "run_id": spec.run_id,
        "argv": list(spec.argv),
        "env": spec.env,
        "cwd": "" if spec.cwd == Path() else str(Path(spec.cwd).absolute()),
        "cpus": list(spec.cpus),
        "label": spec.label,
        "told_at": list(spec.told_at),
    }


def error_as_json(error: LaunchError) -> dict[str, Any]:
    """A refusal, with what it says beside its message."""
    return {"error": str(error)[:4000], "explains": error.explains, "away": error.away, "no_room": error.no_room}


def error_of(told: dict[str, Any]) -> LaunchError:
    """The refusal that an agent has told of."""
    error = LaunchError(str(told["error"]))
    error.explains, error.away = bool(told.get("explains")), bool(told.get("away"))
    error.no_room = bool(told.get("no_room"))
    return error
