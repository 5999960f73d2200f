"""Jobs of the paper's mixes, and a world for them that comes from its Table I alone."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import product

from prefect_gpu.papers.deepshare.traffic import TRAFFIC
from prefect_gpu.scheduling.interference.sensitivity import Key, predicted_ratio
from prefect_gpu.simulation.traces import ContentionTable, TraceJob

MIXES: Mapping[str, Mapping[str, int]] = {
    "normal": dict.fromkeys(TRAFFIC, 1),
    "heavy": {**dict.fromkeys(TRAFFIC, 1), "FSDP": 4, "MoE": 4},
    "medium": {**dict.fromkeys(TRAFFIC, 1), "DLRM": 4, "Transformer-XL": 4},
    "low": {**dict.fromkeys(TRAFFIC, 1), "GraphSage": 4, "MobileNetV3": 4},
}
"""How many of each model the mixes hold for one of the others (§VI)."""

DURATION_S = 3600.0
JOBS = 256
SIZES = (2, 4, 8)
_PER_S = 1000.0  # samples per second, the same for all: only fractions of it matter


def draw(seed: int, jobs: int = JOBS, mix: str = "normal") -> list[TraceJob]:
    """A job set as in §VI: models as in the mix, shuffled; GPUs at random; an hour each if alone on the fewest nodes.

    The paper says that jobs ask for up to 32 GPUs; those that its authors publish ask for 2, 4 or 8, and so do these.

    Raises:
        ValueError: The mix is not known.
    """
    chooser = random.Random(f"deepshare {mix} {seed}")
    models = shuffled(mix, jobs, chooser)
    return [TraceJob(str(at), 0.0, DURATION_S, chooser.choice(SIZES), model) for at, model in enumerate(models)]


def shuffled(mix: str, jobs: int, chooser: random.Random) -> list[str]:
    """The models of so many jobs of a mix, in random order.

    Raises:
        ValueError: The mix is not known.
    """
    if mix not in MIXES:
        raise ValueError(f"mix={mix!r} is not known: choose one of {', '.join(MIXES)}.")
    deck = [model for model, count in MIXES[mix].items() for _ in range(count)]
    models = (deck * (jobs // len(deck) + 1))[:jobs]
    chooser.shuffle(models)
    return models


def predicted_table(nodes: int = 4) -> ContentionTable:
    """Ratios as predicted from Table I, and the same speed alone on however many nodes.

    Args:
        nodes: Nodes of the cluster: jobs go on 2, 4, 8 … of them, and never on one, as in the paper's world.
    """
    widths = [2**power for power in range(1, nodes.bit_length())]
    spreads = [Key(model, gpus, width) for model in TRAFFIC for gpus in SIZES for width in widths if gpus % width == 0]
    ratios = {
        (own, other): predicted_ratio(TRAFFIC[own.model], TRAFFIC[other.model])
        for own, other in product(spreads, spreads)
    }
    samples = {(model, gpus): DURATION_S * _PER_S for model in TRAFFIC for gpus in SIZES}
    return ContentionTable(dict.fromkeys(spreads, _PER_S), ratios, samples)
