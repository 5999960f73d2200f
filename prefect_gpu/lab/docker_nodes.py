"""Several Docker nodes on one Linux machine, for the cluster demo, the benchmarks and the tests.

Each node is a network namespace with an Engine of its own; a bridge joins them and the machine. With racks, each rack
has a bridge, and cables that are as slow as one likes join them. What an earlier lab left behind is removed first, and
everything is found again by its name: starting and stopping may be repeated. Needs root, Debian's ``docker.io``,
``iproute2`` and ``iptables``, and ``debootstrap`` for an image without a registry.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import docker

from prefect_gpu.lab.sandbox import Process, SandboxError

if TYPE_CHECKING:
    from docker import DockerClient

NEEDED = ("dockerd", "ip", "iptables", "nsenter")
SHAPING = ("tc",)  # for links of a limited bandwidth
PYTHON = ("python3", "python-is-python3")
_SWARM_PORT = 2377
_DAEMONS = ("dockerd", "containerd", "docker-proxy", "runc")
_KILLED_S = 10.0
_AGAIN_S = 0.05
_QUEUE_S = 0.05  # a packet waits for so long at a narrow link, then it is dropped
_BURST_S = 0.004  # of a link's bandwidth at once: one tick of a slow kernel clock
_LEAST_BURST = 2**17  # two of the largest packets that are cut up late (GSO)


def missing(*programs: str) -> list[str]:
    """What this machine lacks for a lab, as people would say it; empty if it has all.

    Args:
        programs: Needed instead of :data:`NEEDED`, which includes those for Engines.
    """
    lacking = [f"the program {name}" for name in programs or NEEDED if _which(name) is None]
    return lacking + (["root's rights"] if os.geteuid() != 0 else [])


@dataclass
class LabNode:
    """One node.

    Attributes:
        name: Its name, its namespace's name and its Engine's host name.
        address: Its address on the bridge.
        url: Its Engine's endpoint.
        rack: Its rack's name; empty in a lab without racks.
        options: More options for its Engine, from its next start on.
        path: A folder in which its Engine looks for programs first.
    """

    name: str
    address: str
    folder: Path
    process: Process | None = None
    rack: str = ""
    options: tuple[str, ...] = ()
    path: Path | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.folder / 'docker.sock'}"


class Lab:
    """Nodes on this machine.

    Args:
        folder: Where their data go. Short: sockets have short paths.
        nodes: How many.
        prefix: Names begin with it; two labs at once need two prefixes. At most 8 letters.
        subnet: First three numbers of the nodes' addresses; two labs at once need two subnets.
        racks: How many racks the nodes are in, in order and as evenly as it goes. The machine itself is in the first.
        link_bps: Bandwidth of each node's cable, in each direction, in bytes per second; 0: unlimited.
        uplink_bps: Likewise of the cable between a rack and the first one.
        engines: Whether each node has an Engine; without, it is a network namespace and nothing else.

    Example:
        >>> with Lab(Path("/var/tmp/lab"), nodes=3) as lab:                # doctest: +SKIP
        ...     print(lab.nodes[0].url)
    """

    def __init__(
        self,
        folder: Path,
        nodes: int = 1,
        prefix: str = "pgl",
        subnet: str = "10.77.0",
        *,
        racks: int = 1,
        link_bps: float = 0.0,
        uplink_bps: float = 0.0,
        engines: bool = True,
    ) -> None:
        if not 1 <= racks <= nodes:
            raise ValueError(f"racks={racks}: give 1 or more, and no more than there are nodes ({nodes})")
        self.folder = folder
        self.bridge = f"{prefix}br"
        self.gateway = f"{subnet}.1"
        self.link_bps = link_bps
        self.uplink_bps = uplink_bps
        self._engines = engines
        self._bridges = {
            f"rack{rack}": self.bridge if rack == 1 else f"{prefix}b{rack}" for rack in range(1, racks + 1)
        }
        self.nodes = [
            LabNode(
                f"{prefix}{number}",
                f"{subnet}.{10 + number}",
                folder / f"n{number}",
                rack=f"rack{1 + (number - 1) * racks // nodes}" if racks > 1 else "",
            )
            for number in range(1, nodes + 1)
        ]

    def __enter__(self) -> Lab:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start all nodes.

        Raises:
            SandboxError: Something is missing on this machine, or a node does not start.
        """
        needed = (*(NEEDED if self._engines else NEEDED[1:]), *(SHAPING if self.link_bps or self.uplink_bps else ()))
        if lacking := missing(*needed):
            raise SandboxError(f"A lab needs {', '.join(lacking)}: apt-get install docker.io iproute2 iptables")
        self.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            for bridge in self._bridges.values():
                self._add_bridge(bridge)
            _run("ip", "address", "add", f"{self.gateway}/24", "dev", self.bridge)
            for rule in self._rules:
                _run("iptables", "-I", *rule)
            for node in self.nodes:
                self._join(node)
            if self._engines:
                with ThreadPoolExecutor() as side_by_side:  # half of an Engine's start is waiting
                    list(side_by_side.map(self.start_engine, self.nodes))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop all nodes and remove what is theirs, but the data of their engines."""
        for node in self.nodes:
            self.stop_engine(node)
            _try("ip", "link", "delete", f"{node.name}h")  # a process that is left would keep the namespace's end
            _try("ip", "netns", "delete", node.name)
        for bridge in self._bridges.values():
            _try("ip", "link", "delete", f"{bridge}u")
            _try("ip", "link", "delete", bridge)
        for rule in self._rules:
            while _try("iptables", "-D", *rule):
                pass

    def join_swarm(self, labels: Mapping[str, Mapping[str, str]] | None = None) -> None:
        """Make the nodes one Swarm, with the first as its manager.

        Each is labelled with its Engine's endpoint and, if there are racks, with its rack.

        Args:
            labels: More labels, by the node's name.
        """
        clients = [docker.DockerClient(base_url=node.url) for node in self.nodes]
        manager, (first, *others) = clients[0], self.nodes
        manager.swarm.init(advertise_addr=first.address, listen_addr=f"{first.address}:{_SWARM_PORT}")
        token = manager.swarm.attrs["JoinTokens"]["Worker"]
        for node, client in zip(others, clients[1:], strict=True):
            client.swarm.join(
                remote_addrs=[f"{first.address}:{_SWARM_PORT}"],
                join_token=token,
                advertise_addr=node.address,
                listen_addr=f"{node.address}:{_SWARM_PORT}",
            )
        known = {node.name: _labels(node) for node in self.nodes}
        for member in manager.nodes.list():
            name = member.attrs["Description"]["Hostname"]
            own = {**known[name], **((labels or {}).get(name) or {})}
            member.update({**member.attrs["Spec"], "Labels": own})
        for client in clients:
            client.close()

    def start_engine(self, node: LabNode) -> None:
        """Start a node's Engine, with what it had before.

        Raises:
            SandboxError: It does not start.
        """
        node.folder.mkdir(parents=True, exist_ok=True)
        for left in ("docker.pid", "docker.sock"):
            (node.folder / left).unlink(missing_ok=True)
        log = self.folder / f"{node.name}.log"
        log.unlink(missing_ok=True)  # it would say of the Engine before that it listens
        command = ["nsenter", f"--net=/var/run/netns/{node.name}", "unshare", "--uts", "sh", "-c"]
        engine = (f"hostname {node.name}; exec dockerd --host={node.url} --data-root={node.folder / 'data'} "
                  f"--exec-root={node.folder / 'exec'} --pidfile={node.folder / 'docker.pid'} "
                  f"{shlex.join(node.options)}")  # fmt: skip
        env = _environment()
        if node.path is not None:
            env["PATH"] = f"{node.path}:{env['PATH']}"
        node.process = Process([*command, engine], log=log, env=env, cwd=self.folder)
        node.process.wait_for_output("API listen on", timeout_s=90.0)

    def stop_engine(self, node: LabNode) -> None:
        """End a node's Engine and its containers at once, as if its power were cut; one that an earlier lab left, too.

        To stop them nicely takes far longer.
        """
        if node.process is not None:
            node.process.kill()
            node.process = None
        # One that is killed may be about to mount something, or to start another one: until nothing is left. What is
        # mounted too late to be seen keeps its folder from being removed; where there is no folder, nothing mounts.
        end, state = time.monotonic() + _KILLED_S, node.folder / "exec"
        while (pids := self.pids_of(node)) or _mounts_in(node.folder) or state.exists():
            _signal(pids, signal.SIGKILL)
            for mount in _mounts_in(node.folder):
                _try("umount", "--lazy", mount)
            shutil.rmtree(state, ignore_errors=True)
            if time.monotonic() > end:
                return
            time.sleep(_AGAIN_S)

    def set_link(self, node: LabNode, *, up: bool) -> None:
        """Pull a node's cable, or plug it in again. The Engine's socket is a file, and can be reached all the time."""
        _run("ip", "link", "set", f"{node.name}h", "up" if up else "down")

    def freeze(self, node: LabNode) -> list[int]:
        """Let everything on a node stand still. Returns the processes, for :meth:`thaw`."""
        return _signal(self.pids_of(node), signal.SIGSTOP)

    def thaw(self, pids: Iterable[int]) -> None:
        """Let go on what was frozen, if it is still there."""
        _signal(pids, signal.SIGCONT)

    def pids_of(self, node: LabNode) -> list[int]:
        """All processes of a node: its Engine's, and those of its containers."""
        return _pids_of(node.folder)

    @property
    def _rules(self) -> list[tuple[str, ...]]:
        return [("FORWARD", side, bridge, "-j", "ACCEPT") for bridge in self._bridges.values() for side in ("-i", "-o")]

    def _add_bridge(self, bridge: str) -> None:
        """Make a rack's bridge and, unless it is the first, the cable from there to the first."""
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "link", "set", bridge, "up")
        if bridge == self.bridge:
            return
        near, far = f"{bridge}u", f"{bridge}d"
        _run("ip", "link", "add", near, "type", "veth", "peer", "name", far)
        for end, to in ((near, bridge), (far, self.bridge)):
            _run("ip", "link", "set", end, "master", to, "up")
            _limit(self.uplink_bps, "dev", end)

    def _join(self, node: LabNode) -> None:
        """Make a node's namespace, and a cable from it to its bridge."""
        outer = f"{node.name}h"
        _run("ip", "netns", "add", node.name)
        _run("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", node.name)
        _run("ip", "link", "set", outer, "master", self._bridges.get(node.rack, self.bridge), "up")
        _limit(self.link_bps, "dev", outer)
        _limit(self.link_bps, "dev", "eth0", namespace=node.name)
        for words in (
            ("address", "add", f"{node.address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
            ("route", "add", "default", "via", self.gateway),
            # A name server that cannot be reached from here would make each look-up hang for twenty seconds.
            *(("route", "replace", "unreachable", server) for server in _name_servers()),
        ):
            _run("ip", "-n", node.name, *words)


def debian_image(client: DockerClient, name: str, cache: Path, packages: tuple[str, ...] = PYTHON) -> None:
    """Put a small Debian image on an Engine, made on this machine, where images cannot be pulled.

    Args:
        name: The image's name.
        cache: The file that keeps it for the next Engine (a tar archive of some 100 MB); one for each set of packages.
        packages: What it has beside Debian's least.

    Raises:
        SandboxError: It cannot be made.
    """
    if not cache.exists():
        root = cache.with_suffix(f".{os.getpid()}.root")
        shutil.rmtree(root, ignore_errors=True)
        release = next(
            (line.partition("=")[2].strip('"') for line in Path("/etc/os-release").read_text().splitlines()
             if line.startswith("VERSION_CODENAME=")), "stable",
        )  # fmt: skip
        _run("debootstrap", "--variant=minbase", f"--include={','.join(packages)}", release, str(root))
        shutil.rmtree(root / "var" / "cache" / "apt", ignore_errors=True)
        temporary = cache.with_suffix(f".{os.getpid()}.tmp")
        _run("tar", "-C", str(root), "-cf", str(temporary), ".")
        temporary.replace(cache)
        shutil.rmtree(root, ignore_errors=True)
    repository, _, tag = name.partition(":")
    client.api.import_image_from_file(str(cache), repository=repository, tag=tag or "latest")


def _signal(pids: Iterable[int], number: signal.Signals) -> list[int]:
    """Send a signal; returns those that were there."""
    sent = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            sent.append(pid)
    return sent


def _labels(node: LabNode) -> dict[str, str]:
    racks = {"prefect-gpu.rack": node.rack} if node.rack else {}
    return {"prefect-gpu.endpoint": node.url, **racks}


def _limit(bps: float, *where: str, namespace: str = "") -> None:
    """Limit what leaves one end of a cable to so many bytes per second."""
    if not bps:
        return
    burst = max(_LEAST_BURST, round(bps * _BURST_S))
    shape = ("tbf", "rate", f"{round(bps)}bps", "burst", str(burst), "latency", f"{_QUEUE_S * 1000:.0f}ms")
    _run("tc", *(("-n", namespace) if namespace else ()), "qdisc", "add", *where, "root", *shape)


def _which(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=_environment())
    if done.returncode:
        raise SandboxError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")


def _try(*command: str) -> bool:
    try:
        _run(*command)
    except (SandboxError, OSError):
        return False
    return True


def _name_servers() -> list[str]:
    try:
        lines = Path("/etc/resolv.conf").read_text().splitlines()
    except OSError:
        return []
    words = [line.split() for line in lines]
    return [word[1] for word in words if len(word) > 1 and word[0] == "nameserver" and "." in word[1]]


def _pids_of(folder: Path) -> list[int]:
    """What belongs to the Engine of a node: its daemons, their helpers, and the processes of its containers."""
    ids = [entry.name.encode() for entry in folder.glob("data/containers/*")]
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            # A process that is killed may show as a zombie while a thread of it still mounts something.
            thread = next((one for one in (entry / "task").iterdir() if not _is_dead(one)), None)
            if thread is None:
                continue
            helper = (entry / "comm").read_text().strip().startswith(_DAEMONS)
            ours = helper and f"{folder}/".encode() in (thread / "cmdline").read_bytes()
            groups = (thread / "cgroup").read_bytes()
            if ours or any(id_ in groups for id_ in ids):
                found.append(int(entry.name))
    return found


def _is_dead(thread: Path) -> bool:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def _mounts_in(folder: Path) -> list[str]:
    """What is mounted in a folder, the innermost first."""
    mounts = Path("/proc/mounts")
    points = [line.split()[1] for line in mounts.read_text().splitlines()] if mounts.exists() else []
    return sorted((point for point in points if point.startswith(f"{folder}/")), reverse=True)


__all__ = ["NEEDED", "SHAPING", "Lab", "LabNode", "debian_image", "missing"]
