"""Policies that were trained and come with the package: a network's weights, and a record of how it was trained.

Both are files beside this module and belong to the code: they are read as modules are, once, and nothing else is.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from prefect_gpu.papers.deepshare.network import WEIGHTS, Array, Network, Starts
from prefect_gpu.papers.deepshare.observation import Encoding
from prefect_gpu.papers.deepshare.reward import BRANCHES
from prefect_gpu.papers.deepshare.trained_policy import TrainedPolicy

if TYPE_CHECKING:
    from importlib.abc import Traversable

NODES, GPUS_PER_NODE = 4, 8


def policy_of(content: bytes) -> TrainedPolicy:
    """The policy in the content of a file that ``prefect-gpu train-policy`` wrote.

    Raises:
        ValueError: The content is none of such a file.
    """
    remedy = "give an .npz file that `prefect-gpu train-policy` wrote."
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            arrays: dict[str, Any] = {name: stored[name] for name in (*WEIGHTS, "models", "levels")}
    except (OSError, KeyError, ValueError, EOFError) as error:
        raise ValueError(f"content of {len(content)} bytes is no trained policy ({error}): {remedy}") from error
    levels = dict(zip(arrays["models"].tolist(), arrays["levels"].tolist(), strict=True))
    starts = Starts(Encoding(NODES, GPUS_PER_NODE, levels))
    return TrainedPolicy(starts, Network(starts, {name: arrays[name] for name in WEIGHTS}))


def content_of(weights: Mapping[str, Array], levels: Mapping[str, float]) -> bytes:
    """The content of a file with a policy.

    Args:
        weights: The network's arrays by their names.
        levels: The number that stands for each model in the state.
    """
    written = io.BytesIO()
    models = sorted(levels)
    np.savez_compressed(
        written,
        models=np.array(models),
        levels=np.array([levels[model] for model in models], dtype=np.float64),
        **cast("dict[str, Any]", {name: np.asarray(weights[name], dtype=np.float32) for name in WEIGHTS}),
    )
    return written.getvalue()


@cache
def shipped(branch: str) -> TrainedPolicy:
    """The policy of a branch, A to E.

    Raises:
        ValueError: There is none; the message lists those there are.
    """
    known = available()
    if branch not in known:
        raise ValueError(f"branch={branch!r} has no trained policy: choose one of {', '.join(known)}.")
    return policy_of(_file(branch, "npz").read_bytes())


@cache
def available() -> tuple[str, ...]:
    """The branches whose trained policies come with the package."""
    return tuple(branch for branch in BRANCHES if _file(branch, "npz").is_file())


def record(branch: str) -> dict[str, Any]:
    """How the policy of a branch was trained, and what it reached."""
    found: dict[str, Any] = json.loads(_file(branch, "json").read_text("utf-8"))
    return found


def _file(branch: str, kind: str) -> Traversable:
    return files(__package__) / "weights" / f"deepshare-{branch.lower()}.{kind}"
