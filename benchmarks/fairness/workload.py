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


def bursts(days: float, devices: int, load: float, seed: int, *, firm: float = 0.0) -> list[JobModel]:
    """Each owner sends sweeps: many runs at once, a few times a day; and is away for a day or a night now and then.

    Together they ask for `load` times what the devices can do in the time; each for a third of that, whatever its
    weight: so one of them asks for less than its share, and two for more.

    Args:
        firm: Part of the runs that may not be stopped.
    """
    rng = random.Random(seed)
    mean_s = _MEDIAN_S * math.exp(_SPREAD**2 / 2) * sum(w * n for w, n in zip(_WIDTHS, _OFTEN, strict=True)) / 100
    each = load * days * DAY * devices / mean_s / len(WEIGHTS)
    jobs: list[JobModel] = []
    for owner in WEIGHTS:
        sent = 0
        moments = list(_moments(days, rng))
        sizes = [rng.expovariate(1.0) + 0.2 for _ in moments]
        for moment, size in zip(moments, sizes, strict=True):
            for _ in range(max(1, round(each * size / sum(sizes)))):
                sent += 1
                service_s = min(8 * HOUR, max(60.0, _MEDIAN_S * math.exp(rng.gauss(0.0, _SPREAD))))
                request = Request(
                    rng.choices(_WIDTHS, _OFTEN)[0], preemptible=rng.random() >= firm, owner=owner, kind=owner
                )
                jobs.append(
                    JobModel(
                        f"{owner}-{sent:05d}",
                        moment + rng.uniform(0.0, 600.0),
                        service_s,
                        request,
                        launching_s=LAUNCHING_S,
                        checkpoint_s=CHECKPOINT_S,
                        restore_s=RESTORE_S,
                        estimate=Estimate(service_s, LAUNCHING_S, restart_s=CHECKPOINT_S + RESTORE_S),
                    )
                )
    return sorted(jobs, key=lambda job: (job.submit_s, job.id))


def _moments(days: float, rng: random.Random) -> Iterator[float]:
    """Of an owner's bursts, every six hours or so; a third of all half days it is away."""
    now = rng.uniform(0.0, 6 * HOUR)
    away = {half for half in range(math.ceil(2 * days)) if rng.random() < 1 / 3}
    while now < days * DAY:
        if int(now // (DAY / 2)) not in away:
            yield now
        now += rng.expovariate(1 / (6 * HOUR)) + 600.0
