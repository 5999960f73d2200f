"""What every worker of Prefect's tells of each launch: labels of the flow run, and two events.

Automations act on the events: ``prefect.worker.submitted-flow-run`` when the run's process or container exists, and
``prefect.worker.executed-flow-run`` when it is gone, with how it ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import prefect
from prefect.events import Event, RelatedResource, emit_event
from prefect.events.related import object_as_related_resource
from prefect.types import KeyValueLabels
from prefect.workers.base import BaseWorker

from prefect_gpu.runtime.launch.launch import Follower, Launch
from prefect_gpu.worker.telling.related import related, related_pool, related_tags

if TYPE_CHECKING:
    from prefect.client.schemas.objects import Flow, FlowRun
    from prefect.client.schemas.responses import DeploymentResponse


class Told(Follower):
    """What the events of a launch are about, and the first of them."""

    def __init__(self, flow_run: FlowRun, flow: Flow, deployment: DeploymentResponse | None) -> None:
        about = {"deployment": deployment, "flow": flow, "flow-run": flow_run}
        there = {kind: one for kind, one in about.items() if one is not None}
        tags = {tag for one in there.values() for tag in getattr(one, "tags", ())}
        self.about = [object_as_related_resource(kind=kind, role=kind, object=one) for kind, one in there.items()]
        self.about += related_tags(tags)
        self.submitted: Event | None = None


class LaunchEvents:
    """Tells of the launches of one worker."""

    def __init__(self, worker: BaseWorker[Any, Any, Any]) -> None:
        self._worker = worker

    @property
    def labels(self) -> KeyValueLabels:
        """Which worker has a run, as labels of the run."""
        worker, pool = self._worker, self._worker.work_pool
        return {
            "prefect.worker.name": worker.name,
            "prefect.worker.type": worker.type,
            "prefect.work-pool.name": pool.name,
            "prefect.work-pool.id": str(pool.id),
        }

    def submitted(self, run: Launch) -> None:
        """Its process or container exists."""
        told = run.attached(Told)
        if told is not None:
            told.submitted = self._emit("submitted", told.about)

    def executed(self, run: Launch, identifier: str, returncode: int | None) -> None:
        """It is gone.

        Args:
            identifier: What Prefect calls it.
            returncode: None: nobody knows.
        """
        told = run.attached(Told)  # of an adopted run only its record is known
        about = told.about if told else [related("flow-run", run.run_id, run.record.name)]
        ended = {"prefect.infrastructure.identifier": identifier}
        if returncode is not None:
            ended["prefect.infrastructure.status-code"] = str(returncode)
        with_end = [RelatedResource({**dict(one), **ended}) if one.role == "flow-run" else one for one in about]
        self._emit("executed", with_end, follows=told.submitted if told else None)

    def _emit(self, what: str, about: list[RelatedResource], follows: Event | None = None) -> Event | None:
        worker = self._worker
        resource = {
            "prefect.resource.id": f"prefect.worker.{worker.type}.{worker.get_name_slug()}",
            "prefect.resource.name": worker.name,
            "prefect.version": prefect.__version__,
            "prefect.worker-type": worker.type,
        }
        beside = [*about, related_pool(worker.work_pool)]
        return emit_event(f"prefect.worker.{what}-flow-run", resource=resource, related=beside, follows=follows)
