"""Where a training's checkpoints are kept: a folder, or S3."""

from prefect_gpu.training.checkpoints.local import CheckpointStore
from prefect_gpu.training.checkpoints.location import part_of
from prefect_gpu.training.checkpoints.manifest import (
    Checkpoint,
    CheckpointDamaged,
    CheckpointError,
    SaveCallback,
    Store,
)
from prefect_gpu.training.checkpoints.opening import open_store

__all__ = [
    "Checkpoint",
    "CheckpointDamaged",
    "CheckpointError",
    "CheckpointStore",
    "SaveCallback",
    "Store",
    "open_store",
    "part_of",
]
