"""A Docker Engine of the test's own, whose only image shows this machine's programs: nothing is pulled or built."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import docker

from prefect_gpu.sandbox import Process, wait_until

IMAGE = "this-machine:latest"
SHOWN = ("/usr", "/etc", "/root", "/work", "/tmp", "/var/tmp")
_LINKS = {name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")}


@contextlib.contextmanager
def private_engine(folder: Path) -> Iterator[str]:
    """Start an Engine beside any other one; gives its URL. Its containers have the machine's own network.

    Needs root. At the end its containers, its network and itself are gone.
    """
    url = f"unix://{folder / 'docker.sock'}"
    command = ["dockerd", "--data-root", str(folder / "data"), "--exec-root", str(folder / "exec"), "-H", url]
    command += ["--pidfile", str(folder / "pid"), "--iptables=false", "--bridge=none", "--ip-forward=false"]
    process = Process(command, log=folder / "dockerd.log", env=os.environ, cwd=folder)
    client = docker.DockerClient(base_url=url, version="1.41", timeout=60)
    try:

        def answers() -> bool:
            with contextlib.suppress(Exception):
                return bool(client.ping())
            return False

        wait_until(answers, what=f"the Engine ({process.log})")
        _import_image(client)
        yield url
        for container in client.containers.list(all=True):
            container.remove(force=True)
        for network in client.networks.list(filters={"label": "prefect-gpu"}):
            network.remove()
    finally:
        client.close()
        process.terminate(timeout_s=20)
        # It leaves this behind, and nobody could remove the folder then.
        subprocess.run(["umount", str(folder / "exec" / "netns" / "default")], check=False, capture_output=True)


def _import_image(client: docker.DockerClient) -> None:
    """An image of empty folders, to be filled by binding this machine's over them."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in (*(path.strip("/") for path in SHOWN), "var", "proc", "sys", "dev"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
        for name, target in _LINKS.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
    repository, _, tag = IMAGE.partition(":")
    client.api.import_image_from_data(packed.getvalue(), repository=repository, tag=tag)


def binds() -> list[str]:
    """What a container needs to see of this machine."""
    return [f"{path}:{path}" for path in SHOWN if Path(path).exists()]
