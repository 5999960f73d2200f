"""The pool's past, as something to simulate."""

from __future__ import annotations

import pytest

from prefect_gpu.reporting.what_if import read_past, replay, resized
from prefect_gpu.simulation.knowledge import Nothing
from tests.reporting.rows import BEGIN, a_gang, finished

GIB = 2**30


def test_phases_become_a_model() -> None:
    past = read_past([finished("a", 0, requested_gpu_memory_bytes=GIB)])
    assert past is not None
    [model] = past.models
    assert (model.submit_s, model.launching_s, model.service_s, model.saving_s) == (0.0, 1.0, 4.0, 1.5)
    assert model.request.gpus == 1 and model.request.shareable
    assert past.recorded.mean_wait_s == pytest.approx(2.0)
    assert past.recorded.mean_jct_s == pytest.approx(8.5)


def test_a_run_without_phases_trained_all_the_time() -> None:
    past = read_past([finished("a", 0, prepared_s=None, trained_s=None, saved_s=None)])
    assert past is not None
    assert past.models[0].service_s == pytest.approx(6.5)


def test_a_run_that_is_tried_again_is_submitted_again() -> None:
    first = finished("a", 0, outcome="failed")
    again = finished("a", 20, attempt=2, submitted_at=BEGIN - 2)
    past = read_past([again, first])
    assert past is not None
    assert [model.submit_s for model in past.models] == [0.0, 8.5]
    assert past.recorded.mean_wait_s == pytest.approx((2.0 + 13.5) / 2)


def test_devices_have_the_memory_that_was_granted_on_them_at_once() -> None:
    rows = [finished(name, 0, requested_gpu_memory_bytes=3 * GIB) for name in "ab"]
    past = read_past([*rows, finished("later", 50, requested_gpu_memory_bytes=3 * GIB)])
    assert past is not None
    assert past.nodes[0].devices[0].memory_bytes == 6 * GIB
    assert replay(past, "fifo", Nothing()).mean_wait_s == pytest.approx(0.0)


def test_a_device_that_is_shared_trains_for_no_more_than_all_of_the_time() -> None:
    rows = [finished(name, 0, requested_gpu_memory_bytes=GIB) for name in "ab"]
    past = read_past([*rows, finished("elsewhere", 0, node="other", requested_gpu_memory_bytes=GIB)])
    assert past is not None and past.devices == 2
    assert past.recorded.gpu_busy_fraction == pytest.approx(2 * 4.0 / (2 * 6.5)), "of both, whatever they are called"
    alone = read_past(rows)
    assert alone is not None and alone.devices == 1
    assert alone.recorded.gpu_busy_fraction == pytest.approx(4.0 / 6.5)
    assert replay(alone, "fifo", Nothing()).gpu_busy_fraction == pytest.approx(4.0 / 6.5)


def test_a_gang_is_replayed_as_one_on_the_devices_of_all_its_instances() -> None:
    past = read_past([a_gang("gang", 0, ("n1", 2), ("n2", 2), ("n2", 0)), a_gang("later", 10, ("n1", 2), ("n2", 2))])
    assert past is not None
    assert [(node.id, len(node.devices)) for node in past.nodes] == [("n1", 2), ("n2", 2)]
    assert [(m.request.gpus, m.request.workers, m.request.servers) for m in past.models] == [(2, 2, 1), (2, 2, 0)]
    assert past.recorded.gpu_busy_fraction == pytest.approx(2 * 4 * 4.0 / (4 * 16.5)), "device seconds of all instances"
    figures = replay(past, "fifo", Nothing())
    assert figures.never_started == 0 and figures.mean_wait_s == pytest.approx(0.0)


def test_a_run_whose_devices_were_split_unevenly_is_replayed_as_one_that_may_be_split() -> None:
    past = read_past([a_gang("split", 0, ("n1", 2), ("n2", 1))])
    assert past is not None
    assert past.models[0].request.gpus == 3 and past.models[0].request.spans
    assert replay(past, "fifo", Nothing()).never_started == 0


def test_what_is_left_out_is_counted() -> None:
    rows = [finished("a", 0), finished("light", 0, on=()), finished("never", 0, granted_at=None, outcome="cancelled")]
    past = read_past(rows)
    assert past is not None
    assert past.left_out == {"held no device": 1, "never started": 1}
    assert read_past(rows[1:]) is None


def test_devices_come_to_the_largest_node_and_go_from_it() -> None:
    past = read_past([finished("a", 0, on=("g0", "g1")), finished("b", 0, on=("h0",), node="other")])
    assert past is not None
    more = resized(past.nodes, 2)
    assert [len(node.devices) for node in more] == [4, 1]
    assert len({device.id for node in more for device in node.devices}) == 5
    assert [len(node.devices) for node in resized(past.nodes, -1)] == [1, 1]
    with pytest.raises(ValueError, match=r"gpus=-3 leaves none of 3 devices"):
        resized(past.nodes, -3)


def test_a_run_that_no_longer_fits_is_counted() -> None:
    past = read_past([finished("a", 0, on=("g0", "g1")), finished("b", 0, on=("g0",))])
    assert past is not None
    found = replay(past, "fifo", Nothing(), resized(past.nodes, -1))
    assert (found.runs, found.never_started) == (1, 1)
