"""The cluster demo's own Prefect: as the other demo's, with a worker that starts containers on the lab's nodes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prefect_gpu.demo.stage import POOL, Stage
from prefect_gpu.lab import checkout
from prefect_gpu.lab.docker_nodes import Lab
from prefect_gpu.lab.sandbox import Process

_RESULTS_BLOCK = "cluster-demo"
_MAKE_BLOCK = """
import sys
from prefect.filesystems import LocalFileSystem
LocalFileSystem(basepath=sys.argv[1]).save(sys.argv[2], overwrite=True)
"""
_SWEEP = """
import json, sys
from flows.automl_sweep import automl_sweep
automl_sweep(**json.loads(sys.argv[1]))
"""
_READ_RESULTS = """
import json, sys
from uuid import UUID
from prefect import get_client
with get_client(sync_client=True) as client:
    told = {}
    for name in sys.argv[1:]:
        state = client.read_flow_run(UUID(name)).state
        told[name] = state.result(raise_on_failure=False) if state.is_completed() else None
print(json.dumps(told))
"""


class ClusterStage(Stage):
    """See :class:`.Stage`. Everything that the nodes must see lies in one folder, which they see at the same path.

    Args:
        lab: The nodes. They run.
        folder: Everything of this Prefect goes there.
        output: Folder that runs may write to as well.
    """

    def __init__(self, lab: Lab, folder: Path, output: Path) -> None:
        self.shared = folder / "shared"
        self.checkpoints = self.shared / "checkpoints"
        self._output = output
        own = {
            "DRIVER": "swarm",
            "DOCKER_HOST": lab.nodes[0].url,
            "ADVERTISE": lab.gateway,
            "CHANNEL_HOST": lab.gateway,  # and not all addresses: nobody else has anything to say there
            "IMAGE": checkout.IMAGE,
            "CHECKPOINTS": str(self.checkpoints),
            "CONTAINER_VOLUMES": ",".join(volume.partition(":")[0] for volume in self._volumes()),
        }
        everywhere = {
            "PYTHONPATH": str(checkout.ROOT),
            "PREFECT_RESULTS_DEFAULT_STORAGE_BLOCK": f"local-file-system/{_RESULTS_BLOCK}",
            # The machine's proxies do not know the lab's addresses.
            **{name: f"{os.environ.get(name, '')},{lab.gateway}".strip(",") for name in ("NO_PROXY", "no_proxy")},
        }
        settings = {f"PREFECT_INTEGRATIONS_GPU_{name}": value for name, value in own.items()}
        super().__init__(settings | everywhere, host=lab.gateway, folder=folder)
        for path in (self.shared, self.checkpoints):
            path.mkdir()

    def start_worker(self) -> None:
        """See :meth:`.Stage.start_worker`. The pool is made before, for each run to get this machine's Python."""
        self._sandbox.prefect("work-pool", "create", POOL, "--type", "gpu")
        self._set_defaults()  # and the checkout, unless it says otherwise
        super().start_worker()

    def _volumes(self) -> list[str]:
        """What the runs see of this machine."""
        return checkout.volumes(self.shared, self._output)

    def _set_defaults(self) -> None:
        pool = self._get(f"/work_pools/{POOL}")
        template = pool["base_job_template"]
        properties = template["variables"]["properties"]
        properties["volumes"]["default"] = self._volumes()
        one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # a run has one core or two
        properties["env"]["default"] = checkout.environment() | one_thread
        self._http.patch(f"/work_pools/{POOL}", json={"base_job_template": template}).raise_for_status()

    def deploy(self) -> None:
        """See :meth:`.Stage.deploy`. What runs return goes where all nodes and this machine see it."""
        self._sandbox.run([sys.executable, "-c", _MAKE_BLOCK, str(self.shared / "results"), _RESULTS_BLOCK])
        super().deploy()

    def start_sweep(self, **parameters: Any) -> Process:
        """Run the sweep here, as a process of this machine; its trials go to the pool."""
        return self._sandbox.start([sys.executable, "-c", _SWEEP, json.dumps(parameters)], "sweep")

    def results(self, run_ids: Iterable[str]) -> dict[str, Any]:
        """What these runs have returned; None of one that has not completed."""
        answer = self._sandbox.run([sys.executable, "-W", "ignore", "-c", _READ_RESULTS, *run_ids])
        return dict(json.loads(next(line for line in answer.splitlines() if line.startswith("{"))))

    def has_checkpoint(self, run_id: str) -> bool:
        """Whether the run could carry on elsewhere."""
        return (self.checkpoints / run_id / "current").exists()
