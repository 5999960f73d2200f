"""The pool at one moment, as plain data: for the page, for the terminal, for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

from prefect_gpu.runtime.activity_log import Entry
from prefect_gpu.scheduling.fair_share.table import table
from prefect_gpu.scheduling.forecast import Outlook
from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.promises.reach import Reach

if TYPE_CHECKING:
    from prefect_gpu.runtime.controller import Controller

MOST_QUEUED = 200  # waiting runs that are listed; of the others only the number is told
QUEUE_PAGE = 50  # of whoever asks for a part of the queue


def overview(
    controller: Controller,
    now: float,
    *,
    since: int = 0,
    queue_from: int | None = None,
    expected: Callable[[str], Outlook | None] = lambda _: None,
) -> dict[str, Any]:
    """What the worker's devices do, who runs, and who waits. Times are the worker's, sizes bytes.

    Args:
        controller: Whose runs. Call this on its event loop.
        now: The present, by the controller's clock.
        since: A ``version`` that the caller has seen: only runs that changed after it are listed.
        queue_from: How many waiting runs to leave out; :data:`QUEUE_PAGE` are listed from there. None: the first
            :data:`MOST_QUEUED` are listed.
        expected: What is expected of a waiting run; None: nothing is known.

    Returns:
        A dictionary that JSON can hold:

        - ``version``: to be handed in as ``since`` next time; ``now``; ``most_finished``: how many finished runs are
          kept, the newest; ``profile``, ``draining``; ``promises``: how many deadlines were ``kept``, ``broken`` and
          ``refused`` since the worker's start.
        - ``nodes``: those that there are or were, by name: of each ``id``, ``cores`` (those for runs), ``rack``,
          ``domain``, and ``state`` (``up``; ``closed``: it takes no work, and what runs there goes on; ``gone``: it is
          down or cut off).
        - ``devices`` of all these nodes: of each ``id``, ``node``, ``kind``, ``virtual``, ``memory_bytes``,
          ``cordoned`` (why it is out of service; None: it is not), ``outside`` (which programs outside the pool it is
          left to; None: to none), ``unwell`` (what is wrong with it nevertheless),
          ``leaves`` (when it will be out of service, and why; None: nobody knows of that), ``idle_s`` and ``gaps`` (how
          long it stood idle between two trainings, and how many such gaps there were).
        - ``runs``: launches that changed. Of each ``n`` (its number, which :func:`details` takes), ``id``, ``name``,
          ``flow``, ``attempt``, ``queue``, ``node`` (of its first instance), ``devices`` (of all instances), ``parts``
          (of a gang, in the order of its instances: ``node``, ``devices``, ``role``, which is ``worker`` or ``server``;
          else empty), ``shared``, ``memory_bytes`` (granted), ``submitted``,
          ``granted``, ``ended``; ``phase`` (``launching``, ``preparing``, ``gate``, ``training``, ``saving``,
          ``ending``; None once it is over); ``spans`` ([phase, start, end], the last without end while it lasts);
          ``weights`` and ``cores`` ([since, value] at each change); ``behind`` (name of the run that it was prepared
          behind), ``gated`` (its gate is shut), ``gate_opened``, ``finishing`` (why it was asked to end early),
          ``wasting`` (what was seen, if it holds its devices without using them; else empty),
          ``idle_before_s`` (idle time of its devices before it trained), ``neighbours`` (names), ``step``, ``steps``,
          ``steps_per_s``, ``loss``, ``best_loss``, ``warm``, ``outcome``, ``message``. Runs that are not over also have
          ``losses`` ([step, loss], at most 100) and ``expected_end``.
        - ``queue``: the first waiting runs in order: ``id``, ``name``, ``submitted``, ``due``, ``code``, ``reason``,
          ``expected_start``, ``expected_end``; ``queue_from``: how many were left out before them;
          ``queued``: how many wait in all; ``queue_groups``: why they wait, of each ``code`` how many ``runs``, and the
          ``reason`` of most of them, most runs first.
        - ``shares``: how the pool is divided among owners: ``devices``, ``half_life_s``, and ``rows``, each as
          :class:`.ShareRow`; None: it is not.
    """
    activity, scheduler = controller.activity, controller.scheduler
    waiting, known = scheduler.state.waiting(), controller.fleet.known
    activity.forget_holds({job.id for job in waiting})
    first, most = (0, MOST_QUEUED) if queue_from is None else (max(0, min(queue_from, len(waiting) - 1)), QUEUE_PAGE)
    queue = _in_order(controller, first + most)[first:]
    return {
        "version": activity.version,
        "now": now,
        "most_finished": activity.most,
        "nodes": [_node(node, state) for node, state in known],
        "profile": scheduler.profile.name,
        "promises": _promises(scheduler.state.learned.reach),
        "draining": scheduler.state.draining,
        "devices": [_device(controller, node, one) for node, _ in known for one in node.devices],
        "runs": [_run(controller, entry, now) for entry in activity.since(since)],
        "queue": [_queued(controller, job, expected(job.id)) for job in queue],
        "queue_from": first,
        "queue_groups": _groups(controller, waiting),
        "queued": len(waiting),
        "shares": _shares(controller),
    }


def details(controller: Controller, number: int, now: float) -> dict[str, Any] | None:
    """Everything about one launch: its row in :func:`overview`, ``losses``, and its ``story`` as [time, sentence].

    Returns:
        None if the launch is not kept (any more).
    """
    entry = controller.activity.entry(number)
    if entry is None:
        return None
    row = _run(controller, entry, now)
    return {**row, "losses": entry.losses, "story": controller.scheduler.state.story(row["id"])}


def _node(node: Node, state: str) -> dict[str, Any]:
    return {"id": node.id, "cores": len(node.cpus), "rack": node.rack, "domain": node.domain, "state": state}


def _device(controller: Controller, node: Node, device: Device) -> dict[str, Any]:
    idle_s, gaps = controller.idle.total(device.id)
    return {
        "id": device.id,
        "node": node.id,
        "kind": device.kind,
        "virtual": device.virtual,
        "memory_bytes": device.memory_bytes,
        "cordoned": controller.fleet.why_out(device.id),
        "outside": held.reason if (held := controller.cordons.held.get(device.id)) is not None else None,
        "unwell": controller.fleet.unwell.get(device.id),
        "leaves": _leaves(controller, device.id),
        "compute_capability": ".".join(map(str, device.capability)) if device.capability else None,
        "nvlink": list(device.links),
        "idle_s": idle_s,
        "gaps": gaps,
    }


def _promises(reach: Reach) -> dict[str, int]:
    return {"kept": reach.kept, "broken": reach.broken, "refused": reach.refused}


def _leaves(controller: Controller, device: str) -> tuple[float, str] | None:
    """When a device leaves service, and why; None: nobody knows of an end."""
    state = controller.scheduler.state
    known = state.device(device) if state.has_node(device) else None
    return None if known is None or known.ends_at is None else (known.ends_at, known.ends_why)


def _run(controller: Controller, entry: Entry, now: float) -> dict[str, Any]:
    if entry.run is None:
        return entry.kept
    outlook = controller.estimates.outlook(entry.run.run_id, now)
    end = None if outlook is None else now + outlook.remaining_s.median
    return {**entry.as_row(), "losses": entry.losses, "expected_end": end}


def _in_order(controller: Controller, most: int) -> list[Job]:
    """The first of the waiting jobs: those that are due in the order of the queue, then the others."""
    line = controller.scheduler.state.queue_of_waiting
    first = [job for _, job in islice(line.in_order(), most)]
    later = sorted(line.not_due(), key=lambda job: job.due_at)
    return [*first, *later][:most]


def _groups(controller: Controller, waiting: list[Job]) -> list[dict[str, Any]]:
    """Why jobs wait: the kinds of reason, and of each the words that most of them were told."""
    reasons: dict[str, Counter[str]] = {}
    for job in waiting:
        hold = controller.activity.hold_of(job.id)
        reasons.setdefault(hold.code if hold else "", Counter())[hold.reason if hold else ""] += 1
    groups = [
        {"code": code, "runs": told.total(), "reason": told.most_common(1)[0][0]} for code, told in reasons.items()
    ]
    return sorted(groups, key=lambda group: -group["runs"])


def _shares(controller: Controller) -> dict[str, Any] | None:
    standing = controller.scheduler.standing()
    if standing is None:
        return None
    rows = [asdict(row) for row in table(standing)]
    return {"devices": standing.devices, "half_life_s": standing.shares.half_life_s, "rows": rows}


def _queued(controller: Controller, job: Job, outlook: Outlook | None) -> dict[str, Any]:
    hold = controller.activity.hold_of(job.id)
    return {
        "id": job.id,
        "name": job.label,
        "submitted": job.submitted_at,
        "due": job.due_at if job.due_at > job.submitted_at else None,
        "code": hold.code if hold else None,
        "reason": hold.reason if hold else "",
        "expected_start": outlook.start if outlook else None,
        "expected_end": outlook.end if outlook else None,
    }
