"""Three owners who come in bursts and are away at times."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping

from prefect_gpu.scheduling.model.jobs import Estimate, Request
from prefect_gpu.scheduling.model.shares import Share, Shares
from prefect_gpu.simulation.model import JobModel

HOUR, DAY = 3600.0, 86_400.0
WEIGHTS: Mapping[str, float] = {"ada": 2.0, "bob": 1.0, "cyd": 1.0}
LAUNCHING_S, CHECKPOINT_S, RESTORE_S = 20.0, 15.0, 10.0
_WIDTHS, _OFTEN = (1, 2, 4), (70, 20, 10)
_MEDIAN_S, _SPREAD = 1500.0, 1.1  # of the durations: lognormal


def promised(half_life_s: float, devices: int, *, guarantees: bool) -> Shares:
    """Weights 2:1:1; with guarantees, each is sure of half of its part."""
    total = sum(WEIGHTS.values())
    sure = {owner: int(devices * weight / total / 2) if guarantees else 0 for owner, weight in WEIGHTS.items()}
    return Shares(half_life_s, tuple(Share(owner, guaranteed=sure[owner], weight=WEIGHTS[owner]) for owner in WEIGHTS))


def bursts(
    days: float, devices: int, load: float, seed: int, *, firm: float = 0.0, by_weight: bool = False
) -> list[JobModel]:
    """Each owner sends sweeps: many runs at once, a few times a day; and is away for a day or a night now and then.

    Together they ask for `load` times what the devices can do in the time. By default, each asks for a third of that,
    whatever its weight: so one of them asks for less than its share, and two for more.

    Args:
        firm: Part of the runs that may not be stopped.
        by_weight: Whether each asks in proportion to its weight instead. Bursts and absences are the same then, and so
            are the runs, but for those that are more or fewer.
    """
    rng = random.Random(seed)
    mean_s = _MEDIAN_S * math.exp(_SPREAD**2 / 2) * sum(w * n for w, n in zip(_WIDTHS, _OFTEN, strict=True)) / 100
    each = load * days * DAY * devices / mean_s / len(WEIGHTS)
    jobs: list[JobModel] = []
    for owner, weight in WEIGHTS.items():
        sent, beyond = 0, random.Random(f"{seed}-{owner}")
        part = weight * len(WEIGHTS) / sum(WEIGHTS.values()) if by_weight else 1.0
        moments = list(_moments(days, rng))
        sizes = [rng.expovariate(1.0) + 0.2 for _ in moments]
        for moment, size in zip(moments, sizes, strict=True):
            equal, wanted = (max(1, round(one * each * size / sum(sizes))) for one in (1.0, part))
            runs = [_run(owner, moment, firm, rng) for _ in range(equal)]
            runs += [_run(owner, moment, firm, beyond) for _ in range(wanted - equal)]
            for service_s, request, submit_s in runs[:wanted]:
                sent += 1
                jobs.append(
                    JobModel(
                        f"{owner}-{sent:05d}",
                        submit_s,
                        service_s,
                        request,
                        launching_s=LAUNCHING_S,
                        checkpoint_s=CHECKPOINT_S,
                        restore_s=RESTORE_S,
                        estimate=Estimate(service_s, LAUNCHING_S, restart_s=CHECKPOINT_S + RESTORE_S),
                    )
                )
    return sorted(jobs, key=lambda job: (job.submit_s, job.id))


def _run(owner: str, moment: float, firm: float, rng: random.Random) -> tuple[float, Request, float]:
    """One run of a burst: how long it takes, what it asks for, and when it is submitted."""
    service_s = min(8 * HOUR, max(60.0, _MEDIAN_S * math.exp(rng.gauss(0.0, _SPREAD))))
    width, stoppable = rng.choices(_WIDTHS, _OFTEN)[0], rng.random() >= firm
    return service_s, Request(width, preemptible=stoppable, owner=owner, kind=owner), moment + rng.uniform(0.0, 600.0)


def _moments(days: float, rng: random.Random) -> Iterator[float]:
    """Of an owner's bursts, every six hours or so; a third of all half days it is away."""
    now = rng.uniform(0.0, 6 * HOUR)
    away = {half for half in range(math.ceil(2 * days)) if rng.random() < 1 / 3}
    while now < days * DAY:
        if int(now // (DAY / 2)) not in away:
            yield now
        now += rng.expovariate(1 / (6 * HOUR)) + 600.0
