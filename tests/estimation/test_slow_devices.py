from __future__ import annotations

import math
import random

from prefect_gpu.estimation.slow_devices import CHANCE, StepSample, slow_devices


def samples(
    slower: dict[str, float], seed: int, *, devices: int = 8, each: int = 12, noise: float = 0.1
) -> list[StepSample]:
    """Runs of three programs on some devices, as noisy as real ones."""
    chance = random.Random(seed)
    found = []
    for _ in range(each):
        for number in range(devices):
            device, program = f"gpu-{number}", chance.choice("abc")
            step_s = {"a": 0.02, "b": 0.3, "c": 4.0}[program] * slower.get(device, 1.0)
            found.append(StepSample(device, program, step_s * math.exp(chance.gauss(0.0, noise))))
    return found


def test_a_slow_device_is_found_and_so_is_how_slow_it_is() -> None:
    for seed in range(20):
        [found] = slow_devices(samples({"gpu-3": 1.3}, seed))
        assert found.device == "gpu-3" and abs(found.factor - 1.3) < 0.15 and found.p < CHANCE / 8


def test_two_slow_devices_do_not_hide_each_other() -> None:
    found = slow_devices(samples({"gpu-1": 1.6, "gpu-2": 1.4}, 0))
    assert [one.device for one in found] == ["gpu-1", "gpu-2"]


def test_chance_calls_hardly_any_device_slow() -> None:
    assert sum(bool(slow_devices(samples({}, seed, noise=0.2))) for seed in range(200)) <= 1


def test_little_or_few_is_nothing() -> None:
    assert not slow_devices(samples({"gpu-3": 1.05}, 0, each=40, noise=0.01)), "5 % do not matter"
    assert not slow_devices(samples({"gpu-3": 2.0}, 0, each=4)), "four runs are too few"
    alone = [StepSample("gpu-0", "a", 9.0), *samples({}, 1)[1:]]
    assert not slow_devices([StepSample("gpu-9", "only-here", 9.0)] * 20 + alone), "nothing to compare it with"


def test_a_device_that_was_mended_is_believed() -> None:
    before, after = samples({"gpu-3": 1.5}, 0), samples({}, 1, each=60)
    assert slow_devices(before) and not slow_devices([*before, *after])
