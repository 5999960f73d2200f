"""Which parameters users would try: a space for each program, and random submissions from it.

The ranges are such that a training takes about one to ten seconds on one core of 2025.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

Draw = Callable[[random.Random], Any]


def number(low: float, high: float) -> Draw:
    """Log-uniform, whole."""
    return lambda rng: round(math.exp(rng.uniform(math.log(low), math.log(high))))


def real(low: float, high: float) -> Draw:
    """Log-uniform, with three digits."""
    return lambda rng: float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.3g}")


def one_of(*values: Any) -> Draw:
    """Any of the values, as often as each other."""
    return lambda rng: rng.choice(values)


def nested(**space: Draw) -> Draw:
    """A dictionary of such values."""
    return lambda rng: {name: draw(rng) for name, draw in space.items()}


_STEPS = number(60, 400)
_OPTIMIZER = one_of("sgd", "momentum", "adam", "adamw")

# By program: the module that it is in, and its parameters.
SPACES: dict[str, tuple[str, dict[str, Draw]]] = {
    "sgd_linear": (
        "incremental",
        {
            "rows": number(40_000, 800_000),
            "columns": number(60, 300),
            "batch_size": number(4000, 16_000),
            "steps": _STEPS,
            "passes": one_of(4, 6, 8, 12),
            "penalty": one_of("l2", "l1", "elasticnet"),
            "loss": one_of("hinge", "log_loss", "modified_huber"),
            "average": one_of(True, False),
            "alpha": real(1e-6, 1e-2),
        },
    ),
    "sklearn_mlp": (
        "incremental",
        {
            "rows": number(40_000, 600_000),
            "columns": number(30, 200),
            "batch_size": one_of(32, 64, 128, 256),
            "steps": _STEPS,
            "model": nested(layers=one_of(1, 2, 3), width=one_of(64, 128, 256)),
            "activation": one_of("relu", "tanh", "logistic"),
            "solver": one_of("adam", "sgd"),
            "learning_rate": real(1e-4, 1e-2),
        },
    ),
    "kmeans": (
        "incremental",
        {
            "rows": number(100_000, 1_000_000),
            "columns": number(20, 150),
            "batch_size": number(6000, 30_000),
            "steps": _STEPS,
            "clusters": number(40, 200),
            "init": one_of("k-means++", "random"),
            "n_init": one_of(1, 3),
        },
    ),
    "gradient_boosting": (
        "trees",
        {
            "rows": number(3000, 12_000),
            "columns": number(8, 40),
            "steps": number(50, 200),
            "trees_per_step": one_of(1, 2),
            "max_depth": one_of(2, 3, 4, 5, 6),
            "subsample": one_of(0.4, 0.6, 0.8, 1.0),
            "loss": one_of("squared_error", "huber"),
            "learning_rate": real(0.01, 0.3),
        },
    ),
    "random_forest": (
        "trees",
        {
            "rows": number(2000, 12_000),
            "columns": number(10, 60),
            "steps": number(50, 200),
            "max_depth": one_of(4, 6, 8, 12, 16),
            "max_features": one_of("sqrt", 0.3, 0.6),
            "criterion": one_of("gini", "entropy"),
            "bootstrap": one_of(True, False),
            "classes": one_of(2, 5, 10),
        },
    ),
    "xgb_regression": (
        "boosting",
        {
            "rows": number(40_000, 300_000),
            "columns": number(10, 60),
            "steps": _STEPS,
            "max_depth": one_of(4, 5, 6, 8),
            "max_bin": one_of(64, 128, 256, 512),
            "subsample": one_of(0.5, 0.75, 1.0),
            "grow_policy": one_of("depthwise", "lossguide"),
            "eta": real(0.02, 0.3),
            "tree_method": one_of("hist"),
        },
    ),
    "xgb_classes": (
        "boosting",
        {
            "rows": number(4000, 20_000),
            "columns": number(10, 60),
            "steps": number(50, 200),
            "num_class": number(3, 10),
            "max_depth": one_of(2, 3, 4, 5),
            "colsample_bytree": one_of(0.5, 0.75, 1.0),
            "min_child_weight": real(1, 10),
            "eta": real(0.02, 0.3),
        },
    ),
    "streamed_mlp": (
        "networks",
        {
            "rows": number(40_000, 600_000),
            "columns": number(60, 300),
            "batch_size": one_of(256, 512, 1024, 2048),
            "steps": _STEPS,
            "model": nested(layers=one_of(1, 2, 3, 4), width=one_of(256, 384, 512)),
            "activation": one_of("relu", "gelu", "tanh"),
            "optimizer": _OPTIMIZER,
            "storage_mb_per_s": real(20, 200),
            "lr": real(1e-4, 1e-2),
        },
    ),
    "cnn": (
        "networks",
        {
            "images": number(10_000, 200_000),
            "image_size": one_of(16, 20, 24, 32),
            "batch_size": one_of(16, 32, 64),
            "steps": _STEPS,
            "model": nested(blocks=one_of(2, 3), channels=one_of(12, 16, 24, 32)),
            "batch_norm": one_of(True, False),
            "optimizer": _OPTIMIZER,
            "lr": real(1e-4, 1e-2),
        },
    ),
    "streamed_vae": (
        "networks",
        {
            "rows": number(20_000, 200_000),
            "image_size": one_of(16, 20, 24, 28),
            "batch_size": one_of(128, 256, 512, 768),
            "steps": _STEPS,
            "hidden": number(128, 512),
            "latent": number(4, 64),
            "optimizer": _OPTIMIZER,
            "storage_mb_per_s": real(20, 200),
            "lr": real(1e-4, 1e-2),
        },
    ),
    "rnn": (
        "sequences",
        {
            "sequences": number(10_000, 100_000),
            "length": one_of(16, 24, 32, 48, 64),
            "channels": number(4, 32),
            "batch_size": one_of(32, 64, 128),
            "steps": _STEPS,
            "cell": one_of("gru", "lstm"),
            "model": nested(hidden=one_of(32, 64, 96), layers=one_of(1, 2)),
            "bidirectional": one_of(True, False),
            "lr": real(1e-4, 1e-2),
        },
    ),
    "transformer": (
        "sequences",
        {
            "sequences": number(20_000, 300_000),
            "length": one_of(16, 24, 32, 48, 64),
            "vocabulary": number(500, 4000),
            "batch_size": one_of(4, 8, 16),
            "steps": _STEPS,
            "model": nested(width=one_of(32, 48, 64), layers=one_of(1, 2, 3), heads=one_of(2, 4)),
            "optimizer": _OPTIMIZER,
            "lr": real(1e-4, 1e-2),
        },
    ),
    "ncf": (
        "sequences",
        {
            "users": number(20_000, 200_000),
            "items": number(5000, 40_000),
            "batch_size": one_of(1024, 2048, 4096),
            "steps": _STEPS,
            "dim": one_of(16, 24, 32, 48),
            "hidden": one_of(64, 128, 256),
            "optimizer": one_of("sgd", "adam"),
            "interactions": number(500_000, 10_000_000),
            "lr": real(1e-4, 1e-2),
        },
    ),
}


def submission(number_of_run: int, seed: int) -> tuple[str, str, dict[str, Any]]:
    """(Module, program, parameters) of one run; the same for the same numbers, whatever was drawn before.

    Every thirteen runs are of all programs in a random order. Each has a tag, a seed and a setting that never varies,
    as runs of users have.
    """
    block, place = divmod(number_of_run, len(SPACES))
    programs = sorted(SPACES)
    random.Random(f"{seed} order {block}").shuffle(programs)
    program = programs[place]
    module, space = SPACES[program]
    rng = random.Random(f"{seed} run {number_of_run}")
    parameters = {name: draw(rng) for name, draw in space.items()}
    own = {"run_tag": f"{rng.getrandbits(32):08x}", "seed": rng.randrange(10_000), "device": "cpu"}
    return module, program, parameters | own
