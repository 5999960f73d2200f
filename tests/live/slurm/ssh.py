"""Real OpenSSH servers in the network of a lab's cluster, and nodes that can connect to nobody but Slurm and those."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from prefect_gpu.lab.sandbox import Process
from prefect_gpu.lab.slurm_nodes import SlurmLab

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LOGIN, PORT = "login1", 2222
_CONNECTS = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10)"


@dataclasses.dataclass(frozen=True)
class Ssh:
    """The servers, and what one needs to be let in.

    Attributes:
        config: For ``ssh -F``: it knows the login node, and the nodes, by their names.
    """

    config: Path
    servers: tuple[Process, ...]

    def break_connections(self) -> int:
        """End all connections that there are; how many processes that took."""
        found = [child for server in self.servers for child in psutil.Process(server.pid).children(recursive=True)]
        for one in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        return len(found)


@contextlib.contextmanager
def unreachable(lab: SlurmLab) -> Iterator[None]:
    """Nodes can connect to no port of this machine but slurmctld's."""
    rules = [
        ["-d", lab.gateway, "-p", "tcp", "--syn", "--dport", lab.environ["PORT"], "-j", "ACCEPT"],
        ["-d", lab.gateway, "-p", "tcp", "--syn", "-j", "REJECT", "--reject-with", "tcp-reset"],
    ]
    done: list[tuple[str, list[str]]] = []
    try:
        for node in lab.nodes:
            for rule in rules:
                _inside(node, "iptables", "-A", "OUTPUT", *rule)
                done.append((node, rule))
        yield
    finally:
        for node, rule in done:
            _inside(node, "iptables", "-D", "OUTPUT", *rule)


def connects(node: str, host: str, port: int) -> bool:
    """Whether a node can open a connection."""
    asked = ["nsenter", f"--net=/run/netns/{node}", sys.executable, "-c", _CONNECTS, host, str(port)]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


@contextlib.contextmanager
def served(lab: SlurmLab, folder: Path, *, at_nodes: bool) -> Iterator[Ssh]:
    """Start the servers: at a login node of its own, which reaches all, or at each node instead."""
    subnet, bridge = lab.gateway.rpartition(".")[0], f"{lab.environ['PREFIX']}br"
    login = f"{lab.environ['PREFIX']}l"
    places = {node: (node, f"{subnet}.{11 + number}") for number, node in enumerate(lab.nodes)}
    places = places if at_nodes else {LOGIN: (login, f"{subnet}.5")}
    for name in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    Path("/run/sshd").mkdir(exist_ok=True)
    (folder / "sshd_config").write_text(
        f"Port {PORT}\nListenAddress 0.0.0.0\nHostKey {folder}/host_key\nAuthorizedKeysFile {folder}/key.pub\n"
        "PidFile none\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\nStrictModes no\n"
    )
    public = " ".join((folder / "host_key.pub").read_text().split()[:2])
    (folder / "known_hosts").write_text("".join(f"[{address}]:{PORT} {public}\n" for _, address in places.values()))
    config = folder / "ssh_config"
    config.write_text(
        "".join(f"Host {name}\nHostName {address}\n" for name, (_, address) in places.items())
        + f"Host *\nUser root\nPort {PORT}\nIdentityFile {folder}/key\nIdentitiesOnly yes\n"
        f"UserKnownHostsFile {folder}/known_hosts\nStrictHostKeyChecking yes\n"
    )
    program = shutil.which("sshd", path=PATH)
    servers: list[Process] = []
    try:
        if not at_nodes:
            _ip("netns", "add", login)
            _ip("link", "add", f"{login}h", "type", "veth", "peer", "name", "eth0", "netns", login)
            _ip("link", "set", f"{login}h", "master", bridge, "up")
            _ip("-n", login, "addr", "add", f"{subnet}.5/24", "dev", "eth0")
            _ip("-n", login, "link", "set", "lo", "up")
            _ip("-n", login, "link", "set", "eth0", "up")
        for name, (space, _) in places.items():
            command = ["nsenter", f"--net=/run/netns/{space}", str(program), "-D", "-e", "-f", f"{folder}/sshd_config"]
            servers.append(Process(command, log=folder / f"{name}.log", env={"PATH": PATH}, cwd=folder))
        for server in servers:
            server.wait_for_output(f"port {PORT}")
        yield Ssh(config, tuple(servers))
    finally:
        for server in servers:
            server.terminate()
        for space, _ in places.values():  # a session whose server was killed as it began
            for pid in _pids(space):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if psutil.Process(pid).name().startswith("sshd"):
                        psutil.Process(pid).kill()
        if not at_nodes:
            subprocess.run(["ip", "netns", "delete", login], capture_output=True, check=False)
            subprocess.run(["ip", "link", "delete", f"{login}h"], capture_output=True, check=False)


def _pids(space: str) -> list[int]:
    told = subprocess.run(
        ["ip", "netns", "pids", space], env={"PATH": PATH}, capture_output=True, text=True, check=False
    )
    return [int(pid) for pid in told.stdout.split()]


def _inside(node: str, *command: str) -> None:
    asked = ["nsenter", f"--net=/run/netns/{node}", *command]
    subprocess.run(asked, env={"PATH": PATH}, capture_output=True, check=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], env={"PATH": PATH}, capture_output=True, check=True)
