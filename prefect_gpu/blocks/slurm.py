"""The block that says what a pool asks Slurm for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, HttpUrl, ValidationInfo, field_validator, model_validator

from prefect_gpu.blocks.base import StrictBlock, refuse_unknown
from prefect_gpu.links import LOGO_OF_PROCESSES
from prefect_gpu.runtime.drivers.slurm.parts import Part, gpus_of
from prefect_gpu.runtime.drivers.slurm.shapes import Plan, Shape
from prefect_gpu.units import parse_bytes

if TYPE_CHECKING:
    from prefect_gpu.runtime.drivers.slurm.cluster import Cluster

_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?")


class _Known(BaseModel):
    """A part of the block that refuses what it does not know."""

    model_config = ConfigDict(hide_input_in_errors=True)

    @classmethod
    def _called(cls, values: dict[str, Any]) -> str:
        return "more_nodes"

    @model_validator(mode="before")
    @classmethod
    def _only_known(cls, values: Any) -> Any:
        if isinstance(values, dict):
            refuse_unknown(values, set(cls.model_fields), cls._called(values))
        return values


class SlurmNodes(_Known):
    """Nodes of an allocation that are alike. What is left out is Slurm's default.

    Attributes:
        nodes: How many there are.
        gres: GPUs of each node: ``gpu:a100:4``.
        cpus: Cores of each node.
        memory: Main memory of each node: ``64G``.
        partition, constraint: As ``sbatch`` takes them.
        gpu_memory: Memory of each GPU, such as ``80GiB``. It says, before there is a node, which runs fit.
        gpu_kind: Product name of its GPUs, such as ``NVIDIA A100``, for the same reason.
        virtual_devices: Virtual devices of each node, on nodes without GPUs. They are not GPUs.
        virtual_device_memory: Memory of each of them, such as ``8GiB``.
    """

    nodes: int = Field(default=1, ge=1)
    gres: str = ""
    cpus: int = Field(default=1, ge=1)
    memory: str = ""
    partition: str = ""
    constraint: str = ""
    gpu_memory: str | None = None
    gpu_kind: str = ""
    virtual_devices: int = Field(default=0, ge=0)
    virtual_device_memory: str = "8GiB"

    @field_validator("gpu_memory", "virtual_device_memory")
    @classmethod
    def _valid_size(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None:
            parse_bytes(value, field=str(info.field_name))
        return value

    def part(self) -> Part:
        """What the driver is told."""
        return Part(
            nodes=self.nodes,
            gres=self.gres,
            cpus=self.cpus,
            memory=self.memory,
            partition=self.partition,
            constraint=self.constraint,
            virtual_devices=self.virtual_devices,
            virtual_device_memory_bytes=parse_bytes(self.virtual_device_memory, field="virtual_device_memory"),
            gpu_memory_bytes=parse_bytes(self.gpu_memory, field="gpu_memory") if self.gpu_memory else 0,
            gpu_kind=self.gpu_kind,
        )


class SlurmShape(SlurmNodes):
    """One kind of allocation: its nodes, and how many there may be of it. What is left out is Slurm's default.

    Attributes:
        name: What people call it.
        time: Its wall time, as ``sbatch --time`` takes it: ``4:00:00``, ``2-00:00:00``, or minutes.
        more_nodes: Nodes of other kinds in the same allocation, which is a heterogeneous job then: all start together.
        account, qos, licenses: As ``sbatch`` takes them.
        flags: More of ``sbatch``'s options, such as ``--reservation=training``.
        minimum: Allocations that are kept even without work.
        maximum: Allocations that there may be at once.
    """

    name: str = Field(min_length=1)
    time: str
    more_nodes: list[SlurmNodes] = Field(default_factory=list)
    account: str = ""
    qos: str = ""
    licenses: str = ""
    flags: list[str] = Field(default_factory=list)
    minimum: int = Field(default=0, ge=0)
    maximum: int = Field(default=1, ge=1)

    @classmethod
    def _called(cls, values: dict[str, Any]) -> str:
        return f"shape {values.get('name', '?')}"

    @field_validator("time", mode="before")
    @classmethod
    def _valid_time(cls, value: Any) -> str:
        minutes_of(str(value))
        return str(value)

    @field_validator("flags")
    @classmethod
    def _valid_flags(cls, value: list[str]) -> list[str]:
        for flag in value:
            if flag == ":":
                raise ValueError("flags: ':' asks for a heterogeneous job: name its other nodes as more_nodes instead")
            if not flag.startswith("-"):
                raise ValueError(f"flags: {flag!r} is no option of sbatch: write --NAME=VALUE")
            if flag.partition("=")[0] in _OURS:
                raise ValueError(f"flags: {flag!r} is set by the pool itself: leave it out")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> SlurmShape:
        if self.minimum > self.maximum:
            raise ValueError(f"minimum={self.minimum} of shape {self.name} is above maximum={self.maximum}")
        if not self.virtual_devices and not gpus_of(self.gres):
            raise ValueError(
                f"gres={self.gres!r} of shape {self.name} names no GPU: write gres: gpu:1, or, for nodes without GPUs, "
                "virtual_devices: 2"
            )
        return self


class SlurmTunnel(_Known):
    """How nodes reach the worker where they cannot connect to its machine: by ssh.

    Attributes:
        via: The machine where ssh logs in, as ``ssh`` takes it: for the nodes one that they reach, and that reaches the
            worker's machine; for the worker what it goes through on its way to the nodes, if it needs anything.
        opened_by: Who can connect to the other side: ``node`` or ``worker``.
        ssh_options: More of ssh's options, such as ``["-i", "/home/me/.ssh/pool"]``.
        server: ``HOST:PORT`` of Prefect's server, as the end of the tunnel calls it that is not the node's. By default
            a server on the worker's machine is led to, and any other one is left to the nodes.
    """

    via: str = ""
    opened_by: Literal["node", "worker"] = "node"
    ssh_options: list[str] = Field(default_factory=list)
    server: str = ""

    @classmethod
    def _called(cls, values: dict[str, Any]) -> str:
        return "tunnel"

    @model_validator(mode="after")
    def _consistent(self) -> SlurmTunnel:
        if not self.via and self.opened_by == "node":
            raise ValueError(
                "tunnel: via is missing: name the machine where the nodes log in by ssh, such as via: login1, or write "
                "opened_by: worker, if the worker's machine connects to the nodes"
            )
        if self.via.startswith("-"):
            raise ValueError(f"via={self.via!r} of the tunnel is no machine: give ssh's options as ssh_options")
        if self.server and not re.fullmatch(r"\S+:\d+", self.server):
            raise ValueError(f"server={self.server!r} of the tunnel is no HOST:PORT: write prefect.lab:4200")
        return self


class GpuSlurm(StrictBlock):
    """What a pool asks Slurm for: shapes of allocations, how many, and how a node is set up for runs.

    The worker is told of it by name: ``PREFECT_INTEGRATIONS_GPU_SLURM=NAME``.

    Example:
        ```python
        from prefect_gpu.blocks import GpuSlurm

        slurm = GpuSlurm.load("BLOCK_NAME")
        ```
    """

    _block_type_name = "GPU Slurm"
    _block_type_slug = "gpu-slurm"
    _logo_url = HttpUrl(LOGO_OF_PROCESSES)
    _description = "What a GPU pool asks Slurm for: the shapes of its allocations, and how many of each."

    shapes: list[SlurmShape] = Field(
        min_length=1, description="Kinds of allocations. A run is given the first one that can hold it."
    )
    mode: Literal["allocations", "one-job-per-run"] = Field(
        default="allocations",
        description="allocations: what Slurm lends is used for one run after another, and for several at once. "
        "one-job-per-run: each run has a job of its own, which ends with it, for sites that want it so. A gang needs a "
        "shape that holds all of it.",
    )
    idle_seconds: float = Field(
        default=120.0, ge=0, description="An allocation that nobody has needed for so long is given back."
    )
    worth_seconds: float = Field(
        default=60.0,
        gt=0,
        description="So much expected work for each of its devices makes one more allocation worth its start. Runs "
        "that are shorter share allocations; a longer one, or one of unknown length, gets its own if it may.",
    )
    poll_seconds: float = Field(
        default=5.0, ge=0.2, description="From one look at Slurm's queue to the next. Large sites want it rare."
    )
    conf: Path | None = Field(
        default=None, description="Path of the cluster's slurm.conf. Default: as Slurm's commands find it."
    )
    rest: str | None = Field(
        default=None,
        description="Address of the cluster's slurmrestd, `http://HOST:PORT` or `unix:///PATH`, which is then asked "
        "instead of Slurm's commands. Default: the commands.",
    )
    rest_token: Path | None = Field(
        default=None,
        description="A file with the token for slurmrestd. Default: the variable SLURM_JWT, or what `scontrol token` "
        "gives. A socket needs none.",
    )
    python: str | None = Field(
        default=None,
        description="The Python on the nodes that has prefect-gpu. Default: the worker's own, at the same path.",
    )
    setup: list[str] = Field(
        default_factory=list,
        description="Lines of shell before anything is started on a node, such as `module load cuda`. What they set of "
        "PATH, LD_LIBRARY_PATH, CUDA_HOME and the like counts for runs, too.",
    )
    srun_flags: list[str] = Field(
        default_factory=list,
        description="More of srun's options for what is started on the nodes, such as those of a container: "
        "--container-image=..., with pyxis.",
    )

    tunnel: SlurmTunnel | None = Field(
        default=None,
        description="How nodes reach the worker where they cannot connect to its machine: by ssh. A name alone, "
        "tunnel: login1, is where the nodes log in.",
    )

    shared_folder: bool = Field(
        default=True,
        description="Whether the nodes see the worker's state folder at the same path, in a file system that both "
        "share. Where they do not, what they need is sent to them: set slurm_port, keep checkpoints in S3, and name "
        "the nodes' own python.",
    )

    @field_validator("tunnel", mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"via": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _named_once(self) -> GpuSlurm:
        names = [shape.name for shape in self.shapes]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"shapes: {twice[0]!r} is there twice: give each its own name")
        kept = [shape.name for shape in self.shapes if shape.minimum]
        if self.mode == "one-job-per-run" and kept:
            raise ValueError(
                f"minimum of shape {kept[0]} keeps allocations without a run, and mode='one-job-per-run' has none: "
                "leave one of them out"
            )
        return self

    @field_validator("rest")
    @classmethod
    def _valid_rest(cls, value: str | None) -> str | None:
        if value is not None and not re.match(r"https?://[^/]|unix:///.", value):
            raise ValueError(f"rest={value!r} is no address of slurmrestd: write http://HOST:PORT or unix:///PATH")
        return value

    @model_validator(mode="after")
    def _rest_can_say_it(self) -> GpuSlurm:
        if self.rest is None:
            return self
        from prefect_gpu.runtime.drivers.slurm.rest_words import KNOWN  # only who uses it needs it

        for shape in self.shapes:
            for flag in shape.flags:
                if flag.removeprefix("--").partition("=")[0] not in KNOWN:
                    raise ValueError(
                        f"flags: {flag!r} cannot be asked of slurmrestd: leave it out, or leave out rest={self.rest!r}"
                    )
        return self

    def client(self, patience_s: float = 15.0) -> Cluster:
        """What the cluster is asked by: slurmrestd where the block names it, else Slurm's commands.

        Args:
            patience_s: For so long a question is repeated while the cluster does not answer.
        """
        # Only who uses Slurm needs what talks to it.
        from prefect_gpu.runtime.drivers.slurm.client import SlurmClient
        from prefect_gpu.runtime.drivers.slurm.rest import SlurmRest, Token

        if self.rest is None:
            return SlurmClient(self.conf, patience_s)
        return SlurmRest(self.rest, Token(self.rest_token, self.conf), patience_s)

    def plan(self, python: str) -> Plan:
        """What the driver is told.

        Args:
            python: The nodes' Python, if the block names none.

        Example:
            >>> a100 = SlurmShape(name="a100", gres="gpu:a100:4", time="4:00:00")
            >>> GpuSlurm(shapes=[a100]).plan("python3").shapes[0].parts[0].devices
            4
        """
        shapes = (
            Shape(
                name=shape.name,
                minutes=minutes_of(shape.time),
                parts=(shape.part(), *(nodes.part() for nodes in shape.more_nodes)),
                account=shape.account,
                qos=shape.qos,
                licenses=shape.licenses,
                flags=tuple(shape.flags),
                srun_flags=tuple(self.srun_flags),
                setup=tuple(self.setup),
                python=self.python or python,
                minimum=shape.minimum,
                maximum=shape.maximum,
            )
            for shape in self.shapes
        )
        one_run = self.mode == "one-job-per-run"
        return Plan(
            tuple(shapes), self.idle_seconds, self.worth_seconds, self.poll_seconds, one_run, self.shared_folder
        )


_OURS = frozenset(
    f"--{name}"
    for name in ("job-name", "output", "export", "nodes", "ntasks-per-node", "cpus-per-task", "time", "wrap", "requeue")
)


def minutes_of(time: str) -> int:
    """A wall time as Slurm writes it, in whole minutes.

    Raises:
        ValueError: It is none.

    Example:
        >>> minutes_of("90"), minutes_of("4:00:00"), minutes_of("2-00:00:00"), minutes_of("1-12"), minutes_of("30:00")
        (90, 240, 2880, 2160, 30)
    """
    found = _TIME.fullmatch(time.strip())
    if found is None:
        raise ValueError(f"time={time!r} is no wall time: write 4:00:00, 2-00:00:00, or minutes such as 90")
    numbers = [int(found[name]) for name in ("first", "second", "third") if found[name] is not None]
    if found["days"] is not None:  # days-hours[:minutes[:seconds]]
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
        total = int(found["days"]) * 1440 + hours * 60 + minutes + (seconds > 0)
    elif len(numbers) == 3:
        total = numbers[0] * 60 + numbers[1] + (numbers[2] > 0)
    else:  # minutes[:seconds]
        total = numbers[0] + (len(numbers) == 2 and numbers[1] > 0)
    if total < 1:
        raise ValueError(f"time={time!r} is less than a minute, which is the least that Slurm gives")
    return total
