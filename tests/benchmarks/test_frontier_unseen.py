"""The guard against fitting: what is drawn is what it says, and ``adaptive`` passes it."""

from __future__ import annotations

import random

import pytest

from benchmarks.frontier.unseen import GPUS_PER_NODE, draw
from tests.benchmarks.quick import quick
from tests.components import traces_folder

pytestmark = pytest.mark.needs("traces")


def test_a_draw_fits_its_cluster_and_another_seed_gives_another() -> None:
    files = sorted(traces_folder().rglob("trace-data/trace3.csv"))
    first, again, other = (draw(random.Random(seed), files, 50) for seed in (1, 1, 2))
    assert first == again and first.jobs != other.jobs
    assert len(first.jobs) == 50 and all(0 < job.gpus <= first.nodes * GPUS_PER_NODE for job in first.jobs)
    assert [job.submit_s for job in first.jobs] == sorted(job.submit_s for job in first.jobs)


@pytest.mark.full
def test_the_default_is_not_worse_than_the_best_on_what_nobody_has_seen() -> None:
    said = quick("frontier.unseen", "--traces", str(traces_folder()))  # another sample each day
    assert [claim["name"] for claim in said["claims"] if not claim["holds"]] == []
