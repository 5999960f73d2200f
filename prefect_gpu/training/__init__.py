"""The run side: what a training function uses. Needs the standard library, and websockets inside the pool.

Example:
    >>> from prefect_gpu.training import training_run
    >>> with training_run(steps=2) as run:
    ...     for step in run.steps():
    ...         run.report(loss=0.5)
"""

from __future__ import annotations

import os

from prefect_gpu.training.checkpoints import Checkpoint, CheckpointError, CheckpointStore
from prefect_gpu.training.checks import NonFiniteLoss, TrainingRunError
from prefect_gpu.training.forks import end_children_well
from prefect_gpu.training.protocol import ENV_RUN_ID
from prefect_gpu.training.run import TrainingRun, training_run

if ENV_RUN_ID in os.environ:  # a flow may load data with forked workers before its training begins
    end_children_well()

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "CheckpointStore",
    "NonFiniteLoss",
    "TrainingRun",
    "TrainingRunError",
    "training_run",
]
