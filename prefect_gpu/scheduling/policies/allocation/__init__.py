"""Who runs now? An allocation goes through the jobs in their order and decides who starts and who makes room."""

from prefect_gpu.scheduling.policies.allocation.backfill import Backfill, Strict
from prefect_gpu.scheduling.policies.allocation.base import Allocation
from prefect_gpu.scheduling.policies.allocation.displace import Displace
from prefect_gpu.scheduling.policies.allocation.preemptive import Preemptive
from prefect_gpu.scheduling.policies.allocation.replan import Replan

__all__ = ["Allocation", "Backfill", "Displace", "Preemptive", "Replan", "Strict"]
