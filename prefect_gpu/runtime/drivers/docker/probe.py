"""Which GPUs an Engine's machine has, asked of NVML in a short-lived container where nobody has stated them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from logging import Logger, LoggerAdapter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect_gpu.runtime.drivers.base import ContainerSpec
from prefect_gpu.runtime.drivers.docker import containers, probe_inside
from prefect_gpu.runtime.drivers.docker.engine import Endpoint, EngineError, explained
from prefect_gpu.runtime.drivers.docker.gpus import CAPABILITIES, RUNTIME, VISIBLE
from prefect_gpu.runtime.drivers.docker.nodes import Gpu, SwarmNode

if TYPE_CHECKING:
    from docker import DockerClient

_FILE = "probe_inside.py"
_LONGEST_S = 60.0  # a driver that hangs answers never
_PATIENCE_S = 60.0  # for the first answer: without it, a worker that starts would not know what its old runs are on
_AGAIN_S = 60.0  # after one that failed: the image may have been loaded meanwhile, or the driver repaired
_REMEDY = (
    "Or state the GPUs: by labels of the node (prefect-gpu.gpus=GPU-...,GPU-... and prefect-gpu.gpu-memory=80GiB), in "
    "the block of the cluster (gpus, gpu_memory), or as node-generic-resources of its Engine. To train on its CPU "
    "only: prefect-gpu.virtual-devices=1."
)


class Discovery:
    """What a probe has found on one Engine. An answer is kept for as long as this object is: while the Engine is up.

    Args:
        node: The node's name.
        image: What the container is made of; None: there is no image to make it of.
        logger: Told, once, why the GPUs of a node that should have some are not known.
    """

    def __init__(
        self,
        client: DockerClient,
        endpoint: Endpoint,
        node: str,
        image: ContainerSpec | None,
        pool: containers.Pool,
        logger: Logger | LoggerAdapter[Any],
    ) -> None:
        self._client, self._endpoint, self._node, self._image, self._pool = client, endpoint, node, image, pool
        self._logger = logger
        self._gpus: tuple[Gpu, ...] | None = ()  # None: it has no runtime for GPUs
        self._task: asyncio.Task[None] | None = None
        self._next = 0.0  # on the monotonic clock
        self._said = ""
        self.container = f"prefect-gpu-probe-{secrets.token_hex(8)}"

    async def complete(self, node: SwarmNode) -> SwarmNode:
        """The node with its GPUs, as far as they are known by now.

        Only the first call waits for an answer, and not for long: an image that is pulled first takes minutes.

        Raises:
            ValueError: A label's value makes no sense.
        """
        if not node.needs_probe:
            return node
        if self._task is None or (self._task.done() and not self._gpus and time.monotonic() >= self._next):
            first = self._task is None
            self._task = asyncio.create_task(self._find(), name=f"GPUs of {self._node}")
            await asyncio.wait((self._task,), timeout=_PATIENCE_S if first else 0)
        return node if self._gpus is None else node.with_gpus(self._gpus)

    def close(self) -> None:
        """Wait for no answer any more."""
        if self._task is not None:
            self._task.cancel()

    async def _find(self) -> None:
        try:
            with explained(self._endpoint, "list its runtimes"):
                told = await asyncio.to_thread(self._client.info)
            if RUNTIME not in (told.get("Runtimes") or ()):
                self._gpus = None
                return
            self._gpus = ()  # it should have some, whatever becomes of the probe
            self._gpus, troubles = await asyncio.to_thread(self._ask)
            self._say(" ".join(troubles))
        except EngineError as error:
            self._say(f"Its GPUs are not known, and not used. {error} {_REMEDY}")
        finally:
            self._next = time.monotonic() + _AGAIN_S

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self._said:
            self._logger.error("Node %s: %s", self._node, trouble)
        self._said = trouble

    # -- in a thread --------------------------------------------------------------------------------------------------

    def _ask(self) -> tuple[tuple[Gpu, ...], list[str]]:
        if self._image is None:
            raise EngineError("No image is given for a container that asks NVIDIA's driver: set `image`.")
        with explained(self._endpoint, f"ask NVIDIA's driver for its GPUs in a container of {self._image.image}"):
            code, output, errors = run_probe(self._client, self._image, self.container, self._pool)
        try:
            said = json.loads(output)
        except ValueError:
            last = (errors or output).strip().rpartition("\n")[2]
            raise EngineError(
                f"The container of {self._image.image} that asks NVIDIA's driver ended with code {code}: {last!r}. The "
                "image must have Python 3.9 or newer, as `python3` on its PATH."
            ) from None
        if "error" in said:
            raise EngineError(
                f"NVIDIA's driver does not answer in a container: {said['error']}. See `nvidia-smi` there."
            )
        gpus = tuple(Gpu(**gpu) for gpu in said["gpus"])
        if not gpus:
            raise EngineError(" ".join(["NVIDIA's driver knows no GPU that can be used.", *said["troubles"]]))
        return gpus, said["troubles"]


def run_probe(client: DockerClient, how: ContainerSpec, name: str, pool: containers.Pool) -> tuple[int, str, str]:
    """Ask NVML in a container that sees all GPUs, and remove it.

    Returns:
        The container's exit code, what it printed, and what it complained of.

    Raises:
        docker.errors.DockerException: The Engine refuses it, or nothing came in time.
    """
    containers.ensure_image(client, how.image, how.pull)
    containers.remove(client, name)  # one that could not be removed the last time
    api = client.api
    made = api.create_container(
        how.image,
        entrypoint=["python3", "-I", "-S", f"{containers.FOLDER}/{_FILE}"],
        name=name,
        labels=pool.labels,  # one that a worker leaves behind is swept like a run's
        environment={VISIBLE: "all", CAPABILITIES: "utility"},
        host_config=api.create_host_config(runtime=RUNTIME, network_mode="none"),
        working_dir="/",
    )
    try:
        containers.give(client, made["Id"], _FILE, Path(probe_inside.__file__).read_bytes())
        api.start(made["Id"])
        code = int(api.wait(made["Id"], timeout=_LONGEST_S)["StatusCode"])
        output, errors = (api.logs(made["Id"], stdout=out, stderr=not out) for out in (True, False))
        return code, output.decode(errors="replace"), errors.decode(errors="replace")
    finally:
        with contextlib.suppress(Exception):  # the Engine is away: it is swept when that is back
            containers.remove(client, made["Id"])


__all__ = ["Discovery", "run_probe"]
