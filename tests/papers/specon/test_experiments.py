"""SpeCon's experiments, in small: which way things go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prefect_gpu.papers.specon import experiments as specon
from prefect_gpu.simulation.effects.company import Company

RANDOM = replace(specon.SETTINGS[1], jobs=12, within_s=150.0)


def test_converged_runs_that_give_way_shorten_the_mean_and_the_makespan() -> None:
    base, printed, ours = (specon.means(RANDOM, one, range(3)) for one in ("round-robin", "specon-printed", "specon"))
    assert ours[0] < printed[0] < base[0]
    assert max(ours[1], printed[1]) < base[1]


def test_every_job_ends_and_none_trains_more_than_it_must() -> None:
    results = specon.run(RANDOM, "specon", 1)
    assert results.jobs == 12
    assert not results.unfinished
    assert any(outcome.starts > 1 for outcome in results.outcomes)


@pytest.mark.parametrize("part", [0.65, 0.9, 0.98])
def test_a_loss_falls_as_far_in_the_first_fifth_as_printed(part: float) -> None:
    losses = specon.curve(part)
    assert (losses[0], losses[-1]) == pytest.approx((1.0, 0.0))
    assert losses[0] - losses[20] == pytest.approx(part, abs=1e-6)


def test_the_same_draw_is_the_same_run() -> None:
    assert specon.run(RANDOM, "specon", 5).outcomes == specon.run(RANDOM, "specon", 5).outcomes


def test_a_negative_loss_by_company_is_refused() -> None:
    with pytest.raises(ValueError, match="loss is -1"):
        Company(-1)
