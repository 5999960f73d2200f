"""Prefect events of what the pool does with its runs: automations can act on them, and the run's page lists them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prefect.client.schemas.objects import FlowRun, WorkPool
from prefect.events import RelatedResource

from prefect_gpu.runtime.activity_log import LEFT
from prefect_gpu.runtime.launch.launch import Adjustment, Follower, Launch, Suspend
from prefect_gpu.runtime.telemetry.faults import Fault
from prefect_gpu.scheduling.model.instructions import Finish, Move, SetShare
from prefect_gpu.training import protocol
from prefect_gpu.worker.telling.related import related, related_pool, related_tags

PREFIX = "prefect-gpu.run."
CORDONED = "prefect-gpu.device.cordoned"
AT_RISK = "prefect-gpu.promise.at-risk"
UNWELL = "prefect-gpu.device.unwell"
_PHASES = (protocol.PREPARING, protocol.TRAINING, protocol.SAVING)
_LONGEST = 1000  # characters of a message


class RunEvents(Follower):
    """Emits them.

    Args:
        pool: The runs' work pool.
        flow_run: A run as it was read last; None: not read by this worker.
        emit: Prefect's function, or what takes its place where nothing is to be emitted.
        happened: Told of each event as well, by the last part of its name.

    An event is named ``prefect-gpu.run.<what>``, where that is ``waiting``, ``granted``, ``preparing``, ``training``,
    ``saving``, ``demoted``, ``converged``, ``wasting``, ``preempted``, ``suspended``, ``moved``, ``resized`` or
    ``ended``. Its resource is ``prefect-gpu.run.<flow run's id>``, with the labels ``prefect-gpu.pool`` and, once the
    run has ended, ``prefect-gpu.outcome``. The flow run, its flow, deployment, queue, pool and tags are related
    resources. Its payload says what there is to say: ``devices``, ``nodes``, ``step``, ``reason``, ``waited_s``,
    ``weight``, ``stage``, ``outcome``, ``message``.
    """

    def __init__(
        self,
        pool: WorkPool,
        flow_run: Callable[[str], FlowRun | None],
        emit: Callable[..., Any],
        happened: Callable[[str], None],
    ) -> None:
        self._pool, self._flow_run, self._emit, self._happened = pool, flow_run, emit, happened
        self._demoted: set[str] = set()
        self._related: dict[str, list[RelatedResource]] = {}  # of launched runs: when one has ended, it is read no more

    def waiting(self, flow_run: FlowRun, reason: str) -> None:
        """A run is shown as waiting for the first time."""
        self._say("waiting", str(flow_run.id), flow_run.name, reason=reason)

    def cordoned(self, device: str, reason: str) -> None:
        """A device is out of service."""
        self._about_device(CORDONED, device, reason)

    def unwell(self, fault: Fault) -> None:
        """Something is wrong with a device that stays in service."""
        self._about_device(UNWELL, fault.device, fault.words)

    def _about_device(self, event: str, device: str, reason: str) -> None:
        self._emit(
            event=event,
            resource={
                "prefect.resource.id": f"prefect-gpu.device.{device}",
                "prefect.resource.name": device,
                "prefect-gpu.pool": self._pool.name,
            },
            related=[related_pool(self._pool)],
            payload={"reason": reason},
        )

    def at_risk(self, run_id: str, name: str, reason: str, deadline: float | None) -> None:
        """A run that was promised its deadline may miss it.

        Args:
            deadline: Unix seconds.
        """
        self._emit(
            event=AT_RISK,
            resource={
                "prefect.resource.id": f"prefect-gpu.promise.{run_id}",
                "prefect.resource.name": name,
                "prefect-gpu.pool": self._pool.name,
            },
            related=self._related.get(run_id) or self._related_to(run_id, name),
            payload={"reason": reason, "deadline": deadline},
        )

    def granted(self, launch: Launch, at: float) -> None:
        """See :class:`.Follower`."""
        self._related[launch.run_id] = self._related_to(launch.run_id, launch.record.name)
        waited_s = at - launch.record.times.get("submitted", at)
        self._tell("granted", launch, waited_s=round(max(0.0, waited_s), 3), behind=launch.record.behind)

    def reported(self, launch: Launch, kind: str, at: float, data: dict[str, Any]) -> tuple[()]:
        """See :class:`.Follower`."""
        if kind == protocol.PHASE and launch.phase in _PHASES and not launch.waiting:
            self._tell(launch.phase, launch)
        return ()

    def adjusted(self, launch: Launch, change: Adjustment, at: float) -> None:
        """See :class:`.Follower`."""
        match change:
            case SetShare(_, weight, reason) if weight < 1.0:
                if launch.run_id not in self._demoted:
                    self._demoted.add(launch.run_id)
                    self._tell("demoted", launch, weight=weight, reason=reason)
            case SetShare():
                self._demoted.discard(launch.run_id)
            case Finish(_, reason):
                self._tell("converged", launch, reason=reason)

    def wasted(self, launch: Launch, stage: str, at: float) -> None:
        """See :class:`.Follower`."""
        if stage:
            self._tell("wasting", launch, stage=stage, reason=launch.wasting)

    def over(self, launch: Launch, at: float, outcome: str | None, message: str) -> None:
        """See :class:`.Follower`."""
        self._demoted.discard(launch.run_id)
        if outcome == LEFT:
            self._tell(_how_it_left(launch), launch, reason=message)
        elif outcome is not None:
            self._tell("ended", launch, outcome=outcome, message=message[:_LONGEST])

    def released(self, launch: Launch, at: float, carries_on: bool) -> None:
        """See :class:`.Follower`."""
        self._related.pop(launch.run_id, None)

    def _tell(self, what: str, launch: Launch, **more: Any) -> None:
        record = launch.record
        told = {"devices": list(record.placement.all_devices), "nodes": list(record.placement.nodes)}
        if "step" in record.progress:
            told["step"] = record.progress["step"]
        if launch.run_id in self._related:
            self._related[launch.run_id] = _named(self._related[launch.run_id], record.known)
        self._say(what, launch.run_id, record.name, **told, **more)

    def _say(self, what: str, run_id: str, name: str, **payload: Any) -> None:
        self._happened(what)
        self._emit(
            event=f"{PREFIX}{what}",
            resource={
                "prefect.resource.id": f"{PREFIX}{run_id}",
                "prefect.resource.name": name,
                "prefect-gpu.pool": self._pool.name,
                **({"prefect-gpu.outcome": payload["outcome"]} if "outcome" in payload else {}),
            },
            related=self._related.get(run_id) or self._related_to(run_id, name),
            payload={key: value for key, value in payload.items() if value is not None},
        )

    def _related_to(self, run_id: str, name: str) -> list[RelatedResource]:
        pool = related_pool(self._pool)
        flow_run = self._flow_run(run_id)
        if flow_run is None:  # an adopted run, which is not read again
            return [related("flow-run", run_id, name), pool]
        ids = {"flow": flow_run.flow_id, "deployment": flow_run.deployment_id, "work-queue": flow_run.work_queue_id}
        others = [related(kind, str(one)) for kind, one in ids.items() if one is not None]
        return [related("flow-run", run_id, name), *others, pool, *related_tags(flow_run.tags)]


def _named(resources: list[RelatedResource], known: dict[str, Any]) -> list[RelatedResource]:
    """With the names of flow and deployment, which are read between the grant and the start."""
    names = {"flow": known.get("flow_name"), "deployment": known.get("deployment")}

    def named(one: RelatedResource) -> RelatedResource:
        its_id, name = one.id.rpartition(".")[2], names.get(one.role)
        return related(one.role, its_id, name) if name and name != its_id else one

    return [named(one) for one in resources]


def _how_it_left(launch: Launch) -> str:
    match launch.eviction:
        case Suspend():
            return "suspended"
        case Move(_, placement):
            before = len(launch.record.placement.all_devices)
            return "moved" if len(placement.all_devices) == before else "resized"
    return "preempted"
