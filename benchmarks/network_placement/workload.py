"""What is run: Liquid's mix of models, scaled to this network, in two kinds of arrival (Gu et al., TPDS 2022, §7.4)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from benchmarks._gangs.cluster import Shape
from benchmarks._gangs.pool import Gang, Program
from prefect_gpu.papers.liquid.window import Window
from prefect_gpu.scheduling.allocation.backfill import Backfill
from prefect_gpu.scheduling.allocation.batch import Batch
from prefect_gpu.scheduling.profiles import Profile, get_profile

SHAPE = Shape(nodes=4, racks=2, devices=2, link_bps=125e6, uplink_bps=25e6)

# Gradients are the models' own (138, 25.6 and 23.9 million float32), all divided by 44. A step of VGG-16 computes for
# so long that it takes about twice as long across the racks as on one node, which is the most that the paper reports
# between two placements; steps of ResNet-50 compute for as long, those of Inception V3, the least sensitive, for a
# little longer. Trainings take 15, 10 and 12 s on one node: the 900, 600 and 700 s of our simulation of the paper,
# divided by 60.
VGG = Program("VGG-16", 12_500_000, 0.4, 33)
RESNET = Program("ResNet-50", 2_300_000, 0.4, 24)
INCEPTION = Program("Inception V3", 2_150_000, 0.5, 23)
MIX = ((RESNET, 2), (RESNET, 2), (RESNET, 2), (RESNET, 3), (INCEPTION, 2), (INCEPTION, 3), (VGG, 2), (VGG, 3))
QUICK_MIX = ((VGG, 2), (VGG, 2), (RESNET, 2), (RESNET, 2))  # all find room at once
QUICK_PART = 0.2  # of the steps, of the time in which a batch arrives and of that for which it is gathered
INTERVAL_S = 3.0
BURST_S = 0.8
WINDOW_S = 1.0
MODES = ("immediate", "batch")
OTHERS = ("random", "even", "kubernetes-default")


def gangs(mode: str, seed: int, quick: bool = False) -> list[Gang]:
    """The gangs of one run, in random order.

    Args:
        mode: ``immediate``: one by one, after exponential intervals of 3 s on average; ``batch``: all within 0.8 s.
        seed: Of order and arrivals. The same for all policies.
        quick: Four gangs with a fifth of the steps.
    """
    rng = random.Random(seed)
    mix = list(QUICK_MIX if quick else MIX)
    rng.shuffle(mix)
    found, now = [], 0.0
    for number, (program, workers) in enumerate(mix):
        shorter = replace(program, steps=round(program.steps * QUICK_PART)) if quick else program
        found.append(Gang(f"{mode}-{seed}-{number}", shorter, workers, now))
        interval_s = rng.expovariate(1.0 / INTERVAL_S) if mode == "immediate" else BURST_S / len(mix)
        now += interval_s * (QUICK_PART if quick else 1.0)
    return found


def profiles(mode: str, quick: bool = False) -> dict[str, Callable[[], Profile]]:
    """Ours, by the name ``ours``; the one that Liquid's paper states, ``liquid``; and those both are compared with.

    Ours is the same in both modes: it needs no window, as it plans anew with each gang that comes. In a quick run,
    they are compared with random placement alone.
    """
    window_s = WINDOW_S * (QUICK_PART if quick else 1.0)
    liquid = {"immediate": lambda: get_profile("liquid-immediate"), "batch": lambda: _batch(window_s)}[mode]
    others = {name: lambda name=name: get_profile(name) for name in (OTHERS[:1] if quick else OTHERS)}
    return {"ours": lambda: get_profile("ahead"), "liquid": liquid, **others}  # type: ignore[dict-item]


def _batch(window_s: float) -> Profile:
    """The window is shorter than by default, as the jobs are."""
    return replace(get_profile("liquid-batch"), allocation=(Window(window_s), Batch(), Backfill()))
