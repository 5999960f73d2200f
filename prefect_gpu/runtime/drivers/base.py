"""What a driver is: it starts a run's process somewhere, tells when and how it ended, and can find it again.

The controller keeps no run that a driver could not give back after ``kill -9``: everything needed for
:meth:`Driver.adopt` lies in the run's folder, written by the run's own side.
"""

from __future__ import annotations

import abc
import asyncio
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prefect_gpu.runtime.telemetry.faults import Fault
    from prefect_gpu.scheduling.model.cluster import Node
    from prefect_gpu.scheduling.model.jobs import Request


@dataclass(frozen=True)
class ContainerSpec:
    """What a run's container is made of, for drivers that start containers.

    Attributes:
        image: Name of its image, which must have Python 3.9 or newer as ``python3``.
        pull: When the image is pulled: ``"missing"`` (from the node), ``"always"`` or ``"never"``.
        memory_bytes: Memory limit of the whole container; None: none.
        shm_bytes: Size of its ``/dev/shm``, which data loaders use; None: the engine's default (64 MiB).
        volumes: ``"/on/the/node:/in/the/container"``, ``":ro"`` behind it makes it read-only.
        network: The network that it joins; empty: the engine's default.
        labels: More labels.
        user: As whom its processes run, ``"1000:1000"``; empty: as the image says.
        pids: Most processes and threads; None: no limit.
        privileges: Whether it keeps all privileges that Docker gives by default.
    """

    image: str
    pull: str = "missing"
    memory_bytes: int | None = None
    shm_bytes: int | None = None
    volumes: tuple[str, ...] = ()
    network: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    user: str = ""
    pids: int | None = None
    privileges: bool = False


@dataclass(frozen=True)
class LaunchSpec:
    """One process to start.

    Attributes:
        run_id: The flow run's id; one process at a time carries it.
        run_dir: A folder that belongs to this launch alone. The driver keeps its own files in it.
        argv: The command, ``argv[0]`` being the program. ``("python", "-m", "module", ...)`` with this interpreter
            can be started warm.
        env: The whole environment of the process (nothing is inherited).
        cwd: Its working directory; one that is not absolute is an image's own.
        cpus: Core numbers that it is bound to; empty leaves it unbound.
        gpus: UUIDs of the real GPUs that it was granted, for drivers whose processes see no others than they are given.
        node: The node that it is started on, for a driver that has several.
        meets: Whether other instances of its gang have to reach it.
        told_at: Names of two variables, for port and token, by which its program learns where it is told of a
            cancellation before SIGTERM, for a driver whose runs cannot reach the worker for that; empty: it does not
            listen.
        instance_argv: The command of a gang's instances, if it is another one.
        stream_output: Whether the worker repeats the process's output.
        label: The name that streamed lines and messages call the run by.
        shares: Folders that it must see as the worker does; a driver of this machine has nothing to do for that.
        container: What its container is made of; None: the driver's default. Without meaning to a driver that starts
            processes of this machine.
    """

    run_id: str
    run_dir: Path
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: Path
    cpus: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    stream_output: bool = True
    label: str = ""
    node: str = ""
    meets: bool = False
    told_at: tuple[str, str] | tuple[()] = ()
    instance_argv: tuple[str, ...] = ()
    shares: tuple[Path, ...] = ()
    container: ContainerSpec | None = None


@dataclass(frozen=True)
class ExitReport:
    """How a process ended.

    Attributes:
        returncode: Exit code; negative is the signal that ended it (as ``subprocess`` has it); None if the process
            vanished with its supervisor, and the end is unknown (the machine restarted, say).
        max_rss_bytes: Peak resident memory of the largest process of the run, in bytes.
        cpu_seconds: CPU time of the whole run (user + system, children included).
        tail: The last lines of its output, oldest first.
        ended_at: Unix seconds, if the end was seen: a worker may come to know of it much later.
        cause: Why it ended and what to do, if the driver knows more than the return code says; else empty.
        lost: Whether its node was lost or out of reach, which says nothing of the run.
        carries_on: Whether a run that is ``preemptible`` is to carry on elsewhere, as if it had been stopped for
            others: its node was taken away as was to be expected.
        oom_kills: How many processes of its control group were killed for lack of main memory while it ran, by the
            kernel or by Slurm; None: nobody counts. Other runs may have been in that group, too.
    """

    returncode: int | None
    max_rss_bytes: int | None = None
    cpu_seconds: float | None = None
    tail: tuple[str, ...] = field(default=())
    ended_at: float | None = None
    cause: str = ""
    lost: bool = False
    carries_on: bool = False
    oom_kills: int | None = None


@dataclass(frozen=True)
class Wanted:
    """A run that waits for a place.

    Attributes:
        request: What it asks for.
        expected_s: For how long it is expected to hold its devices, seconds; None: nobody knows.
        needs_s: For so long its devices must be there, or what it did would be lost.
    """

    request: Request
    expected_s: float | None = None
    needs_s: float = 0.0


@dataclass(frozen=True)
class Coming:
    """What a driver whose nodes come and go can say to a run that waits.

    Attributes:
        words: Why it waits, or why there will never be a node for it, without a full stop.
        possible: Whether there may be a node that can hold it.
    """

    words: str
    possible: bool = True


@dataclass(frozen=True)
class Demand:
    """What a driver whose nodes come and go must know of the queue.

    Attributes:
        waiting: Runs that could start if there was a place for them.
        busy: Ids of the nodes on which something runs, or is about to.
    """

    waiting: tuple[Wanted, ...] = ()
    busy: frozenset[str] = frozenset()


class RunHandle(abc.ABC):
    """A started process."""

    run_id: str
    pid: int | str  # what Prefect is told as infrastructure_pid: a process of this machine, or node:container
    warm: bool  # whether it was started from a warm interpreter

    @abc.abstractmethod
    async def wait(self) -> ExitReport:
        """Wait until the process and everything it started are gone. May be awaited by several callers."""

    def bind(self, cpus: tuple[int, ...]) -> bool:
        """Bind everything that the run has started to these cores of its node, now. False: that cannot be done here."""
        return False

    def set_priority(self, weight: float) -> bool:
        """Give the run this share of the processor beside others; 1 is a full one.

        Returns:
            Whether it was done. It is not done where it could not be undone.
        """
        return False

    def set_duty(self, part: float) -> bool:
        """Let the run compute for this part of the time, 0 to 1, whether somebody else wants the processor or not.

        Must not leave the run standing still when the worker dies. 1 also continues a run that somebody else stopped.

        Returns:
            Whether it was done.
        """
        return False

    async def give(self, name: str, content: bytes) -> None:
        """Put a small file into :attr:`Driver.files`. One that sees the worker's files has no need of it."""
        return

    def busy_seconds(self) -> float | None:
        """Processor time of what the run has started and is still there, seconds; None: unknown."""
        return None

    async def announce_cancellation(self) -> None:
        """Tell the run that :meth:`stop`, which follows, means its cancellation, if it is the driver who can."""
        return

    async def relinquish(self) -> None:
        """Tell the run to leave it to the worker what Prefect hears of :meth:`stop`, if it is the driver who can."""
        return

    @abc.abstractmethod
    async def stop(self, grace_seconds: float) -> None:
        """Send SIGTERM, and after the grace (0: at once) SIGKILL to whatever is left; return when nothing is left."""


class Driver(abc.ABC):
    """Starts processes and finds them again. One instance serves one worker.

    Attributes:
        local: Whether runs are processes of this machine, which see its files and its channel as the worker does.
        files: The folder in which a run finds what :meth:`RunHandle.give` puts there; None: it sees the worker's.
        locks: The folder of the devices' locks, as runs see it; None: it is the worker's.
        closed_nodes: Nodes that are there and take no work now, as of the last answer of :meth:`nodes`; what runs there
            goes on.
        away: Names of nodes that belong to what is served and cannot be used now: closed, down, or out of reach. They
            may be back, so nothing is refused because there is no room without them.
        elastic: Whether its nodes come and go as they are needed: without any, it serves all the same.
        contained: Whether runs are in containers, which get nothing of the worker's machine.
        shares_files: Whether runs that are in no containers see the worker's files at the same paths.
        demand: Asked by drivers whose nodes come and go as they are needed.
        may_start: Asked, in any thread, right before something is started, by drivers whose launches take long: the
            worker may have lost the leadership since the launch began.
        on_faults: Told of what befalls GPUs of other machines, by drivers that hear of it.
        channel: Asked for the address of the channel of runs, by drivers that lead there themselves; empty: none.
    """

    local = True
    elastic = False
    contained = False
    shares_files = True
    files: Path | None = None
    locks: Path | None = None
    closed_nodes: Sequence[Node] = ()
    away: Sequence[str] = ()
    may_start: Callable[[], bool] = staticmethod(lambda: True)
    demand: Callable[[], Demand] = staticmethod(lambda: Demand())
    on_faults: Callable[[Iterable[Fault]], None] = staticmethod(lambda faults: None)
    channel: Callable[[], str] = staticmethod(lambda: "")

    async def nodes(self) -> Sequence[Node] | None:
        """The nodes that there are, once the driver has started; None: whoever made it knows."""
        return None

    def coming(self, run: Wanted) -> Coming | None:
        """What is being done for a run that waits, by drivers whose nodes come and go; None: nothing."""
        return None

    async def scope(self) -> str | None:
        """What is served, if workers with other state folders may serve it too: an Engine, a Swarm. May be asked before
        the driver has started.

        Returns:
            A name without ``:`` that every such worker gives it; None: nobody else can serve it.
        """
        return None

    async def sweep(self) -> None:
        """Remove what runs of our pool there that was neither launched nor adopted by us."""
        return

    def meeting_point(self, run_id: str, run_dir: Path, node: str = "") -> tuple[str, int]:
        """Address and port at which a launch that is about to start can be reached by the others of its gang.

        Args:
            node: Where it starts.
        """
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return "127.0.0.1", int(probe.getsockname()[1])

    async def watch_nodes(self, tell: Callable[[Sequence[Node]], None]) -> None:
        """Say which nodes there are now, and whenever that or :attr:`closed_nodes` has changed, until cancelled.

        Called once everything that is to be adopted has been, and the rest was swept away. A driver of one machine says
        nothing: whoever made it knows.
        """
        await asyncio.Event().wait()

    @abc.abstractmethod
    async def start(self) -> None:
        """Get ready (for example, warm up interpreters in the background). Returns quickly."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Let go of everything but the running processes: those go on and can be adopted."""

    @abc.abstractmethod
    async def launch(self, spec: LaunchSpec) -> RunHandle:
        """Start a process; returns as soon as it exists.

        Raises:
            LaunchError: It could not be started; nothing of it is left running.
        """

    @abc.abstractmethod
    async def adopt(self, run_id: str, run_dir: Path) -> RunHandle | None:
        """Take over a launch of an earlier worker, running or ended.

        Returns:
            A handle (whose :meth:`RunHandle.wait` returns at once if the process has ended meanwhile), or None if the
            process never started. None is final: after it, that launch can never start any more.

        Raises:
            LaunchError: It cannot be looked for now; ``away``: nothing can be, anywhere.
        """


class LaunchError(RuntimeError):
    """A process could not be started. The message says why and what to do.

    It does not name the run: whoever passes it on does.

    Attributes:
        explains: Whether the message is all that its user needs; else it is one of a program that cannot begin.
        away: Whether it says nothing of the run: its node was out of reach, or its container was ended from outside. It
            may well start on another node.
        no_room: Whether a disk of the worker's is full. The run can start once there is room again.
    """

    explains = False
    away = False
    no_room = False
