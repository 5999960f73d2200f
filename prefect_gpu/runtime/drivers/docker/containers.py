"""From the specification of a launch to a container that exists but does not run yet."""

from __future__ import annotations

import hashlib
import io
import json
import posixpath
import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docker.errors import APIError, ImageNotFound, NotFound

from prefect_gpu.runtime.drivers import fork_compatibility, intent, supervisor
from prefect_gpu.runtime.drivers.base import ContainerSpec, LaunchSpec
from prefect_gpu.runtime.drivers.docker import fencing, inside, waiting
from prefect_gpu.runtime.drivers.docker.engine import EngineError
from prefect_gpu.runtime.drivers.docker.gpus import GpuAccess, gpu_access
from prefect_gpu.runtime.drivers.docker.pulling import pull_image

if TYPE_CHECKING:
    from docker import DockerClient

LABEL = "prefect-gpu"  # its labels are prefect-gpu.run, prefect-gpu.pool, ...
_POOL_ID = "prefect.io/work-pool-id"  # Prefect's own: older versions gave it to the containers of runs, too
FOLDER = "/prefect-gpu"  # in the container
LOCKS = "/prefect-gpu-locks"  # in the container: a volume of the node, so that all containers there see the same locks
IDLE = "prefect-gpu-warm-"  # what the name of a container begins with that waits for a run
_COMMAND = ("python3", "-I", "-S", f"{FOLDER}/inside.py", f"{FOLDER}/job.json")
_ALWAYS = (inside, intent, supervisor, fencing)  # what every container has of ours
_TASK = f"{FOLDER}/warm.json"
_WARMING_QUOTA_US = 50_000  # of 100,000: half a core, so that warming up disturbs nobody who trains
_NOT_NEEDED = ("NET_RAW", "MKNOD", "AUDIT_WRITE", "SETFCAP")  # of what Docker gives root in a container
_LOCKS_MODE = 0o1777  # of a folder that no user of the node can reach, where containers of several users lock
_MEETING_PORT = 29500  # torchrun's; each container has ports of its own
_LONGEST_NAME = 40  # the whole name has at most 63 letters: it is a host name, too


def container_name(run_id: str, run_dir: Path) -> str:
    """The name of a launch's container: the same for every worker, and of no other launch."""
    readable = re.sub(r"[^a-zA-Z0-9_.-]+", "-", run_id)[:_LONGEST_NAME]
    return f"prefect-gpu-{readable}-{hashlib.sha256(f'{run_id}/{run_dir.name}'.encode()).hexdigest()[:10]}"


def meeting_point(run_id: str, run_dir: Path) -> tuple[str, int]:
    """Name and port at which a launch's container is reached by its gang: the name is its host name in the network."""
    return container_name(run_id, run_dir), _MEETING_PORT


def ensure_network(client: DockerClient, name: str, *, overlay: bool) -> None:
    """Make the network in which containers reach each other by name, if it is not there."""
    if any(network.name == name for network in client.networks.list(names=[name])):  # it asks for a part of the name
        return
    client.networks.create(
        name, driver="overlay" if overlay else "bridge", attachable=overlay, check_duplicate=True, labels={LABEL: "1"}
    )


@dataclass(frozen=True)
class Pool:
    """Whose a container is. Two pools of one name, of two Prefect servers, are two.

    Attributes:
        name: Its name.
        id: Its id in Prefect; empty: every pool of this name is the same.
    """

    name: str
    id: str = ""

    @property
    def labels(self) -> dict[str, str]:
        """What its containers are known by."""
        return {f"{LABEL}.pool": self.name, **({_POOL_ID: self.id} if self.id else {})}

    def owns(self, labels: Mapping[str, str]) -> bool:
        """Whether a container with these labels is one of this pool."""
        theirs = labels.get(_POOL_ID, "")
        return labels.get(f"{LABEL}.pool") == self.name and (not self.id or theirs in ("", self.id))


def leftovers(client: DockerClient, pool: Pool) -> list[str]:
    """Names of all containers of a pool's runs, running or not."""
    found = client.api.containers(all=True, filters={"label": f"{LABEL}.pool={pool.name}"})
    return [entry["Names"][0].lstrip("/") for entry in found if entry["Names"] and pool.owns(entry["Labels"])]


@dataclass(frozen=True)
class Image:
    """An image on an engine: its id, and the environment, the working folder and the user that it declares."""

    id: str
    environment: Mapping[str, str]
    folder: str
    user: str = ""


def ensure_image(client: DockerClient, image: str, pull: str) -> Image:
    """Find the image, and pull it if that is to be done.

    Raises:
        docker.errors.DockerException: It is not there and cannot be pulled.
        EngineError: It is not there and must not be pulled.
        ValueError: ``pull`` is none of the three words.
    """
    if pull not in ("missing", "always", "never"):
        raise ValueError(f"pull={pull!r}: say 'missing', 'always' or 'never'")
    name = image if ":" in image.rpartition("/")[2] or "@" in image else f"{image}:latest"
    found = None
    if pull != "always":
        try:
            found = client.images.get(name)
        except ImageNotFound:
            if pull == "never":
                raise EngineError(
                    f"The image {name} is not on its node, and its pull policy is Never: load it there, `docker load`, "
                    "or choose IfNotPresent."
                ) from None
    if found is None:
        client.api.reload_config()  # who has logged in since the worker started: the SDK reads logins once
        pull_image(client, name)
        found = client.images.get(name)
    config = found.attrs["Config"]
    environment = dict(entry.split("=", 1) for entry in config.get("Env") or () if "=" in entry)
    return Image(str(found.id), environment, config.get("WorkingDir") or "/", config.get("User") or "")


def create(
    client: DockerClient,
    spec: LaunchSpec,
    how: ContainerSpec,
    name: str,
    mark: str,
    pool: Pool,
    network: str,
    contacts: bytes,
    image: Image,
) -> str:
    """Create the container, with everything that its first process needs in it.

    The job, which may hold secrets, is a file that is read and removed there: neither the container's environment, in
    which only NVIDIA's container toolkit looks for something, nor its labels show anything of it.

    Args:
        mark: See :mod:`.inside`.
        network: The one in which the instances of a gang meet.
        contacts: Whom it must be able to reach: see :mod:`.fencing`.
        image: What :func:`ensure_image` found.

    Returns:
        Its id.

    Raises:
        docker.errors.DockerException: The engine refuses it.
    """
    told = client.api.info()
    cores = _has_cores(told, spec.cpus)
    access = gpu_access(spec.gpus, told.get("Runtimes") or (), {**image.environment, **spec.env})
    labels = {**how.labels, **pool.labels, f"{LABEL}.run": spec.run_id, f"{LABEL}.mark": mark}
    limits = client.api.create_host_config(
        **_limits(how, spec.shares),
        cpuset_cpus=",".join(map(str, spec.cpus)) if cores else None,
        network_mode=how.network or (network if spec.meets else None),
        runtime=access.runtime,
        device_requests=list(access.requests) or None,
    )
    files = _files(_ALWAYS) | {"job.json": job_of(spec, image, access, mark, cores), **_contacts(contacts)}
    owner = how.user or image.user
    return _create(client, how.image, _COMMAND, name, labels, access, limits, files, owner, spec.shares)


def create_idle(
    client: DockerClient, how: ContainerSpec, image: Image, name: str, pool: Pool, task: Mapping[str, Any]
) -> str:
    """Create a container that waits for a run.

    Args:
        image: By its id: the tag may be another image's by now.
        task: What :mod:`.waiting` takes. Nothing of it is secret.

    Returns:
        Its id.

    Raises:
        docker.errors.DockerException: The engine refuses it.
    """
    labels = {**how.labels, **pool.labels, f"{LABEL}.mark": task["mark"], f"{LABEL}.warm": "1"}
    access = gpu_access((), client.api.info().get("Runtimes") or (), image.environment)  # none, and it must say so
    limits = client.api.create_host_config(
        **_limits(how, ()),
        cpu_quota=_WARMING_QUOTA_US,
        network_mode=how.network or None,
        runtime=access.runtime,
    )
    files = _files((*_ALWAYS, fork_compatibility, waiting)) | {"warm.json": json.dumps(task).encode()}
    owner = how.user or image.user
    return _create(client, image.id, (*_COMMAND, _TASK), name, labels, access, limits, files, owner)


def _create(
    client: DockerClient,
    image: str,
    command: Sequence[str],
    name: str,
    labels: dict[str, str],
    access: GpuAccess,
    limits: dict[str, Any],
    files: Mapping[str, bytes],
    user: str,
    shares: Sequence[Path] = (),
) -> str:
    """A container with these files of ours in it; none is left if they cannot be put there.

    Args:
        user: As whom its processes run; empty: root.
        shares: Folders of the node that must be this user's: an Engine makes them as root's.
    """
    made = client.api.create_container(
        image,
        entrypoint=list(command),
        name=name,
        labels=labels,
        environment=dict(access.environment),
        host_config=limits,
        working_dir="/",
        user=user or None,
    )
    try:
        client.api.put_archive(made["Id"], "/", _archive(files))
        if user.partition(":")[0] not in ("", "0", "root"):
            owner = _ids(client, made["Id"], user)
            folders = [(LOCKS, _LOCKS_MODE, (0, 0)), *((str(share), 0o700, owner) for share in shares)]
            client.api.put_archive(made["Id"], "/", _folders(folders))
    except BaseException:
        remove(client, made["Id"])
        raise
    return str(made["Id"])


def hand_over(
    client: DockerClient, container: str, spec: LaunchSpec, image: Image, mark: str, contacts: bytes = b""
) -> None:
    """Give a container that waits the cores and the job of a launch, as :func:`create` would have. It begins later.

    Raises:
        docker.errors.DockerException: The engine refuses it.
    """
    told = client.api.info()
    cores = _has_cores(told, spec.cpus)
    client.api.update_container(
        container, cpu_quota=-1, **({"cpuset_cpus": ",".join(map(str, spec.cpus))} if cores else {})
    )
    access = gpu_access((), told.get("Runtimes") or (), {**image.environment, **spec.env})
    files = {"job.json": job_of(spec, image, access, mark, cores), **_contacts(contacts)}
    client.api.put_archive(container, "/", _archive(files))


def begin(client: DockerClient, container: str) -> None:
    """Tell a container that waited that its job is there. Once it has begun, this is nothing to it.

    Raises:
        docker.errors.DockerException: It does not run any more, for example.
    """
    client.api.kill(container, signal=waiting.BEGIN.name)


def has_begun(client: DockerClient, container: str) -> bool:
    """Whether a run was ever started in a container, which may have ended."""
    try:
        content, _ = client.api.get_archive(container, f"{FOLDER}/run/{supervisor.CLAIM}")
    except NotFound:
        return False
    content.close()
    return True


def seen(client: DockerClient, name: str) -> dict[str, Any] | None:
    """What an engine shows of a container of ours: ``container`` (its id), ``mark``, ``cores`` and ``warm``.

    Returns:
        None if there is no such container.

    Raises:
        docker.errors.DockerException: The engine does not say.
    """
    try:
        told = client.api.inspect_container(name)
    except NotFound:
        return None
    labels, cores = told["Config"]["Labels"], told["HostConfig"].get("CpusetCpus")
    return {
        "container": told["Id"],
        "mark": labels[f"{LABEL}.mark"],
        "cores": len(cores.split(",")) if cores else 0,
        "warm": f"{LABEL}.warm" in labels,
    }


def job_of(spec: LaunchSpec, image: Image, access: GpuAccess, mark: str, cores: bool) -> bytes:
    """What :mod:`.inside` is to start.

    Args:
        access: What the container was told of GPUs.
        cores: Whether the container is bound to the launch's cores.
    """
    environment = {**image.environment, **spec.env}
    # The job must be told the same as the toolkit; one that neither has nor was told of GPUs gets what it was given.
    environment |= {name: value for name, value in access.environment.items() if spec.gpus or name in environment}
    job = {
        "argv": list(spec.argv),
        "env": environment,
        "cwd": str(spec.cwd) if spec.cwd.is_absolute() else image.folder,
        "cpus": [] if cores else list(spec.cpus),  # those that are not there are said, and no reason not to run
        "mark": mark,
        "told_at": list(spec.told_at),
    }
    return json.dumps(job).encode("utf-8", "surrogateescape")


def _limits(how: ContainerSpec, shares: Sequence[Path]) -> dict[str, Any]:
    return {
        "binds": [*how.volumes, f"{LOCKS.strip('/')}:{LOCKS}", *(f"{folder}:{folder}" for folder in shares)],
        "mem_limit": how.memory_bytes,
        "memswap_limit": how.memory_bytes,  # the sum of both: no swap, which would only make it slow
        "shm_size": how.shm_bytes,
        "pids_limit": how.pids,
        **({} if how.privileges else {"cap_drop": list(_NOT_NEEDED), "security_opt": ["no-new-privileges"]}),
    }


def remove(client: DockerClient, container: str) -> None:
    """Remove a container, running or not; nothing if there is none, or if somebody is removing it."""
    try:
        client.api.remove_container(container, force=True, v=True)
    except NotFound:
        pass
    except APIError as error:
        if not is_being_removed(error):
            raise


def is_being_removed(error: Exception) -> bool:
    """Whether an Engine refuses something because it is removing the container in this moment."""
    return isinstance(error, APIError) and error.status_code == HTTPStatus.CONFLICT


def give(client: DockerClient, container: str, name: str, content: bytes) -> None:
    """Put a small file into our folder in a container, running or not.

    Raises:
        docker.errors.DockerException: The container is not there any more.
    """
    client.api.put_archive(container, "/", _archive({name: content}))


def _files(modules: Sequence[Any]) -> dict[str, bytes]:
    """Files of ours, by the names under which they find each other in a container."""
    return {f"{module.__name__.rpartition('.')[2]}.py": Path(module.__file__).read_bytes() for module in modules}


def _contacts(contacts: bytes) -> dict[str, bytes]:
    return {fencing.FILE: contacts} if contacts else {}


def _has_cores(told: Mapping[str, Any], cpus: tuple[int, ...]) -> bool:
    """Whether the engine's machine has these cores, so that the container may be held to them."""
    return bool(cpus) and max(cpus) < int(told["NCPU"])


def _ids(client: DockerClient, container: str, user: str) -> tuple[int, int]:
    """The numbers of a user and his group, which the image may call by name."""
    name, _, group = user.partition(":")
    rows = _rows(client, container, "/etc/passwd") if not name.isdigit() or not group else []
    known = next((row for row in rows if name in (row[0], row[2])), ["", "", name, name])
    if group and not group.isdigit():
        group = next((row[2] for row in _rows(client, container, "/etc/group") if row[0] == group), "0")
    uid, gid = known[2], group or known[3]
    return int(uid) if uid.isdigit() else 0, int(gid) if gid.isdigit() else 0


def _rows(client: DockerClient, container: str, path: str) -> list[list[str]]:
    try:
        content, _ = client.api.get_archive(container, path)
    except NotFound:
        return []
    with tarfile.open(fileobj=io.BytesIO(b"".join(content))) as archive:
        file = archive.extractfile(posixpath.basename(path))
        text = file.read().decode(errors="replace") if file is not None else ""
    return [row for row in (line.split(":") for line in text.splitlines()) if len(row) > 3]


def _folders(folders: Sequence[tuple[str, int, tuple[int, int]]]) -> bytes:
    """A tar archive of folders that are there already, as they shall be: path, mode, user and group."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, mode, (uid, gid) in folders:
            folder = tarfile.TarInfo(path.strip("/"))
            folder.type, folder.mode, folder.uid, folder.gid = tarfile.DIRTYPE, mode, uid, gid
            archive.addfile(folder)
    return packed.getvalue()


def _archive(files: Mapping[str, bytes]) -> bytes:
    """A tar archive of files in our folder."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        folder = tarfile.TarInfo(FOLDER.strip("/"))
        folder.type, folder.mode = tarfile.DIRTYPE, 0o777  # whoever the image's user is
        archive.addfile(folder)
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{FOLDER.strip('/')}/{name}")
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
