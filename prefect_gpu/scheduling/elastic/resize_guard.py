"""When is a resize worth it? F-scheduling's rule against thrashing (Seo, 2020, §4.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prefect_gpu.scheduling.elastic.listing1 import ElasticJob

LEAST_GAIN_STEPS_PER_S = 1.0
PROTECTED_LAUNCHES = 3.0


def worth_applying(
    jobs: Sequence[ElasticJob],
    before: Mapping[str, int],
    after: Mapping[str, int],
    least_gain_steps_per_s: float = LEAST_GAIN_STEPS_PER_S,
) -> bool:
    """Whether a new assignment is worth the restarts (§4.4): a waiting job starts, or the sum of f rises enough.

    Args:
        jobs: The jobs that the assignments name.
        before: GPUs by job id now, of the running jobs.
        after: GPUs by job id in the new assignment.
        least_gain_steps_per_s: By how much the throughput sum must rise otherwise, in steps per second.
    """
    if any(count > 0 and before.get(name, 0) == 0 for name, count in after.items()):
        return True
    by_id = {job.id: job for job in jobs}
    gain = sum(by_id[name].f(count) for name, count in after.items())
    gain -= sum(by_id[name].f(count) for name, count in before.items())
    return gain >= least_gain_steps_per_s
