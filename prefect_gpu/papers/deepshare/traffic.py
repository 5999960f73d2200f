"""How the paper's models communicate (Table I), and what is supposed of others by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.interference.sensitivity import Traffic
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.reaction import Reaction

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision

TRAFFIC: Mapping[str, Traffic] = {
    "GraphSage": Traffic(24.63e6, 0.57),
    "MobileNetV3": Traffic(211.25e6, 2.43),
    "DLRM": Traffic(170.28e6, 13.36),
    "Transformer-XL": Traffic(854.82e6, 1.87),
    "FSDP": Traffic(2672.40e6, 7.32),
    "MoE": Traffic(929.48e6, 13.79),
}
"""The paper's models (Table I)."""

OF_CATEGORY: Mapping[str, Traffic] = {
    "cv": TRAFFIC["MobileNetV3"],
    "nlp": TRAFFIC["Transformer-XL"],
    "recommendation": TRAFFIC["DLRM"],
}
"""What a program of a category is taken to communicate like until it was measured: the paper's model of that kind."""


class SupposedTraffic(Reaction):
    """Until more is known of a program, it is taken to communicate like others of its category: :data:`OF_CATEGORY`."""

    def __init__(self) -> None:
        self._supposed: dict[str, Traffic] = {}

    def react(self, event: ev.Event, decision: Decision) -> bool:
        """Suppose it of a program that is submitted, or found running."""
        match event:
            case ev.JobSubmitted(_, request) | ev.JobAdopted(_, request) if request.kind:
                table, traffic = decision.state.learned.sensitivity, OF_CATEGORY.get(request.category or "")
                known = table.traffic_of(request.kind)
                if traffic is not None and (known is None or known is self._supposed.get(request.kind)):
                    self._supposed[request.kind] = traffic
                    table.communicates(request.kind, traffic)
        return False
