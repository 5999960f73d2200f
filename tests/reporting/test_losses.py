"""The table of losses on a run's page, which a notebook plots."""

from __future__ import annotations

from itertools import pairwise

import pytest

from prefect_gpu.reporting.losses import losses_markdown, read_losses


@pytest.mark.parametrize("count", range(1, 60))
def test_of_the_whole_curve_at_most_thirteen_points_are_shown(count: int) -> None:
    """Of 23 points it was the last 12: a curve that was plotted from them began in its middle."""
    points = [(float(step), 1.0 / step) for step in range(1, count + 1)]
    shown = [step for step, _ in read_losses(losses_markdown(points, points[-1][1]))]
    assert len(shown) <= 13 and (shown[0], shown[-1]) == (1.0, count)
    gaps = {later - earlier for earlier, later in pairwise(shown[:-1])}
    assert len(gaps) <= 1, "as far from each other, but for the last one"
