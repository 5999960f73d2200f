"""The image of `deployments/image`, built on this machine without a registry, for labs in tests and benchmarks.

Built once and kept as a tar archive below ``/var/tmp/prefect-gpu-images``, by a hash of everything that goes into it.
What a change of our code needs is little: the Engine that builds keeps its layers. ``python -m tests.training_image``
builds it beforehand and prints where it is.

    archive = training_image()
    for node in lab.nodes:
        load(archive, node.url)          # afterwards, containers are made of the image IMAGE
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import docker

from prefect_gpu.lab import docker_nodes
from prefect_gpu.lab.sandbox import Process

IMAGE = "prefect-gpu:lab"
STANDINS = "prefect-gpu-standins:lab"
ROOT = Path(__file__).resolve().parents[1]
CACHE = Path("/var/tmp/prefect-gpu-images")
_SOURCES = (".dockerignore", "LICENSE", "NOTICE", "README.md", "constraints.txt", "deployments/image", "prefect_gpu",
            "pyproject.toml")  # fmt: skip
_BASE = "prefect-gpu-base:2"
_BASE_PACKAGES = (*docker_nodes.PYTHON, "ca-certificates", "python3-pip", "python3-venv")
_LEFT_OUT = "nvidia-nccl-cu12"  # a third of the image, of use with several GPUs alone
_KEPT = 5  # archives; somebody may be loading an older one


def missing() -> list[str]:
    """What this machine lacks to build it, as people would say it; empty if it has all."""
    return [*docker_nodes.missing(), *([] if shutil.which("debootstrap") else ["the program debootstrap"])]


def training_image(packages: str = "") -> Path:
    """The image's archive, which :func:`load` takes. Minutes the first time, then a fraction of a second.

    Args:
        packages: The build argument of this name: what else is installed, such as ``"torch==2.13.0"``. Wheels that
            pip is told of (``PIP_FIND_LINKS``) are there for the build.

    Raises:
        SandboxError: Something is missing on this machine, or the builder does not start.
        docker.errors.BuildError: The build failed; the message has its output.
    """
    key = f"{packages}\0{_LEFT_OUT}\0{_BASE_PACKAGES}"
    return _archive(_fingerprint(key, _files()), IMAGE, lambda client, context: _build(client, context, packages))


def standins() -> Path:
    """The archive of an image with PostgreSQL and Redis, for `deployments/compose.yaml` where none can be pulled."""
    folder = ROOT / "tests" / "deployments"

    def build(client: docker.DockerClient, _: Path) -> None:
        _ensure_base(client)
        client.images.build(
            path=str(folder),
            dockerfile="standins.Dockerfile",
            tag=STANDINS,
            buildargs={"BASE_IMAGE": _BASE},
            network_mode="host",
            rm=True,
        )

    files = [folder / "standins.Dockerfile", folder / "postgres.sh"]
    return _archive(_fingerprint(str(_BASE_PACKAGES), files), STANDINS, build)


def _archive(fingerprint: str, image: str, build: Callable[[docker.DockerClient, Path], None]) -> Path:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # somebody else may be building it
        archive = CACHE / f"{fingerprint}.tar"
        if not archive.exists():
            with _builder() as client, tempfile.TemporaryDirectory(prefix="prefect-gpu-context-") as context:
                build(client, Path(context))
                _save(client, image, archive)
            for old in sorted(CACHE.glob("????????????????.tar"), key=os.path.getmtime)[:-_KEPT]:
                old.unlink()
        return archive


def load(archive: Path, url: str, image: str = IMAGE) -> None:
    """Put an image on an Engine. An Engine that has it already is asked and left alone.

    Args:
        archive: From :func:`training_image` or :func:`standins`.
        url: The Engine's endpoint, such as a lab node's ``url``.
        image: What it is called there: :data:`IMAGE` or :data:`STANDINS`.
    """
    client = docker.DockerClient(base_url=url, timeout=600)
    with contextlib.closing(client):
        mark = f"prefect-gpu-lab-archive:{archive.stem}"
        if not any(mark in one.tags for one in client.images.list()):
            with archive.open("rb") as content:
                client.images.load(content)
            client.images.get(image).tag(mark)
        client.images.get(mark).tag(image)


def _fingerprint(key: str, files: list[Path]) -> str:
    digest = hashlib.sha256(key.encode())
    for file in files:
        digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _files() -> list[Path]:
    found: list[Path] = []
    for name in _SOURCES:
        place = ROOT / name
        found += [place] if place.is_file() else [file for file in place.rglob("*") if file.is_file()]
    left_out = ("__pycache__", "certificates", "wheels")
    return sorted(file for file in found if not any(part in left_out for part in file.parts))


def _build(client: docker.DockerClient, context: Path, packages: str) -> None:
    for file in _files():
        target = context / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target)
    certificates, wheels = context / "deployments/image/certificates", context / "deployments/image/wheels"
    certificates.mkdir()
    wheels.mkdir()
    authorities = os.environ.get("SSL_CERT_FILE")
    if authorities and Path(authorities).is_file():
        shutil.copyfile(authorities, certificates / "machine.crt")
    wanted = {word.partition("==")[0].strip() for word in packages.split()}
    for folder in os.environ.get("PIP_FIND_LINKS", "").split():
        for wheel in Path(folder).glob("*.whl"):
            if wheel.name.partition("-")[0] in wanted:
                shutil.copyfile(wheel, wheels / wheel.name)
    _ensure_base(client)
    client.images.build(
        path=str(context),
        dockerfile="deployments/image/Dockerfile",
        tag=IMAGE,
        buildargs={"BASE_IMAGE": _BASE, "PACKAGES": packages, "LEAVE_OUT": _LEFT_OUT},
        network_mode="host",
        rm=True,
        forcerm=True,
    )


def _ensure_base(client: docker.DockerClient) -> None:
    if not any(_BASE in image.tags for image in client.images.list()):
        docker_nodes.debian_image(client, _BASE, CACHE / "debian-with-venv.tar", _BASE_PACKAGES)


def _save(client: docker.DockerClient, image: str, archive: Path) -> None:
    temporary = archive.with_suffix(".tmp")
    with temporary.open("wb") as file:
        for part in client.images.get(image).save(named=image):
            file.write(part)
    temporary.replace(archive)


@contextlib.contextmanager
def _builder() -> Iterator[docker.DockerClient]:
    """An Engine that builds in this machine's own network, and makes none: it touches no rule of it."""
    folder = CACHE / "engine"
    folder.mkdir(exist_ok=True)
    socket, pidfile, log = folder / "docker.sock", folder / "docker.pid", CACHE / "engine.log"
    for left in (socket, pidfile, log):
        left.unlink(missing_ok=True)
    command = ["dockerd", f"--host=unix://{socket}", f"--data-root={folder / 'data'}", f"--exec-root={folder / 'exec'}",
               f"--pidfile={pidfile}", "--bridge=none", "--iptables=false", "--ip-forward=false"]  # fmt: skip
    env = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
    process = Process(command, log=log, env=env, cwd=CACHE)
    try:
        process.wait_for_output("API listen on", timeout_s=90.0)
        client = docker.DockerClient(base_url=f"unix://{socket}", timeout=1800)
        with contextlib.closing(client):
            yield client
    finally:
        process.terminate(timeout_s=30.0)
        for pid in docker_nodes._pids_of(folder):  # its containerd, if it was killed
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    print(training_image(" ".join(sys.argv[1:])), IMAGE)
