"""Which trainings a sweep consists of, and what an undisturbed one gives."""

from __future__ import annotations

import random
from dataclasses import dataclass

from benchmarks._elastic_training import Network

DEVICES = 4
STEP_S = 0.25
SIZES = (1, 2, 4)  # devices, each equally often
SHORTEST_S, LONGEST_S = 3.0, 45.0  # of training; drawn evenly on a logarithmic scale
_BUSY = 0.7  # the sweep has arrived after this part of the time that its work takes on all devices: a load of 1.4


@dataclass(frozen=True)
class Training:
    """One training of a sweep: when it arrives, in seconds since the first could; how many devices; how many steps."""

    at_s: float
    gpus: int
    steps: int
    seed: int


def draw(seed: int, count: int, longest_s: float = LONGEST_S) -> list[Training]:
    """A sweep, by the order of arrival."""
    chance = random.Random(seed)
    sizes = [chance.choice(SIZES) for _ in range(count)]
    steps = [round(SHORTEST_S * (longest_s / SHORTEST_S) ** chance.random() / STEP_S) for _ in range(count)]
    work_s = sum(gpus * number * STEP_S for gpus, number in zip(sizes, steps, strict=True)) / DEVICES
    times = sorted(chance.uniform(0.0, _BUSY * work_s) for _ in range(count))
    return [Training(*one, place) for place, one in enumerate(zip(times, sizes, steps, strict=True))]


def quick() -> list[Training]:
    """The smallest sweep in which somebody is stopped: a training has all devices when four short ones arrive."""
    short = round(SHORTEST_S / STEP_S)
    return [Training(0.0, DEVICES, round(20.0 / STEP_S), 0), *(Training(6.0, 1, short, seed) for seed in range(1, 5))]


def earlier(count: int, longest_s: float = LONGEST_S) -> list[Training]:
    """Trainings that a pool has had before, from which it learns: all at once, their lengths spread evenly."""
    spread = [SHORTEST_S * (longest_s / SHORTEST_S) ** (place / max(1, count - 1)) for place in range(count)]
    return [Training(0.0, 1, round(length_s / STEP_S), 1000 + place) for place, length_s in enumerate(spread)]


def undisturbed(training: Training) -> str:
    """What the training gives if it is never stopped."""
    network = Network(training.seed)
    for number in range(training.steps):
        network.step(number)
    return network.digest()
