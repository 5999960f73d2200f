"""What an allocation is asked of Slurm as: the shapes that an operator has named."""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from prefect_gpu.runtime.drivers.base import Wanted
from prefect_gpu.runtime.drivers.slurm.parts import Part
from prefect_gpu.scheduling.model.jobs import Request

_STARTS_S = 10.0  # from its start by Slurm until the first run can begin
AGENT = "prefect_gpu.runtime.drivers.slurm.agent"
_END = "END_OF_WHAT_AGENTS_ARE_TOLD"


COMPONENT = ":"
"""Stands between the options of two parts of a heterogeneous job, as ``sbatch`` and ``srun`` take them."""


@dataclass(frozen=True)
class Shape:
    """One kind of allocation.

    Attributes:
        name: What people call it.
        minutes: Its wall time.
        parts: Its nodes. Several parts are a heterogeneous job: all start together, and end together.
        account, qos, licenses: As ``sbatch`` takes them; empty: its defaults.
        flags: More of ``sbatch``'s options.
        srun_flags: More of ``srun``'s options for the agent, such as those of a container.
        setup: Lines of shell before the agent starts: ``module load cuda``.
        python: The interpreter that has prefect-gpu on the nodes.
        minimum, maximum: Allocations that there are at least, and at most.
    """

    name: str
    minutes: int
    parts: tuple[Part, ...] = (Part(),)
    account: str = ""
    qos: str = ""
    licenses: str = ""
    flags: tuple[str, ...] = ()
    srun_flags: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    python: str = "python3"
    minimum: int = 0
    maximum: int = 1

    @property
    def useful_s(self) -> float:
        """Seconds for which it can be of use, from its agents' start on."""
        return max(0.0, self.minutes * 60 - _STARTS_S)

    @cached_property
    def asked(self) -> str:
        """What Slurm is asked for, in short: the same as long as nothing of it changes."""
        said = (*self.options("", Path()), "", *self.srun_flags, "", *self.setup, "", self.python)
        return hashlib.sha256("\0".join(said).encode()).hexdigest()[:16]

    def taken(self, request: Request) -> float:
        """How many allocations of this shape a run takes, or which part of one; infinite: it cannot hold the run."""
        instances = sum(part.instances(request) for part in self.parts)
        servers = sum(part.servers(request) for part in self.parts)
        if not instances:
            return math.inf
        return max(request.workers / instances, (request.workers + request.servers) / (instances + servers))

    def holds(self, request: Request, most: int | None = None) -> bool:
        """Whether as many allocations of this shape as there may be can hold the run, or so many."""
        return self.taken(request) <= (most or self.maximum)

    def options(self, name: str, log: Path) -> list[str]:
        """Options of ``sbatch``.

        Args:
            name: Of the job.
            log: Where the output of the job goes.
        """
        stated = {"account": self.account, "qos": self.qos, "licenses": self.licenses}
        found: list[str] = []
        for part in self.parts:
            found += [COMPONENT] * bool(found)
            found += [
                f"--job-name={name}",
                f"--output={log}",
                "--open-mode=append",
                "--export=NIL",  # nothing of the worker's environment, which holds its passwords
                "--no-requeue",  # a run that its allocation has lost carries on in another one
                f"--time={self.minutes}",
                *part.options(),
                *(f"--{option}={value}" for option, value in stated.items() if value),
                *self.flags,
            ]
            stated.pop("licenses", None)  # the first part has them for all
        return found

    def script(self, folder: Path, name: str) -> str:
        """The batch script: it starts one agent on each node.

        Args:
            folder: Where the agents find what they need; the nodes see it at the same path.
            name: Of the allocation.
        """
        command = ["exec", "srun"]
        for number in range(len(self.parts)):
            command += [COMPONENT] * (number > 0) + self._step(number, str(folder), name)
        return "\n".join((*self._begin(), shlex.join(command))) + "\n"

    def sending_script(self, name: str, told: Mapping[str, Any]) -> str:
        """The batch script for nodes that do not see the worker's folders. Only the job's owner, and root, can read it.

        Nobody would see the job's output: if it fails, its last line is the job's comment. Each part of the job has a
        step of its own, as Slurm gives what the script says to the first part of a step alone.

        Args:
            name: Of the allocation.
            told: What the agents must know.
        """
        log = f'"${{SLURM_TMPDIR:-${{TMPDIR:-/tmp}}}}/prefect-gpu-{name}.log"'
        firsts = [str(sum(part.nodes for part in self.parts[:number])) for number in range(len(self.parts))]
        steps = [shlex.join(["srun", *self._step(number, "-", name, first)]) for number, first in enumerate(firsts)]
        lines = (
            *self._begin(),
            "umask 077",
            f"log={log}",
            "trap : TERM  # it outlives what it has started",
            f"read -r told <<'{_END}'",
            json.dumps(told),
            _END,
            "steps=()",
            *(f'{step} <<<"$told" >>"$log" 2>&1 & steps+=($!)' for step in steps),
            "code=0",
            'for step in "${steps[@]}"; do',
            '  wait "$step"',
            "  ended=$?",
            '  while kill -0 "$step" 2>/dev/null; do wait "$step"; ended=$?; done  # a signal has cut it short',
            "  ((ended == 0)) || code=$ended",
            "done",
            "if ((code != 0)); then",
            "  last=$(grep -v -e '^srun: ' -e '^ *$' \"$log\" | tail -n 1 | tr -d '|' | tail -c 300)",
            '  scontrol update JobId="$SLURM_JOB_ID" Comment="$last"',
            "fi",
            'rm -f "$log"',
            "exit $code",
        )
        return "\n".join(lines) + "\n"

    def _begin(self) -> Sequence[str]:
        return (
            "#!/bin/bash",
            "# Written by prefect-gpu for one allocation; what it starts is asked for in the block gpu-slurm.",
            "export HOME=~ PATH=${PATH:-/usr/local/bin:/usr/bin:/bin}",
            "unset SLURM_EXPORT_ENV",
            *self.setup,
        )

    def _step(self, number: int, *arguments: str) -> list[str]:
        """What ``srun`` takes to start an agent on each node of a part."""
        group = [f"--het-group={number}"] * (len(self.parts) > 1)
        options = [*group, f"--cpus-per-task={self.parts[number].cpus}", "--kill-on-bad-exit=0", *self.srun_flags]
        return [*options, self.python, "-m", AGENT, *arguments]


@dataclass(frozen=True)
class Plan:
    """What an operator allows: the shapes, and how long an allocation may have nothing to do.

    Attributes:
        shapes: The first one that holds a run is asked for.
        idle_s: An allocation that has done nothing for so long is given back.
        worth_s: So much expected work of each of its devices makes one more allocation worth its start.
        poll_s: From one look at Slurm's queue to the next.
        one_run: Whether each allocation is for one run, and ends with it.
        shared: Whether nodes see the worker's folders.
    """

    shapes: tuple[Shape, ...]
    idle_s: float = 120.0
    worth_s: float = 60.0
    poll_s: float = 5.0
    one_run: bool = False
    shared: bool = True

    def shape_for(self, run: Wanted) -> Shape | None:
        """The first shape that can hold a run, and is there for long enough; None: none can."""
        return next((one for one in self.holding(run.request) if run.needs_s <= one.useful_s), None)

    def holding(self, request: Request) -> list[Shape]:
        """The shapes that can hold a run, for however long it takes: several allocations may, or one alone."""
        most = 1 if self.one_run else None
        return [shape for shape in self.shapes if shape.holds(request, most)]
