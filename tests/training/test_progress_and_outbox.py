"""What is kept between two sends is bounded, and what is sent is in order."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.training.channel import outbox as outbox_module
from prefect_gpu.training.channel.client import ChannelClient
from prefect_gpu.training.channel.outbox import Outbox
from prefect_gpu.training.limits.usage import UsageSampler
from prefect_gpu.training.progress import MAX_METRICS, MAX_POINTS, Progress
from prefect_gpu.training.protocol import CHECKPOINT, MAX_FRAME_BYTES, PHASE, USAGE


@given(st.lists(st.integers(1, 2000), max_size=6))
def test_any_number_of_reports_gives_a_bounded_ordered_curve_with_its_ends(bursts: list[int]) -> None:
    progress, step = Progress(None), 0
    for burst in bursts:
        first = step + 1
        for _ in range(burst):
            step += 1
            progress.put(step, float(step), None, float(step))
        data = progress.take()
        assert data is not None
        steps = [point[0] for point in data["losses"]]
        assert len(steps) <= MAX_POINTS + 1
        assert steps == sorted(set(steps)) and (steps[0], steps[-1]) == (first, step)
        assert all(point[1] == float(point[0]) for point in data["losses"])
        assert data["steps_per_s"] == 1.0 or math.isclose(data["steps_per_s"], 1.0) or step == 1
    assert progress.take() is None


def test_metrics_are_bounded_and_the_newest_stay() -> None:
    progress = Progress(5)
    for number in range(3 * MAX_METRICS):
        progress.put(1, None, {f"m{number}": 1.0}, 1.0)
    data = progress.take()
    assert data is not None and len(data["metrics"]) == MAX_METRICS


def test_a_controller_that_never_comes_costs_bounded_memory_and_no_phase() -> None:
    outbox = Outbox()
    for number in range(2000):
        outbox.add(PHASE if number % 100 == 0 else CHECKPOINT, {"phase": "training", "number": number})
    frames = [json.loads(frame) for frame in outbox.unsent()]
    assert len(frames) == outbox_module.MAX_EVENTS
    assert [frame["data"]["number"] for frame in frames if frame["kind"] == PHASE] == list(range(0, 2000, 100))
    assert frames[-1]["data"]["number"] == 1999
    assert [frame["seq"] for frame in frames] == sorted(frame["seq"] for frame in frames)


def test_only_what_was_not_handled_is_sent_again() -> None:
    outbox = Outbox()
    for number in range(4):
        outbox.add(USAGE, {"number": number})
    assert len(outbox.unsent()) == 4 and outbox.unsent() == [] and not outbox.has_unsent()
    outbox.resume(2)
    assert [json.loads(frame)["seq"] for frame in outbox.unsent()] == [3, 4]
    assert outbox.wait_empty(0, lambda: False) is False
    outbox.acknowledge(4)
    assert outbox.wait_empty(0, lambda: False) is True


def test_an_event_too_large_for_the_channel_is_sent_without_its_details(caplog: pytest.LogCaptureFixture) -> None:
    outbox = Outbox()
    outbox.add(PHASE, {"phase": "training", "step": 3, "features": {"text": "x" * MAX_FRAME_BYTES}})
    (frame,) = outbox.unsent()
    assert json.loads(frame)["data"] == {"phase": "training", "step": 3}
    assert "too large" in caplog.text


def test_usage_of_this_process_is_plausible_and_no_virtual_device_is_measured() -> None:
    sampler = UsageSampler([{"id": "virtual-0", "virtual": True}])
    assert sampler.take() == {}
    sampler.sample()
    sum(range(2_000_000))
    sampler.sample()
    usage = sampler.take()
    assert usage["cpu_fraction"] >= 0 and usage["rss_bytes"] > 10_000_000 and usage["net_bytes_per_s"] >= 0
    assert not [name for name in usage if name.startswith("device")]


def test_a_device_that_cannot_be_read_is_left_out() -> None:
    sampler = UsageSampler([{"id": "GPU-none", "virtual": False}])
    for _ in range(2):
        sampler.sample()
    assert "device_util" not in sampler.take()


def test_a_client_that_never_started_can_be_closed() -> None:
    instructions: list[Any] = []
    client = ChannelClient("run", "token", lambda: None, lambda *all: instructions.append(all))
    client.close(timeout=0)
    client.close(timeout=0)
