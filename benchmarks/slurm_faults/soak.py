"""The soak on a real Slurm of this machine."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks._host.served import settings
from benchmarks.faults.soak import Soak
from prefect_gpu.blocks import GpuSlurm, SlurmShape
from prefect_gpu.lab.slurm_nodes import SlurmLab

_SETTLES_S = 240.0
_CRASHED_S = 120.0  # Slurm tells all processes of a job to end, and the engine says so before a worker hears of it
_NOTICED_S = 5.0  # from a fault until Prefect shows what it did
_ALMOST = 0.5  # of the runs train: the others begin, end, or wait for what another one gives back
_DIES_S = 60.0
_SBATCH = """#!/bin/bash
# Slurm's own sbatch. If it was said so, the worker dies before it hears the answer.
{sbatch} "$@" >"$0.$$" 2>&1
result=$?
if rm "{deadly}" 2>/dev/null; then
  kill -9 $PPID
  exit 1
fi
cat "$0.$$" && rm "$0.$$"
exit $result
"""


class SlurmSoak(Soak):
    """See :class:`.Soak`. One worker, which asks Slurm for one allocation of each node.

    Args:
        devices: Of each node.
        away_s: How long slurmctld is away.
    """

    def __init__(self, *args: Any, lab: SlurmLab, devices: int, away_s: float, **more: Any) -> None:
        super().__init__(*args, workers=1, crashed_s=_CRASHED_S, variables={"preemptible": True}, **more)
        self.lab, self.away_s, self.devices = lab, away_s, devices
        self._deadly = self.folder / "deadly"
        bin_ = self.folder / "bin"
        bin_.mkdir()
        sbatch = bin_ / "sbatch"
        sbatch.write_text(_SBATCH.format(sbatch=shutil.which("sbatch"), deadly=self._deadly))
        sbatch.chmod(0o755)
        self._path = f"{bin_}:{self.sandbox.env['PATH']}"

    async def save_block(self) -> None:
        """What Slurm may be asked for."""
        shape = SlurmShape(
            name="node",
            time="30",
            gres=f"gpu:{self.devices}",
            virtual_devices=self.devices,
            maximum=len(self.lab.nodes),
        )
        block = GpuSlurm(shapes=[shape], conf=self.lab.conf, idle_seconds=10.0, poll_seconds=1.0)
        await block.save(self.pool, overwrite=True)  # type: ignore[misc]

    def start_worker(self) -> None:
        env = settings(
            slurm=self.pool,
            advertise=self.lab.gateway,
            channel_host="0.0.0.0",
            page="false",
            state_dir=str(self.folder / "state"),
        )
        self.workers.append(self.sandbox.start_worker(self.pool, env={**env, "PATH": self._path}))

    async def settle(self) -> None:
        """Wait until most of the runs train again, as many as devices can hold."""
        await asyncio.sleep(_NOTICED_S)
        enough = _ALMOST * min(self.in_flight, self.devices * len(self.lab.nodes))
        end = time.monotonic() + _SETTLES_S
        while True:
            states = await self.states(list(self.open))
            training = sum(state.name == "Training" for state in states.values())
            if training >= enough:
                return
            if time.monotonic() > end:
                names = sorted(str(state.name) for state in states.values())
                self.wrong(f"{_SETTLES_S:.0f} s later only {training} runs train: {', '.join(names)}")
                return
            await asyncio.sleep(1.0)

    # -- what is there to be broken -----------------------------------------------------------------------------------

    def jobs(self) -> dict[str, str]:
        """The pool's jobs that run, and the node of each."""
        lines = self.lab.command("squeue", "--noheader", "--states=RUNNING", "--format=%i|%N|%j").splitlines()
        told = [line.split("|") for line in lines]
        return {job: node for job, node, name in told if name.startswith("prefect-gpu-")}

    def agents(self) -> list[psutil.Process]:
        """The agents, and not the processes that guard them."""
        folder = str(self.folder / "state" / "slurm")
        ours = [
            one
            for one in psutil.process_iter(["cmdline"])
            if any(folder in word for word in one.info["cmdline"] or ()) and "srun" not in one.info["cmdline"][0]
        ]
        return [one for one in ours if one.parent() in ours]

    async def die_at_next_sbatch(self) -> None:
        """Wait until the worker has died as it asked Slurm for an allocation, and start the next one."""
        leader = self.leader
        self._deadly.touch()
        for job in list(self.jobs())[:1]:  # so that another one is needed
            self.lab.command("scancel", job)
        try:
            await asyncio.to_thread(leader.popen.wait, _DIES_S)
        except subprocess.TimeoutExpired:
            self._deadly.unlink(missing_ok=True)
            self.wrong("the worker has asked Slurm for no allocation, though it had lost one")
            return
        self.start_worker()

    def records(self) -> list[Path]:
        """What the worker has written down of allocations."""
        return [path for path in (self.folder / "state" / "slurm").glob("*/*.json") if path.name != "agents.json"]
