"""A placement for tests of what goes over a network."""

from __future__ import annotations

from typing import Any

from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.placement.base import PlacementPolicy
from prefect_gpu.scheduling.placement.granting import grant, joined


class Where(PlacementPolicy):
    """Each job on the nodes that its name says, a device of each: ``n0+n2``, or ``n0+n2 again``."""

    def place(self, job: Any, state: Any, sharing: Any, kept: Any = ()) -> Placement | None:
        taken: list[str] = []
        parts = []
        for name in job.id.partition(" ")[0].split("+"):
            device = next(one.id for one in state.free_devices(name) if one.id not in taken)
            taken.append(device)
            parts.append(grant(job, state.nodes[name], (device,), state, sharing))
        return joined(parts)
