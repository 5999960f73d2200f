"""The same with the real controller, channel and processes: short trainings on virtual devices, stopped and continued.

Each training is a small network in numpy that saves its weights when it is asked to, and is checked to have come to
the same weights, to the last bit, as one that was never stopped. Devices are counted by who has a process on them, the
time included in which one saves because it has to leave; so is what a launch costs, as others cannot have the device.
Whoever holds less than is guaranteed to it, while a run of its waits that would fit, is to have it within the
borrower's checkpoint: the rest of its step, what saving takes, and the end of its process.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks._claims import Claim, at_most
from benchmarks._elastic_training import VARIABLE, Network, Order
from benchmarks._host.pool import Pool, Run, module, virtual_node
from benchmarks.fairness.simulated import Meter
from benchmarks.fairness.workload import WEIGHTS, promised
from prefect_gpu.runtime.launch.launch import Launch
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.cluster import Quotas
from prefect_gpu.scheduling.model.jobs import Estimate, Request

DEVICES = 4
STEP_S, CHECKPOINT_S, LAUNCHING_S = 0.25, 0.2, 3.0
SHORTEST_S, LONGEST_S = 5.0, 40.0
EVERY_S = 0.25
WITHIN = 0.05
ENDS_S = 1.0  # a process that has saved, and what it started; and how often is looked
_LOAD = 1.3  # so that somebody waits most of the time
_CHECKED = 10  # trainings whose weights are compared


def measure(seconds: float) -> dict[str, Any]:
    """Send trainings for so long, and wait for those that are left then."""
    with tempfile.TemporaryDirectory(prefix="fairness-") as folder:
        return asyncio.run(_measure(Path(folder), seconds))


async def _measure(folder: Path, seconds: float) -> dict[str, Any]:
    shares = promised(seconds / 5, DEVICES, guarantees=True)
    meter, orders = Meter(shares, DEVICES), dict[str, Order]()
    async with Pool(folder / "pool", [virtual_node(DEVICES)], deadline_s=4 * seconds) as pool:
        pool.controller.handle(ev.QuotasChanged(Quotas(shares=shares)))
        sending = asyncio.ensure_future(_send(pool, folder, orders, seconds))
        began = before = time.monotonic()
        while not (sending.done() and all(course.over.is_set() for course in pool.courses.values())):
            if sending.done():
                sending.result()
            holds, wants = _holds(pool), _wants(pool)
            await asyncio.sleep(EVERY_S)
            now = time.monotonic()
            meter.passed(holds, wants, before - began, now - began)
            _look_for_lacks(pool, meter, now)
            before = now
        await pool.completed(*pool.courses)
        courses = dict(pool.courses)
    chance = random.Random(1)
    for name in chance.sample(sorted(orders), min(_CHECKED, len(orders))):
        _check(orders[name])
    gaps = meter.gaps
    total_s = sum(span for _, span, _ in gaps) or 1.0
    return {
        "trainings": len(courses),
        "stopped": sum(len(course.left) for course in courses.values()),
        "seconds": round(before - began, 1),
        "half_life_s": shares.half_life_s,
        "busy_s": round(total_s, 1),
        "worst_gap": max((gap for gap, _, _ in gaps), default=0.0),
        "mean_gap": sum(gap * span for gap, span, _ in gaps) / total_s,
        "within_5": sum(span for gap, span, _ in gaps if gap <= WITHIN) / total_s,
        "lacks": len(meter.lacking_s),
        "longest_lack_s": max(meter.lacking_s, default=0.0),
        "had": {owner: round(number, 1) for owner, number in meter.had.items()},
        "owed": {owner: round(number, 1) for owner, number in meter.owed.items()},
    }


async def _send(pool: Pool, folder: Path, orders: dict[str, Order], seconds: float) -> None:
    """Bursts of all three; each is away for a third of the time, one after the other."""
    chance = random.Random(1)
    began, every_s = time.monotonic(), 15.0
    mean_s = (SHORTEST_S + LONGEST_S) / 2.5 + LAUNCHING_S
    each = _LOAD * DEVICES * every_s / mean_s / len(WEIGHTS)
    number = 0
    while (passed := time.monotonic() - began) < seconds:
        for place, owner in enumerate(WEIGHTS):
            if int(3 * passed / seconds * 2) % 3 == place:
                continue
            for _ in range(max(1, round(each * chance.expovariate(1.0) * 1.5))):
                number += 1
                name = f"{owner}-{number:03d}"
                length_s = SHORTEST_S * (LONGEST_S / SHORTEST_S) ** chance.random()
                order = orders[name] = Order(
                    round(length_s / STEP_S),
                    number,
                    str(folder / f"{name}.result"),
                    str(folder / f"{name}.notes"),
                    step_s=(STEP_S,),
                    checkpoint_s=CHECKPOINT_S,
                )
                estimate = Estimate(length_s, LAUNCHING_S, restart_s=CHECKPOINT_S)
                request = Request(preemptible=True, owner=owner, kind=owner)
                argv = module("benchmarks._elastic_training")
                pool.submit(Run(name, argv, request, {VARIABLE: order.text()}, estimate=estimate))
        await asyncio.sleep(every_s)


def _holds(pool: Pool) -> Counter[str]:
    """By owner: devices of its processes, whatever these do; of one that waits behind another, none."""
    devices: dict[str, Launch] = {}
    for launch in sorted(pool.controller.runs.values(), key=lambda one: one.record.times.get("granted", 0.0)):
        for device in launch.record.placement.all_devices:  # whoever was there first has it until its process is gone
            devices.setdefault(device, launch)
    return Counter(launch.record.request.owner for launch in devices.values())


def _look_for_lacks(pool: Pool, meter: Meter, now: float) -> None:
    """Who has less than is guaranteed to it, by what its runs have been given and need not leave."""
    given = Counter[str]()
    for launch in pool.controller.runs.values():
        if launch.eviction is None and launch.record.behind is None:
            given[launch.record.request.owner] += len(launch.record.placement.all_devices)
    for share in meter.shares.named:
        room = share.guaranteed - given[share.name]
        waits = any(
            course.run.request.owner == share.name and course.run.request.total_gpus <= room
            for name, course in pool.courses.items()
            if name not in pool.controller.runs and not course.over.is_set()
        )
        meter.lacks(share.name, waits, now)


def _wants(pool: Pool) -> Counter[str]:
    found: Counter[str] = Counter()
    for course in pool.courses.values():
        if not course.over.is_set():
            found[course.run.request.owner] += course.run.request.total_gpus
    return found


def _check(order: Order) -> None:
    network = Network(order.seed)
    for number in range(order.steps):
        network.step(number)
    if Path(order.result).read_text() != network.digest():
        raise AssertionError(f"the training with seed {order.seed} came to other weights than undisturbed")


def live_claims(found: dict[str, Any]) -> list[Claim]:
    """What is claimed of that."""
    within_s = STEP_S + CHECKPOINT_S + ENDS_S
    return [
        at_most("live: largest difference of had and owed", found["worst_gap"], WITHIN),
        at_most("live: longest wait for what is guaranteed: seconds", round(found["longest_lack_s"], 3), within_s),
    ]
