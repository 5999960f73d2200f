"""A pool on a Swarm of this machine, as a test sees it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from docker.errors import APIError, NotFound
from prefect.client.orchestration import PrefectClient

from prefect_gpu.lab.checkout import IMAGE, environment, volumes
from prefect_gpu.lab.docker_nodes import Lab
from prefect_gpu.lab.sandbox import Process, Sandbox
from prefect_gpu.runtime.drivers.docker import Endpoint
from prefect_gpu.runtime.drivers.docker.containers import IDLE
from tests.live.pool import LivePool


class ClusterPool(LivePool):
    """See :class:`LivePool`. Containers see the test's folder and this checkout, and use this machine's Python."""

    def __init__(self, sandbox: Sandbox, client: PrefectClient, name: str, folder: Path, lab: Lab) -> None:
        super().__init__(sandbox, client, name, folder)
        self.lab = lab

    def start_worker(self, *arguments: str, wait: bool = True, state_dir: Path | None = None, **env: Any) -> Process:
        settings = {
            "driver": "swarm",
            "docker_host": self.lab.nodes[0].url,
            "advertise": self.lab.gateway,
            "channel_host": "0.0.0.0",
            "image": IMAGE,
            "checkpoints": str(self.folder / "checkpoints"),
            "container_volumes": "*",
        }
        return super().start_worker(*arguments, wait=wait, state_dir=state_dir, **(settings | env))

    async def submit(self, flow: str = "train", *, job_variables: dict[str, Any] | None = None, **more: Any) -> UUID:
        own = dict(job_variables or {})
        env = environment() | {"NOTES": str(self.notes)} | (own.pop("env", None) or {})
        return await super().submit(flow, job_variables={"env": env, "volumes": volumes(self.folder), **own}, **more)

    def containers(self) -> dict[str, list[str]]:
        """Names of the containers of this pool's runs, by node; a node that is down has none."""
        found: dict[str, list[str]] = {}
        for node in self.lab.nodes:
            if node.process is None:
                continue
            client = Endpoint(node.url).connect()
            label = f"prefect-gpu.pool={self.name}"
            names = [
                one.name for one in client.containers.list(all=True, ignore_removed=True, filters={"label": label})
            ]
            found[node.name] = [name for name in names if not name.startswith(IDLE)]
            client.close()
        return {name: names for name, names in found.items() if names}

    def one_waits(self) -> bool:
        """Whether a container that waits for a run is ready for it."""
        found = False
        for node in self.lab.nodes:
            if node.process is not None:
                client = Endpoint(node.url).connect()
                chosen = {"label": f"prefect-gpu.pool={self.name}", "name": IDLE}
                for one in client.containers.list(ignore_removed=True, filters=chosen):
                    with suppress(NotFound):  # it was taken or removed meanwhile
                        found = found or b'"ready"' in one.logs()
                client.close()
        return found

    def remove_containers(self) -> None:
        """So that what one test leaves is not the next one's trouble."""
        for node in self.lab.nodes:
            if node.process is not None:
                client = Endpoint(node.url).connect()
                label = f"prefect-gpu.pool={self.name}"
                for one in client.containers.list(all=True, ignore_removed=True, filters={"label": label}):
                    with suppress(APIError):  # it is being removed
                        one.remove(force=True)
                client.close()
