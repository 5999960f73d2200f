"""What is run: gangs of three kinds, none of which fits a node, so that nobody can avoid the network."""

from __future__ import annotations

import random
from dataclasses import replace

from benchmarks._gangs.cluster import Shape
from benchmarks._gangs.pool import Gang, Program
from prefect_gpu.scheduling.model.jobs import Estimate

WORKERS = 4
SHAPE = Shape(nodes=4, racks=1, devices=3, link_bps=25e6)

# Named after the models of the paper whose part they play (Table I), for the trained network knows those six by name.
# Alone, they keep a link busy for about 88, 35 and 3 % of a step; FSDP's is the paper's seconds of communication per
# second of computation, 7.3. The steps here are for a ring, and those of a training for its length alone.
LOUD = Program("FSDP", 5_000_000, 0.041, 1)
MIDDLE = Program("MobileNetV3", 2_200_000, 0.245, 1)
QUIET = Program("GraphSage", 150_000, 0.3, 1)
CLASSES = (LOUD, MIDDLE, QUIET)
LENGTHS_S = (6.0, 9.0, 12.0, 20.0)
JOBS = 40
QUICK_LENGTHS_S = (1.0, 2.5)
QUICK_JOBS = 6
LAUNCHING_S, SAVING_S = 0.5, 1.0

# In this order, each pair of classes meets once, and each gang is alone before or after.
CHAIN = (LOUD, LOUD, MIDDLE, MIDDLE, QUIET, QUIET, LOUD)
QUICK_CHAIN = (LOUD, LOUD)


def step_s(program: Program) -> float:
    """Seconds of a step alone, if the link is used at its full rate: an instance sends 2 (n - 1) / n of a gradient."""
    return program.compute_s + sent_bytes(program) / SHAPE.link_bps


def sent_bytes(program: Program) -> float:
    """What each instance sends in a step, as a ring does."""
    return 2.0 * (WORKERS - 1) / WORKERS * program.gradient_bytes


def gangs(seed: int, *, quick: bool = False, preemptible: bool = False) -> list[Gang]:
    """The gangs of one run, all there at 0, in random order: the same for all policies.

    As many of each class as it goes, and of each length. Each says how long it trains alone.
    """
    count, lengths = (QUICK_JOBS, QUICK_LENGTHS_S) if quick else (JOBS, LENGTHS_S)
    kinds = [(CLASSES[at % len(CLASSES)], lengths[at // len(CLASSES) % len(lengths)]) for at in range(count)]
    random.Random(seed).shuffle(kinds)
    return [
        Gang(
            f"{seed}-{number:02}",
            replace(program, steps=round(length_s / step_s(program))),
            WORKERS,
            estimate=Estimate(length_s, LAUNCHING_S, SAVING_S, sent_bps=sent_bytes(program) / step_s(program)),
            measured=True,
            preemptible=preemptible,
        )
        for number, (program, length_s) in enumerate(kinds)
    ]
