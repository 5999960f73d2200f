"""Settings of the worker, through Prefect's own mechanism.

Each is an environment variable ``PREFECT_INTEGRATIONS_GPU_<NAME>``, an entry of a Prefect profile, or a key in
``prefect.toml`` / ``pyproject.toml`` under ``[integrations.gpu]`` / ``[tool.prefect.integrations.gpu]``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

from prefect.settings import get_current_settings
from prefect.settings.base import PrefectBaseSettings, build_settings_config
from pydantic import (
    AwareDatetime,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
)

from prefect_gpu.runtime.telemetry.declared import declared
from prefect_gpu.runtime.telemetry.faults import SLOW, THERMAL
from prefect_gpu.training.checkpoints.location import parse_location
from prefect_gpu.units import check_price, parse_bytes

OWNER_RULES = ("variable", "tag", "creator", "queue")
"""What may say who the owner of a run is."""


class GpuSettings(PrefectBaseSettings):
    """What a worker may be told. Every value has a default that works on one machine."""

    model_config = build_settings_config(("integrations", "gpu"))

    virtual_devices: int | str = Field(
        default=2,
        description="Virtual devices to declare where no NVIDIA driver is found: their number, or their kinds, as "
        "2xA100-40GiB,4xT4-16GiB; 4xA100-40GiB+nvlink if these are to count as connected. They are not GPUs.",
    )
    virtual_device_memory: str = Field(default="8GiB", description="Memory of each virtual device, for example 8GiB.")
    state_dir: Path | None = Field(
        default=None,
        description="Where the worker keeps what must survive it: run records, logs, checkpoints, history. "
        "Default: the folder `gpu` in PREFECT_HOME.",
    )
    bundles: Path | None = Field(
        default=None,
        description="A folder that users, worker and runs see at the same path: flows that are submitted without a "
        "deployment, and their results, go through it. To be set for users and worker alike. Default: the state "
        "folder if Prefect's server is on this machine, and none if it is on another.",
    )
    private: bool = Field(
        default=True,
        description="Let only the worker's user read what it writes: its folders get the mode 0700, its files 0600. "
        "Off: as the umask has it. Runs keep the umask either way.",
    )
    lock_dir: Path | None = Field(
        default=None,
        description="Where the workers of this machine lock its GPUs, so that no two use the same one. Default: "
        "/run/lock/prefect-gpu for root, and for users for whom root has made it writable (by a group, for example); "
        "else ~/.local/state/prefect-gpu/locks, where workers of other users do not look. It must belong to this user "
        "or to root, and not be writable by everybody.",
    )
    checkpoints: str | None = Field(
        default=None,
        description="Where checkpoints are kept: a folder, s3://bucket/prefix?endpoint_url=...&region=... with the "
        "credentials in the environment, or block:checkpoint-storage/NAME for what a Prefect block says, credentials "
        "included. Default: the folder `checkpoints` in the state folder. Runs on several nodes need a place that all "
        "of them reach.",
    )
    checkpoints_role: str | None = Field(
        default=None,
        description="ARN of a role that may read and write the checkpoints in S3, for example "
        "arn:aws:iam::123456789012:role/trainings. The worker takes this role by STS, for each run anew, and gives the "
        "run credentials for its own checkpoints only, instead of those that the worker has, or the block. Default: "
        "all runs get these.",
    )
    checkpoints_role_seconds: int = Field(
        default=3600,
        ge=900,
        le=43_200,
        description="How long a run's credentials of checkpoints_role are good. The worker renews them before; without "
        "a worker for longer, runs train on but cannot save. The role's longest session must allow it.",
    )
    checkpoints_sts_url: str | None = Field(
        default=None,
        description="Where STS is that gives checkpoints_role. Default: the endpoint_url of `checkpoints`, else "
        "Amazon's of the region.",
    )
    history_url: str | None = Field(
        default=None,
        description="SQLAlchemy URL of the history of finished runs. Default: SQLite in the state folder.",
    )
    events: bool = Field(
        default=True,
        description="Emit an event of Prefect's whenever a run waits, is granted devices, prepares, trains, saves, is "
        "demoted, moved and so on (prefect-gpu.run.*), so that automations can act on it.",
    )
    warm_start: bool = Field(
        default=True,
        description="Start runs from an interpreter that has imported Prefect already. With containers, up to two "
        "of them wait on each node for launches like the last ones.",
    )
    preload: list[str] | str = Field(
        default_factory=list,
        description="Modules that warm interpreters import beforehand, for example torch,xgboost.",
    )
    pass_environment: list[str] | str = Field(
        default_factory=list,
        description="Environment variables of the worker that runs are told beside those that training needs "
        "(PATH, HOME, CUDA_*, NCCL_*, PYTHON*, proxies, Prefect's address and key, and so on), for example "
        "WANDB_API_KEY,HF_*. A single * passes all of them, with every password in them. What one deployment needs is "
        "better said in its job variable `env`.",
    )
    driver: Literal["process", "docker", "swarm", "slurm"] = Field(
        default="process",
        description="Where runs are started: as processes of this machine, as containers of one Docker Engine, as "
        "containers on the nodes of a Docker Swarm, or as processes on nodes that Slurm lends.",
    )
    slurm: str | None = Field(
        default=None,
        description="Name of a Prefect block of the type gpu-slurm, which says what Slurm is asked for. It means "
        "driver=slurm.",
    )
    cluster: str | None = Field(
        default=None,
        description="Name of a Prefect block of the type gpu-cluster, which says which Engine or Swarm there is, and "
        "what its nodes are. Other settings of the worker override what the block says.",
    )
    quota: str | None = Field(
        default=None,
        description="Name of a Prefect block of the type gpu-quota, which says what each owner of runs is promised: "
        "guaranteed devices, limits, weights. It needs the profile adaptive. Default: all runs are alike.",
    )
    owner_from: list[str] | str = Field(
        default_factory=lambda: ["variable", "tag", "creator", "queue"],
        description="Who is the owner of a run: the first of these that there is. variable: the job variable `owner`; "
        "tag: a tag owner:NAME of the run or its deployment; creator: who created the run, as Prefect knows it; queue: "
        "its work queue. Leave out what users must not choose.",
    )
    docker_host: str | None = Field(
        default=None,
        description="The Engine, or the Engine of a manager of the Swarm: unix:///var/run/docker.sock, "
        "tcp://host:2376 or ssh://user@host. Default: what DOCKER_HOST says, else this machine's.",
    )
    docker_ca: Path | None = Field(default=None, description="Certificate of the Engines' authority.")
    docker_certificate: Path | None = Field(default=None, description="The worker's certificate for the Engines.")
    docker_key: Path | None = Field(default=None, description="The key of the worker's certificate.")
    docker_plain_tcp: bool = Field(
        default=False,
        description="Ask Engines on other machines without TLS, if no docker_ca is set. Whoever is in the network in "
        "between is then root on their machines.",
    )
    docker_ssh_key: Path | None = Field(
        default=None,
        description="Private key for ssh://, without a passphrase. Default: as ssh does for this user, with "
        "~/.ssh/config and an agent.",
    )
    docker_ssh_known_hosts: Path | None = Field(
        default=None,
        description="The host keys that are accepted for ssh://, as ssh-keyscan prints them. Default: as ssh does for "
        "this user.",
    )
    docker_node_url: str = Field(
        default="tcp://{address}:2376",
        description="Address of the Engines of a Swarm's nodes, with {address} or {name} in it. The label "
        "prefect-gpu.endpoint overrides it that a manager gives a node.",
    )
    image: str | None = Field(default=None, description="Image of the containers of runs that name none.")
    container_volumes: list[str] | str = Field(
        default_factory=list,
        description="Folders of the nodes, with what is below them, and Docker volumes that runs may mount, for "
        "example /data:ro,/scratch. With :ro, runs may only read there. Default: none. A single * allows all, and "
        "makes whoever may submit runs root on the nodes.",
    )
    container_networks: list[str] | str = Field(
        default_factory=list,
        description="Docker networks that runs may join, for example team-*. Default: none but the Engine's own "
        "default and the one in which gangs meet. `host` is the node's own.",
    )
    container_images: list[str] | str = Field(
        default_factory=lambda: ["*"],
        description="Images that runs may use, for example registry.example/team/*. Default: all.",
    )
    container_user: str | None = Field(
        default=None,
        description="User of all runs' containers, for example 1000:1000. Default: the one that the image names, which "
        "should not be root.",
    )
    container_memory_max: str | None = Field(
        default=None,
        description="Most main memory that a run may ask for by memory_limit, for example 64GiB; who asks for none "
        "gets this. Default: no limit.",
    )
    container_shm_max: str | None = Field(
        default=None, description="Most shared memory that a run may ask for by shm_size. Default: no limit."
    )
    container_pids_max: int = Field(
        default=32_768, ge=0, description="Most processes and threads of a run's container. 0: no limit."
    )
    container_privileges: bool = Field(
        default=False,
        description="Leave the containers of runs all that Docker gives by default. Off, they cannot send raw packets "
        "or make device files (NET_RAW, MKNOD), and programs such as sudo gain nothing.",
    )
    advertise: str | None = Field(
        default=None,
        description="Address of this machine at which containers, or Slurm's nodes, reach the run channel (and a "
        "Prefect server on this machine).",
    )
    channel_host: str = Field(default="127.0.0.1", description="Address that the run channel listens on.")
    channel_port: int = Field(default=0, ge=0, le=65535, description="Port of the run channel; 0 takes a free one.")
    slurm_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Port at which the agents on Slurm's nodes reach this worker, on the address channel_host; 0 takes "
        "a free one.",
    )
    profile: str = Field(
        default="adaptive",
        description="Name of the scheduling profile.",
    )
    learn: bool = Field(
        default=True,
        description="Learn from the history what runs need. Without it, nothing is estimated: runs get what they "
        "declare, or whole devices.",
    )
    cordon_also: list[str] | str = Field(
        default_factory=list,
        description="What takes a device out of service beside serious faults, which always do: thermal (it is too hot "
        "and slows itself down), slow (its runs are slower than those on others of its kind). Default: these are told.",
    )
    heed_outside: bool = Field(
        default=True,
        description="Give a GPU to nobody while programs outside the pool, a notebook for example, use a tenth of its "
        "memory or more.",
    )
    prescheduling: bool = Field(
        default=True,
        description="Start the next run while the one before it still trains, so that it is prepared when the device "
        "is free. It needs memory and some CPU time of the node meanwhile.",
    )
    preemption: bool = Field(
        default=True,
        description="Stop or move `preemptible` runs when other runs need their devices; they continue from their "
        "checkpoint. Runs that are not `preemptible` are never stopped for others, whatever this says.",
    )
    slowdown_limit: float | None = Field(
        default=None,
        gt=1,
        description="Largest slowdown of a `preemptible` run by other runs on its nodes, for example 1.5. A run that "
        "is slowed down more is stopped at a checkpoint, and continues elsewhere. Only the profile deepshare does "
        "this; its default is 1.67.",
    )
    waste: Literal["off", "tell", "share", "stop"] = Field(
        default="tell",
        description="What happens to a run that holds devices without using them (see waste_below_percent). `tell`: "
        "its story, the page and an event say so. `share`: after as long again, others may also share its devices. "
        "`stop`: after as long once more, it is cancelled. `off`: nobody looks.",
    )
    waste_below_percent: float = Field(
        default=5.0,
        gt=0,
        le=100,
        description="A run wastes its devices if it uses less of them than this; of a virtual device, less of its "
        "cores. A run that never reports a step, and whose use is not known, does so too.",
    )
    waste_minutes: float = Field(
        default=30.0, gt=0, description="For so long it must have been so, since it began to train."
    )
    device_hour_price: float | dict[str, float] | None = Field(
        default=None,
        description="What an hour of one device costs, in your currency, for example 2.5; or by kind, where a part of "
        'the name is enough: {"H100": 2.5, "A100": 1.2}. The history then says what each run has cost.',
    )
    page: bool = Field(
        default=True,
        description="Serve the pool's own page: devices over time, queue, losses. `prefect-gpu status` needs it, too.",
    )
    page_host: str = Field(
        default="127.0.0.1",
        description="Address that the page listens on. On this machine everybody can read the page; whoever comes from "
        "elsewhere, once this is another address than the machine's own 127.0.0.1, must know its token.",
    )
    page_token: SecretStr | None = Field(
        default=None,
        description="What one must know to read the page and what it is made of: ?token=... in its address, or the "
        "header `Authorization: Bearer ...`. Default: none where the page listens on this machine only, else one that "
        "the worker makes, keeps in the state folder, and prints as it starts. Empty: none, everybody who reaches the "
        "page can read it.",
    )
    page_port: int = Field(
        default=4280, ge=0, le=65535, description="Port of the page; if it is taken, the next free one. 0 takes any."
    )
    notice_file: Path | None = Field(
        default=None,
        description="A file that appears when this machine is about to be taken away. It says when: a date with its "
        "time zone, seconds from now, or TRUE.",
    )
    notice_url: str | None = Field(
        default=None,
        description="An address that says the same, such as the one at which a cloud tells its spot machines. 404 "
        "means that nothing was announced. It is asked once a second.",
    )
    notice_seconds: float = Field(
        default=30.0, gt=0, description="Seconds that are left where a notice only says TRUE."
    )
    leave_by: AwareDatetime | None = Field(
        default=None,
        description="A date with its time zone by which this worker's devices are needed for something else. Runs have "
        "saved by then, and none starts that would not.",
    )
    cancel_grace_seconds: float = Field(
        default=15.0, ge=0, description="Time that a cancelled run has to end by itself before it is killed."
    )

    most_gpus: int = Field(
        default=1024,
        ge=1,
        le=1_000_000,
        description="Most GPUs that a run may ask for (`gpus` of each instance, `max_gpus`). A run that asks for more "
        "is refused.",
    )
    most_cpus: int = Field(
        default=1024,
        ge=1,
        le=1_000_000,
        description="Most CPU cores that a run may ask for, of each instance. A run that asks for more is refused.",
    )
    most_instances: int = Field(
        default=256,
        ge=1,
        le=10_000,
        description="Most instances (`workers` and `ps` together) that a run may have. A run that asks for more is "
        "refused. For 1,000 of them the scheduler needs about 0.2 s.",
    )

    deleted_after_seconds: float = Field(
        default=180.0,
        ge=0,
        description="For so long Prefect must say that a run does not exist until the run counts as deleted. Meanwhile "
        "it must be healthy and have the pool: a gateway without a backend, or an empty database, deletes nothing.",
    )
    keep_days: float = Field(
        default=30.0,
        gt=0,
        description="Days from the end of a failed or crashed run until its checkpoints are deleted, and from the "
        "end of any run until its bundle is. They stay as long as Prefect does not say that the run is over.",
    )

    @field_validator(
        "preload",
        "pass_environment",
        "container_volumes",
        "container_networks",
        "container_images",
        "owner_from",
        "cordon_also",
        mode="after",
    )
    @classmethod
    def _split_names(cls, value: list[str] | str) -> list[str]:
        if isinstance(value, str):
            return [name.strip() for name in value.split(",") if name.strip()]
        return value

    @field_validator("owner_from")
    @classmethod
    def _known_rules(cls, value: list[str]) -> list[str]:
        if unknown := sorted(set(value) - set(OWNER_RULES)):
            raise ValueError(f"{unknown[0]!r} says no owner: choose some of {', '.join(OWNER_RULES)}")
        return value

    @field_validator("cordon_also")
    @classmethod
    def _valid_faults(cls, value: list[str]) -> list[str]:
        if unknown := sorted(set(value) - {THERMAL, SLOW}):
            raise ValueError(f"cordon_also={','.join(unknown)!r} is no such fault: give thermal, slow, or both")
        return value

    @field_validator("virtual_devices")
    @classmethod
    def _valid_devices(cls, value: int | str) -> int | str:
        declared(value)
        return value

    @field_validator("virtual_device_memory")
    @classmethod
    def _valid_size(cls, value: str) -> str:
        parse_bytes(value, field="virtual_device_memory")
        return value

    @field_validator("container_memory_max", "container_shm_max")
    @classmethod
    def _valid_most(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value:
            parse_bytes(value, field=str(info.field_name))
        return value or None

    @field_validator("device_hour_price")
    @classmethod
    def _valid_price(cls, value: float | dict[str, float] | None) -> float | dict[str, float] | None:
        check_price("device_hour_price", value)
        return value

    @field_validator("leave_by", mode="wrap")
    @classmethod
    def _valid_end(cls, value: Any, read: ValidatorFunctionWrapHandler) -> AwareDatetime | None:
        try:
            return cast("AwareDatetime | None", read(value))
        except ValidationError:
            raise ValueError("no date with its time zone: give one, such as 2026-03-01T18:00+01:00") from None

    @field_validator("checkpoints")
    @classmethod
    def _valid_place(cls, value: str | None) -> str | None:
        if value is None or checkpoint_block(value) is not None:
            return value
        place = parse_location(value)  # a folder is where the worker looks from, and not each run from its own folder
        return str(place.expanduser().absolute()) if isinstance(place, Path) else value

    @property
    def virtual_device_memory_bytes(self) -> int:
        """Memory of one virtual device, in bytes."""
        return parse_bytes(self.virtual_device_memory, field="virtual_device_memory")

    @property
    def container_memory_max_bytes(self) -> int | None:
        """Most main memory of a run's container, in bytes; None: no limit."""
        return (
            parse_bytes(self.container_memory_max, field="container_memory_max") if self.container_memory_max else None
        )

    @property
    def container_shm_max_bytes(self) -> int | None:
        """Most shared memory of a run's container, in bytes; None: no limit."""
        return parse_bytes(self.container_shm_max, field="container_shm_max") if self.container_shm_max else None

    @property
    def resolved_state_dir(self) -> Path:
        """The state folder, with the default filled in. It may not exist yet."""
        return (self.state_dir or get_current_settings().home / "gpu").expanduser()

    @property
    def resolved_history_url(self) -> str:
        """The history's SQLAlchemy URL, with the default filled in."""
        return self.history_url or f"sqlite:///{self.resolved_state_dir / 'history.db'}"


_BLOCK = "block:"


def checkpoint_block(checkpoints: str | None) -> str | None:
    """The name of the block that the setting ``checkpoints`` refers to; None if it is a place itself.

    Raises:
        ValueError: It refers to a block of another type, or names none.
    """
    if checkpoints is None or not checkpoints.startswith(_BLOCK):
        return None
    kind, _, name = checkpoints.removeprefix(_BLOCK).rpartition("/")
    if kind not in ("", "checkpoint-storage") or not name:
        raise ValueError(
            f"checkpoints={checkpoints!r}: the form is block:checkpoint-storage/NAME, and blocks of other types are no "
            "place for checkpoints."
        )
    return name
