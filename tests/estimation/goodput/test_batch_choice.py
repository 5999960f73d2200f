"""The batch that is chosen with the devices: the larger, the noisier the gradient is and the less a sample costs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.estimation.goodput.batch_choice import NOISE, BatchChoice

ALONE = {"1@64": [200, 20.0]}  # a tenth of a second for 64 samples on one device


def chosen(noise: float | None, measured: dict[str, Any] | None = None) -> BatchChoice:
    kept = {**(ALONE if measured is None else measured), **({} if noise is None else {NOISE: [noise, 100]})}
    return BatchChoice.of((64, 1024), kept)


def test_the_batch_grows_with_the_devices_and_with_the_noise() -> None:
    quiet, some, noisy = ([chosen(noise).best(n, 1) for n in (1, 2, 4, 8)] for noise in (1.0, 500.0, 1e6))
    assert quiet[:3] == [64, 64, 64]
    assert some == sorted(some) and 64 < some[0] < some[3] < 1024
    assert noisy[1:] == [1024, 1024, 1024]
    assert all(few <= more for few, more in zip(quiet, some, strict=True))


def test_more_devices_bring_more_where_the_batch_may_grow_with_them() -> None:
    quiet, noisy = (chosen(noise).speeds(8) for noise in (1.0, 1e6))
    assert noisy[7] / noisy[0] > 5 > 2 > quiet[7] / quiet[0]
    assert noisy[0] > quiet[0], "a part of each step is fixed"
    near, far = chosen(500.0).speeds(8), chosen(500.0).speeds(8, apart=True)
    assert near[0] == far[0] and all(less < more for less, more in zip(far[1:], near[1:], strict=True))


def test_what_was_measured_on_more_devices_counts() -> None:
    slow = chosen(1e6, {**ALONE, "1@1024": [100, 85.0], "4@1024": [100, 80.0]})
    assert slow.speeds(4)[3] == pytest.approx(16 * 100 / 80, rel=0.1), "16 steps with the smallest in 0.8 s"
    assert slow.speeds(4)[3] < 1.2 * slow.speeds(4)[0]


def test_where_it_is_its_batch_stays() -> None:
    found = chosen(1e6)
    told = found.speeds(4, here=(1, 1, 64))
    assert told[0] == pytest.approx(10.0, rel=0.02) and told[1:] == found.speeds(4)[1:]
    apart = found.speeds(4, apart=True, here=(2, 2, 64))
    assert apart[1] < found.speeds(4, apart=True)[1] and found.speeds(4, here=(2, 2, 64)) == found.speeds(4)


def test_no_batch_is_larger_than_it_must_be_before_noise_and_speed_are_known() -> None:
    for nothing in (chosen(None), chosen(1e6, {}), BatchChoice.of((64, 1024), None)):
        assert [nothing.best(n, 1) for n in (1, 3, 64, 65)] == [64, 66, 64, 65]
    assert not chosen(1e6, {}).known


def test_devices_that_no_batch_can_be_divided_among_have_no_speed() -> None:
    found = BatchChoice.of((10, 11), {"1@10": [100, 10.0], NOISE: [100.0, 1]})
    assert [speed > 0 for speed in found.speeds(12)] == [True, True, False, False, True, False, False, False, False,
                                                        True, True, False]  # fmt: skip


_ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
_TOTALS = st.lists(_ANYTHING, max_size=3) | _ANYTHING
_PLACES = st.sampled_from(["1@64", "2@64", "0@64", "4/2@512", "4/0@64", "9@8", "noise", "1", "99999@999999999"])


@given(st.dictionaries(_PLACES | st.text(max_size=8), _TOTALS | st.tuples(st.floats(0, 1e9), st.floats(0, 1e9))))
def test_whatever_is_kept_gives_batches_within_the_range(kept: dict[str, Any]) -> None:
    found = BatchChoice.of((64, 1024), kept)
    for devices in (1, 3, 8):
        batch = found.best(devices, 1)
        assert 64 <= batch <= 1024 and batch % devices == 0
    assert not found.known or all(speed >= 0 for speed in found.speeds(8))
