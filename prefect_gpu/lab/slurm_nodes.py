"""A real Slurm on this machine, whose nodes are network name spaces: for the tests and the benchmarks.

It is what ``deployments/slurm/cluster.sh`` starts; whoever has a checkout of the repository can have one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from prefect_gpu.lab.docker_nodes import missing as _missing

SCRIPT = Path(__file__).parents[2] / "deployments" / "slurm" / "cluster.sh"
_PORT = 16820  # of the first cluster's controller: not Slurm's usual one, beside which Ceph takes 6800 to 7568
NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "ip", "nsenter", "unshare")
SERVICES = ("slurmdbd", "mariadbd", "mariadb-install-db", "sacct", "slurmrestd")


def missing() -> list[str]:
    """What this machine lacks for a Slurm of its own, as people would say it."""
    return _missing(*NEEDED)


def services_missing() -> list[str]:
    """What it lacks for one with all that large clusters have: accounting, and an interface by HTTP."""
    return _missing(*NEEDED, *SERVICES)


@dataclass(frozen=True)
class Allocation:
    """A job that is over.

    Attributes:
        begin, end: Unix seconds, whole ones.
        nodes: How many it had.
        names: Their names, as Slurm writes lists.
    """

    job: str
    begin: float
    end: float
    nodes: int
    names: str


@dataclass(frozen=True)
class SlurmLab:
    """The cluster that ``deployments/slurm/cluster.sh`` has started.

    Attributes:
        folder: Its own.
        gateway: The address of this machine that its nodes reach.
        nodes: Their names.
    """

    folder: Path
    gateway: str
    nodes: tuple[str, ...]
    environ: dict[str, str]

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def rest_socket(self) -> str:
        """The address of its slurmrestd for processes of this machine, if it has one."""
        return f"unix://{self.folder / 'run' / 'rest.socket'}"

    @property
    def rest_url(self) -> str:
        """The same for those who show a token."""
        return f"http://{self.gateway}:{int(self.environ['PORT']) + 1000}"

    def script(self, *arguments: str) -> str:
        """Call the script, ``script("node-stop", "n1")``; what it prints."""
        what, *rest = arguments
        done = subprocess.run(
            ["bash", str(SCRIPT), what, str(self.folder), *rest],
            env=os.environ | self.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    @contextlib.contextmanager
    def hidden(self, *folders: Path) -> Iterator[None]:
        """Nodes see nothing of these folders meanwhile, each having an empty one instead. Nothing may run on them."""
        blind = dataclasses.replace(self, environ=self.environ | {"HIDE": " ".join(map(str, folders))})
        try:
            self._restart(blind)
            yield
        finally:
            self._restart(self)

    def _restart(self, lab: SlurmLab) -> None:
        for node in self.nodes:
            lab.script("node-stop", node)
            lab.script("node-start", node)
        lab.script("start")  # which waits for them

    def command(self, *command: str) -> str:
        """Call one of Slurm's commands; what it prints."""
        env = os.environ | {"SLURM_CONF": str(self.conf)}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout

    def completed_jobs(self) -> dict[str, float]:
        """The jobs that are over, and for how many seconds each had its nodes."""
        return {one.job: (one.end - one.begin) * one.nodes for one in self.allocations()}

    def allocations(self) -> list[Allocation]:
        """The jobs that are over. Slurm writes them down a moment after they have left its queue."""
        file = self.folder / "log" / "jobs.txt"
        found = []
        for line in file.read_text().splitlines() if file.exists() else ():
            told = dict(word.split("=", 1) for word in line.split() if "=" in word)
            begin, end = (datetime.fromisoformat(told[name]).timestamp() for name in ("StartTime", "EndTime"))
            found.append(Allocation(told["JobId"], begin, end, int(told["NodeCnt"]), told["NodeList"]))
        return found

    def queue(self) -> list[str]:
        """Numbers of the jobs that wait or run."""
        return self.command("squeue", "--noheader", "--format=%i").split()


@contextlib.contextmanager
def started(
    nodes: int = 3,
    gpus: int = 2,
    number: int = 0,
    racks: int = 0,
    *,
    services: bool = False,
    kernel_memory: bool = False,
) -> Iterator[SlurmLab]:
    """Start the cluster, and stop it at the end with all that runs in it.

    Args:
        nodes: How many nodes.
        gpus: GPUs of each, which are names and no devices.
        number: Several at once on one machine need several numbers.
        racks: In how many racks its ``topology.conf`` says that they stand, ``rack1`` and so on, in order; 0: in none.
        services: Whether it has accounting, ends jobs that take too much main memory, and is served by slurmrestd.
        kernel_memory: Whether the kernel kills a process of a job that takes too much main memory.
    """
    prefix, subnet = f"pgs{number}n", f"10.78.{number}"
    environ = {"PREFIX": prefix, "SUBNET": subnet, "NODES": str(nodes), "GPUS": str(gpus), "RACKS": str(racks)}
    environ["PORT"] = str(_PORT + 2 * number)
    environ |= dict.fromkeys(("ACCOUNTING", "MEMORY", "REST"), str(int(services)))
    environ |= {"MEMORY": "kernel"} if kernel_memory else {}
    folder = Path(tempfile.gettempdir()) / f"prefect-gpu-slurm-{os.getpid()}-{number}"
    lab = SlurmLab(folder, f"{subnet}.1", tuple(f"{prefix}{one}" for one in range(1, nodes + 1)), environ)
    try:
        lab.script("start")
        yield lab
    finally:
        lab.script("stop")
        shutil.rmtree(folder, ignore_errors=True)
