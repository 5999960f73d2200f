"""What a larger batch brings, and how the gradient's noise grows."""

from __future__ import annotations

import pytest

from prefect_gpu.estimation.goodput.noise import Noise, gain


@pytest.mark.parametrize(
    ("sqr", "var", "scale", "brings"),
    [(1.0, 3.0, 1.0, 1.0), (1.0, 0.0, 8.0, 1.0), (0.0, 1.0, 8.0, 8.0), (1.0, 1.0, 2.0, 4 / 3)],
)
def test_without_noise_a_larger_batch_brings_nothing_and_with_noise_alone_as_much_as_it_is_larger(
    sqr: float, var: float, scale: float, brings: float
) -> None:
    assert gain(sqr, var, scale) == pytest.approx(brings)


def test_epochs_that_nobody_has_reached_are_noisier() -> None:
    noise = Noise(4)
    assert noise.by_epoch().tolist() == [1.0] * 4
    noise.report(1, 2.0, 6.0)
    assert noise.by_epoch() == pytest.approx([3.0, 3.0, 4.5, 6.0])


def test_runs_that_disagree_are_averaged_and_an_epoch_between_two_is_between_them() -> None:
    noise = Noise(3)
    for var in (2.0, 8.0):
        noise.report(0, 1.0, var)
    noise.report(2, 1.0, 16.0)
    assert noise.by_epoch() == pytest.approx([4.0, 8.0, 16.0])


def test_only_what_is_new_counts_as_a_change() -> None:
    noise = Noise(2)
    for epoch, changed in ((0, 1), (0, 2), (0, 2), (0, 3), (1, 4)):
        noise.report(epoch, 1.0, 1.0)
        assert noise.version == changed
    noise.report(1, 0.0, 1.0)
    noise.report(1, 1.0, -1.0)
    assert noise.version == 4
