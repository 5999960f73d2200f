"""From the specification of a launch to a container that exists but does not run yet."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docker.errors import ImageNotFound, NotFound

from prefect_gpu.runtime.drivers import supervisor
from prefect_gpu.runtime.drivers.base import ContainerSpec, LaunchSpec
from prefect_gpu.runtime.drivers.docker import cut_off, inside, intent
from prefect_gpu.runtime.drivers.docker.gpus import gpu_access

if TYPE_CHECKING:
    from docker import DockerClient

LABEL = "prefect-gpu"  # its labels are prefect-gpu.run, prefect-gpu.pool, ...
FOLDER = "/prefect-gpu"  # in the container
LOCKS = "/prefect-gpu-locks"  # in the container: a volume of the node, so that all containers there see the same locks
_JOB = f"{FOLDER}/job.json"
_COMMAND = ("python3", "-I", "-S", f"{FOLDER}/inside.py", _JOB)
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


def leftovers(client: DockerClient, pool: str) -> list[str]:
    """Names of all containers of a pool's runs, running or not."""
    found = client.api.containers(all=True, filters={"label": f"{LABEL}.pool={pool}"})
    return [entry["Names"][0].lstrip("/") for entry in found if entry["Names"]]


def ensure_image(client: DockerClient, image: str, pull: str) -> tuple[Mapping[str, str], str]:
    """Pull the image if that is to be done. Returns the environment and the working folder that it declares.

    Raises:
        docker.errors.DockerException: It is not there and cannot be pulled.
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
                raise
    if found is None:
        client.images.pull(name)
        found = client.images.get(name)
    config = found.attrs["Config"]
    environment = dict(entry.split("=", 1) for entry in config.get("Env") or () if "=" in entry)
    return environment, config.get("WorkingDir") or "/"


def create(
    client: DockerClient,
    spec: LaunchSpec,
    how: ContainerSpec,
    name: str,
    mark: str,
    pool: str,
    network: str,
    contacts: bytes = b"",
) -> str:
    """Create the container, with everything that its first process needs in it.

    The job, which may hold secrets, is a file that is read and removed there: neither the container's environment, in
    which only NVIDIA's container toolkit looks for something, nor its labels show anything of it.

    Args:
        mark: See :mod:`.inside`.
        network: The one in which the instances of a gang meet.
        contacts: Whom it must be able to reach: see :mod:`.cut_off`.

    Returns:
        Its id.

    Raises:
        docker.errors.DockerException: The engine refuses it.
    """
    declared, folder = ensure_image(client, how.image, how.pull)
    told = client.api.info()
    cores = bool(spec.cpus) and max(spec.cpus) < int(told["NCPU"])  # else the machine has no such cores
    environment = {**declared, **spec.env}
    access = gpu_access(spec.gpus, told.get("Runtimes") or (), environment)
    # The job must be told the same as the toolkit; one that neither has nor was told of GPUs gets what it was given.
    environment |= {name: value for name, value in access.environment.items() if spec.gpus or name in environment}
    labels = {**how.labels, f"{LABEL}.run": spec.run_id, f"{LABEL}.pool": pool, f"{LABEL}.mark": mark}
    api = client.api
    limits = api.create_host_config(
        binds=[*how.volumes, f"{LOCKS.strip('/')}:{LOCKS}", *(f"{folder}:{folder}" for folder in spec.shares)],
        cpuset_cpus=",".join(map(str, spec.cpus)) if cores else None,
        mem_limit=how.memory_bytes,
        memswap_limit=how.memory_bytes,  # the sum of both: no swap, which would only make it slow
        shm_size=how.shm_bytes,
        network_mode=how.network or (network if spec.meets else None),
        runtime=access.runtime,
        device_requests=list(access.requests) or None,
    )
    made = api.create_container(
        how.image,
        entrypoint=list(_COMMAND),
        name=name,
        labels=labels,
        environment=dict(access.environment),
        host_config=limits,
        working_dir="/",
    )
    job = {
        "argv": list(spec.argv),
        "env": environment,
        "cwd": str(spec.cwd) if spec.cwd.is_absolute() else folder,
        "cpus": [] if cores else list(spec.cpus),  # those that are not there are said, and no reason not to run
        "mark": mark,
        "told_at": list(spec.told_at),
    }
    try:
        api.put_archive(made["Id"], "/", _archive(_files_of(job, contacts)))
    except BaseException:
        remove(client, made["Id"])
        raise
    return str(made["Id"])


def remove(client: DockerClient, container: str) -> None:
    """Remove a container, running or not; nothing if there is none."""
    with contextlib.suppress(NotFound):
        client.api.remove_container(container, force=True, v=True)


def give(client: DockerClient, container: str, name: str, content: bytes) -> None:
    """Put a small file into our folder in a container, running or not.

    Raises:
        docker.errors.DockerException: The container is not there any more.
    """
    client.api.put_archive(container, "/", _archive({name: content}))


def _files_of(job: dict[str, Any], contacts: bytes) -> dict[str, bytes]:
    """Our files, and the job."""
    return {
        "inside.py": Path(inside.__file__).read_bytes(),
        "intent.py": Path(intent.__file__).read_bytes(),
        "supervisor.py": Path(supervisor.__file__).read_bytes(),
        "cut_off.py": Path(cut_off.__file__).read_bytes(),
        **({cut_off.FILE: contacts} if contacts else {}),
        "job.json": json.dumps(job).encode("utf-8", "surrogateescape"),
    }


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
