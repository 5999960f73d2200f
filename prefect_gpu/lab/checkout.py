"""A lab whose nodes run this checkout with this machine's Python: no registry, and no image with packages in it.

The nodes get a small Debian image, made once on this machine. Containers see the checkout and the Python that runs
this, both read-only. Needs ``debootstrap`` beside what :mod:`prefect_gpu.lab.docker_nodes` needs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import prefect_gpu
from prefect_gpu.lab import docker_nodes
from prefect_gpu.runtime.drivers.docker import Endpoint

IMAGE = "prefect-gpu-lab:1"
ROOT = Path(prefect_gpu.__file__).parents[1]
DEBIAN_PACKAGES = ("docker.io", "debootstrap", "iproute2", "iptables")
_CACHE = Path("/var/tmp/prefect-gpu-images/debian.tar")
_PATH = "/usr/local/bin:/usr/bin:/bin"


def missing() -> list[str]:
    """What this machine lacks for such a lab, as people would say it; empty if it has all."""
    found = shutil.which("debootstrap", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    return [*docker_nodes.missing(), *([] if found else ["the program debootstrap"])]


def image_is_made() -> bool:
    """Whether the image has been made on this machine before; the first time takes a minute or two, and a network."""
    return _CACHE.exists()


@contextlib.contextmanager
def started(
    folder: Path,
    *,
    nodes: int = 3,
    prefix: str,
    subnet: str,
    labels: Mapping[str, str] | None = None,
    prepare: Callable[[docker_nodes.Lab], None] = lambda _: None,
) -> Iterator[docker_nodes.Lab]:
    """The Engines, joined to one Swarm, with the image on each.

    Args:
        folder: See :class:`.Lab`. Removed at the end.
        nodes: How many.
        prefix, subnet: See :class:`.Lab`.
        labels: Of every node.
        prepare: Called before the nodes start.

    Raises:
        SandboxError: Something is missing on this machine, or does not start.
    """
    _CACHE.parent.mkdir(parents=True, exist_ok=True)
    laid_out = docker_nodes.Lab(folder, nodes=nodes, prefix=prefix, subnet=subnet)
    laid_out.stop()  # what was killed before it could stop: its Engines' data would be taken for this lab's
    shutil.rmtree(folder, ignore_errors=True)
    prepare(laid_out)
    try:
        with laid_out as running:
            for node in running.nodes:
                client = Endpoint(node.url).connect()
                docker_nodes.debian_image(client, IMAGE, _CACHE)
                client.close()
            running.join_swarm({node.name: labels or {} for node in running.nodes})
            yield running
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _remove_unfinished()


def _remove_unfinished() -> None:
    """Remove what is left of an image that was not finished, unless something in it is still mounted."""
    mounted = Path("/proc/mounts").read_text()
    for left in _CACHE.parent.glob(f"{_CACHE.stem}.{os.getpid()}.*"):
        if f" {left}/" in mounted:
            continue
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink()


def volumes(*more: Path) -> list[str]:
    """What a container needs to run this checkout with this machine's Python.

    Args:
        more: Folders that it may write to, at the same path as here.
    """
    # A Python in /usr is Debian's own, and the image has the same.
    prefixes = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.base_prefix).resolve()} - {Path("/usr")}
    folders = [*(folder for folder in sorted(prefixes) if not folder.is_relative_to(ROOT)), ROOT]
    return [*(f"{folder}:{folder}:ro" for folder in folders), *(f"{folder}:{folder}" for folder in more)]


def environment() -> dict[str, str]:
    """The variables that go with it."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{_PATH}",
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
