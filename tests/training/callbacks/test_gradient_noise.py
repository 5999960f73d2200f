"""The noise of the gradient, from the gradients of parts of a batch, with real PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_gpu.training import training_run

pytestmark = pytest.mark.needs("pytorch")

SLOPE, SPREAD = 3.0, 2.0


@pytest.fixture(autouse=True)
def torch() -> Any:
    import torch

    torch.manual_seed(0)
    return torch


def noise(parameters: Any, batch_size: int = 8, **options: Any) -> Any:
    from prefect_gpu.training.callbacks.gradient_noise import GradientNoise

    return GradientNoise(parameters, batch_size, **options)


def trained(torch: Any, measure: Any, weight: Any, *, steps: int, parts: int, samples: int) -> None:
    """Each sample's gradient is SLOPE, and a normal number of the deviation SPREAD, for each of the weights."""
    for _ in range(steps):
        weight.grad = None
        for _ in range(parts):
            drawn = SLOPE + SPREAD * torch.randn(samples, len(weight))
            ((drawn @ weight).mean() / parts).backward()
        measure.step(parts * samples)


@pytest.mark.parametrize(("parts", "samples"), [(2, 4), (4, 4), (8, 1)])
def test_norm_and_variance_come_out_however_a_batch_is_split(torch: Any, parts: int, samples: int) -> None:
    """Of 50 weights: 50 · 3² is the squared norm, and 50 · 2² / 8 is the variance of a batch of 8."""
    weight = torch.nn.Parameter(torch.zeros(50))
    measure = noise([weight], smoothing=0.99)
    trained(torch, measure, weight, steps=400, parts=parts, samples=samples)
    found = measure.metrics()
    assert found["gradient_sqr"] == pytest.approx(50 * SLOPE**2, rel=0.05)
    assert found["gradient_var"] == pytest.approx(50 * SPREAD**2 / 8, rel=0.05)


def test_the_training_is_told_the_noise_scale(torch: Any) -> None:
    """50 · 2² ÷ (50 · 3²) samples."""
    weight = torch.nn.Parameter(torch.zeros(50))
    with training_run() as run:
        measure = noise([weight], run=run, smoothing=0.99)
        assert measure.scale is None
        trained(torch, measure, weight, steps=400, parts=4, samples=2)
        assert measure.scale == pytest.approx(4 / 9, rel=0.05)
        assert run._progress.noise_scale == measure.scale


def test_a_gradient_that_is_not_finite_says_nothing(torch: Any) -> None:
    """A gradient scaler begins with a scale that is too large, and the optimizer leaves these steps out."""
    weight = torch.nn.Parameter(torch.zeros(50))
    with training_run() as run:
        measure = noise([weight], run=run)
        trained(torch, measure, weight, steps=20, parts=2, samples=4)
        before = measure.scale
        assert before is not None
        for factor in (float("inf"), float("nan")):
            for _ in range(2):
                (weight.sum() * factor).backward()
            measure.step(8)
        assert measure.scale == before


def test_a_batch_of_one_part_says_nothing(torch: Any) -> None:
    weight = torch.nn.Parameter(torch.zeros(50))
    measure = noise([weight])
    trained(torch, measure, weight, steps=5, parts=1, samples=8)
    assert measure.metrics() == {}


def test_frozen_parameters_are_left_alone_and_the_gradients_stay_as_they_are(torch: Any) -> None:
    frozen = torch.nn.Parameter(torch.zeros(50), requires_grad=False)
    weights = [torch.nn.Parameter(torch.zeros(3)) for _ in range(2)]
    measure = noise([frozen, weights[1]])
    for weight in weights:
        (2 * weight).sum().backward()
    measure.step(8)
    assert torch.equal(weights[0].grad, weights[1].grad)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size=0 must be a whole number of at least 1"),
        ({"batch_size": None}, "batch_size=None .* neither the pool nor training_run"),
        ({"smoothing": 1.0}, "smoothing=1.0 is out of range"),
        ({"smoothing": "0.9"}, "smoothing='0.9' is out of range"),
    ],
)
def test_wrong_arguments_are_named(torch: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        noise([torch.nn.Parameter(torch.zeros(1))], **options)


def test_a_batch_of_unknown_size_is_named(torch: Any) -> None:
    with (
        training_run() as run,
        pytest.raises(ValueError, match=r"batch_size=None .* neither the pool nor training_run"),
    ):
        noise([torch.nn.Parameter(torch.zeros(1))]).step(run.batch_size)


def test_a_model_without_gradients_is_refused(torch: Any) -> None:
    with pytest.raises(ValueError, match="none that needs a gradient"):
        noise([torch.zeros(1, requires_grad=False)])


def _replica(rank: int, folder: str) -> None:
    import torch

    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.manual_seed(rank)
    model = torch.nn.Linear(50, 1, bias=False)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    measure = noise(model.parameters(), smoothing=0.99)
    for _ in range(300):
        model.zero_grad()
        parallel(SLOPE + SPREAD * torch.randn(4, 50)).mean().backward()
        measure.step(8)
    found = measure.metrics()
    assert found["gradient_sqr"] == pytest.approx(50 * SLOPE**2, rel=0.05)
    assert found["gradient_var"] == pytest.approx(50 * SPREAD**2 / 8, rel=0.05)
    torch.distributed.destroy_process_group()


def test_replicas_of_one_part_each_are_parts(torch: Any, tmp_path: Any) -> None:
    torch.multiprocessing.spawn(_replica, (str(tmp_path),), nprocs=2)
