"""Carry out what was chosen as a whole: who is stopped, who moves, who starts, and on which devices."""

from __future__ import annotations

from collections.abc import Sequence

from prefect_gpu.scheduling.decision import Decision, names
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.placement.granting import grant, granted_gang, joined
from prefect_gpu.scheduling.preemption.pools import Pool
from prefect_gpu.scheduling.preemption.seating import Seats
from prefect_gpu.scheduling.preemption.units import Unit


def carry_out(decision: Decision, pool: Pool, seats: Seats[Unit]) -> None:
    """Stops, then moves, then starts."""
    state = decision.state
    if not seats.starts:
        return
    labels = tuple(unit.job.label for unit in seats.starts)
    late = tuple(unit.job.label for unit in seats.starts if unit.job.late)
    if late:
        words = f"{names(late)} {'are' if len(late) > 1 else 'is'} late, and may wait no longer"
    else:
        words = f"its devices are worth more now to {names(labels)}"
    for unit in seats.stops:
        for job in unit.jobs:
            decision.preempt(job, words)
    free: dict[int, list[str]] = {}

    def take(node: int, count: int) -> list[str]:
        left = devices_of(node)
        free[node] = left[count:]
        return left[:count]

    def devices_of(node: int) -> list[str]:
        if node not in free:
            free[node] = pool.free(node, state)
        return free[node]

    for unit in seats.moves:
        devices_of(unit.spots[0][0]).extend(unit.placement.devices)  # type: ignore[union-attr]
    for unit in seats.moves:
        if not decision.abilities.free_moves:
            unit.job.stops += 1
    moves = [
        (unit.job, _placed(decision, unit.job, pool, [(node, take(node, unit.width))]))
        for unit, node in seats.moves.items()
    ]
    if moves:
        decision.rearrange(moves, f"{names(labels)} would not fit otherwise")
    for unit, spots in seats.starts.items():
        place = _placed(decision, unit.job, pool, [(node, take(node, count)) for node, count in spots])
        if seats.stops or seats.moves:
            words = "it is late" if unit.job.late else "it is worth most to run it now"
            words += ": others made room"
        else:
            words = f"{names(place.all_devices)} {'are' if len(place.all_devices) > 1 else 'is'} free"
        decision.launch(unit.job, place, words)


def _placed(decision: Decision, job: Job, pool: Pool, parts: Sequence[tuple[int, Sequence[str]]]) -> Placement:
    state, sharing, request = decision.state, decision.sharing, job.request
    chosen = []
    for at, devices in parts:
        node = state.numbered[pool.numbers[at]].node
        own = set(devices)
        chosen.append((node, tuple(device.id for device in node.devices if device.id in own)))
    if not request.is_gang:
        return joined([grant(job, node, devices, state, sharing) for node, devices in chosen])
    workers = [
        (node, devices[at : at + request.gpus])
        for node, devices in chosen
        for at in range(0, len(devices), request.gpus)
    ]
    return granted_gang(job, workers, [chosen[0][0]] * request.servers, state, sharing)
