"""Prefect blocks: the nodes of a pool, how it is divided, and where its checkpoints are.

``pip install prefect-gpu`` makes them known.
"""

from prefect_gpu.blocks.cluster import ClusterNode, GpuCluster
from prefect_gpu.blocks.quota import GpuQuota, QuotaDefault, QuotaShare
from prefect_gpu.blocks.slurm import GpuSlurm, SlurmShape
from prefect_gpu.blocks.storage import CheckpointStorage

__all__ = [
    "CheckpointStorage",
    "ClusterNode",
    "GpuCluster",
    "GpuQuota",
    "GpuSlurm",
    "QuotaDefault",
    "QuotaShare",
    "SlurmShape",
]
