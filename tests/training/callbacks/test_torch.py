"""Loops of one's own in PyTorch."""

from __future__ import annotations

import warnings
from collections import namedtuple
from pathlib import Path
from typing import Any, cast

import pytest

from prefect_gpu.training import TrainingRunError, training_run
from prefect_gpu.training.protocol import CHECKPOINT, ENV_CHECKPOINTS, PROGRESS, SAVE_CHECKPOINT
from tests.training.callbacks.restarted import ends_alike
from tests.training.conftest import as_another_process

pytestmark = pytest.mark.needs("pytorch")


@pytest.fixture(autouse=True)
def torch() -> Any:
    import torch

    torch.manual_seed(0)
    return torch


def make(torch: Any, run: Any, **options: Any) -> tuple[Any, Any, Any]:
    from prefect_gpu.training.callbacks.torch import TorchLoop

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return TorchLoop(run, model, optimizer=optimizer, **options), model, optimizer


def step(torch: Any, model: Any, optimizer: Any, x: Any) -> Any:
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def loader(torch: Any, **options: Any) -> Any:
    options = options if "batch_sampler" in options else {"batch_size": 2, **options}
    return torch.utils.data.DataLoader(torch.arange(12.0).reshape(6, 2), **options)


def test_batches_are_steps_and_what_is_reported_arrives(torch: Any, pool: Any) -> None:
    losses = []
    with training_run() as run:
        loop, model, optimizer = make(torch, run)
        for x in loop.batches(loader(torch), epochs=2):
            losses.append(step(torch, model, optimizer, x * 0.01))
            loop.report(losses[-1], epoch=loop.epoch)
    with run.saving():
        pass
    assert pool.losses == [[number + 1, loss.item()] for number, loss in enumerate(losses)]
    last = pool.data(PROGRESS)[-1]
    assert (last["step"], last["steps"], last["metrics"]) == (6, 6, {"epoch": 1.0})
    assert pool.phases == ["preparing", "training", "saving", "finished"]


def test_a_checkpoint_is_saved_when_the_pool_asks(torch: Any, pool: Any) -> None:
    with training_run(steps=3) as run:
        loop, _, _ = make(torch, run)
        for number in loop.steps():
            if number == 1:
                pool.instruct(SAVE_CHECKPOINT)
                while run._mailbox.save is None:
                    pass
            loop.report(0.5)
    with run.saving():
        pass
    assert [event["step"] for event in pool.data(CHECKPOINT)] == [2]


@pytest.mark.parametrize("saved_at", [1, 3, 4, 5])
@pytest.mark.parametrize("draws", ["torch", "loader", "sampler", "batch_sampler", "loader of lasting workers"])
def test_a_restored_training_sees_the_batches_that_it_would_have_seen(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved_at: int, draws: str
) -> None:
    def train(until: int | None = None) -> tuple[list[Any], Any]:
        torch.manual_seed(7)
        seen = []
        generator = torch.Generator().manual_seed(3)
        sampler = torch.utils.data.RandomSampler(range(6), generator=generator)
        own = {
            "torch": {"shuffle": True},
            "loader": {"shuffle": True, "generator": generator},
            "sampler": {"sampler": sampler},
            "batch_sampler": {"batch_sampler": torch.utils.data.BatchSampler(sampler, 2, drop_last=False)},
            "loader of lasting workers": {"shuffle": True, "num_workers": 1, "persistent_workers": True},
        }[draws]
        as_another_process()
        with training_run(checkpoint_every=1e-9) as run:
            loop, model, optimizer = make(torch, run)
            for x in loop.batches(loader(torch, **own), epochs=3):
                noisy = x * 0.01 + torch.rand(1)  # dropout, say
                loop.report(step(torch, model, optimizer, noisy))
                seen.append(noisy)
                if run.step == until:
                    break
        return seen, model.weight.detach()

    whole, weight = train()
    monkeypatch.setenv(ENV_CHECKPOINTS, str(tmp_path))
    train(until=saved_at)
    rest, restored = train()
    assert torch.equal(torch.cat(rest), torch.cat(whole[saved_at:])) and torch.equal(restored, weight)


def test_a_loss_with_a_gradient_is_reported_without_a_warning(torch: Any, pool: Any) -> None:
    with training_run(steps=2) as run, warnings.catch_warnings():
        warnings.simplefilter("error")
        for _, loss in zip(run.steps(), (torch.tensor(0.5), torch.tensor([0.25])), strict=True):
            run.report(loss=loss.requires_grad_())
    with run.saving():
        pass
    assert pool.losses == [[1, 0.5], [2, 0.25]]


def test_a_second_call_of_batches_is_refused(torch: Any) -> None:
    """In a loop over epochs of one's own, it would yield nothing from the second one on."""
    with training_run() as run:
        loop, _, _ = make(torch, run)
        assert len(list(loop.batches(loader(torch), epochs=1))) == 3
        with pytest.raises(TrainingRunError, match="all epochs by itself"):
            next(loop.batches(loader(torch), epochs=1))


def test_a_loader_that_is_shorter_than_it_says_is_named(torch: Any) -> None:
    class Short(list):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 3

    with training_run() as run:
        loop, _, _ = make(torch, run)
        with pytest.raises(ValueError, match="length is 3, and an epoch of it has only 2 batches"):
            for _ in loop.batches(Short([torch.ones(1), torch.ones(1)]), epochs=2):
                loop.report(1.0)


def test_the_model_moves_to_the_device_after_the_gate(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # "meta" stands in for a GPU, which CI has not: a device that is not the CPU, without storage.
    with training_run(steps=1) as run:
        loop, model, _ = make(torch, run, device="meta")
        moved_before = []
        monkeypatch.setattr(run, "ready", lambda: moved_before.append(model.weight.device.type))
        loop.begin()
        assert moved_before == ["cpu"] and model.weight.device.type == "meta"


def test_batches_of_any_shape_are_moved(torch: Any) -> None:
    Pair = namedtuple("Pair", "x y")
    with training_run(steps=1) as run:
        loop, _, _ = make(torch, run, device="meta")
        one = torch.ones(1)
        batch = loop.to_device({"pair": Pair(one, [one]), "name": "a", "tuple": (one,)})
        assert type(batch["pair"]) is Pair and batch["name"] == "a"
        assert {batch["pair"].x.device.type, batch["pair"].y[0].device.type, batch["tuple"][0].device.type} == {"meta"}


def test_what_makes_no_sense_is_said(torch: Any) -> None:
    from prefect_gpu.training.callbacks.torch import TorchLoop

    with training_run(steps=1) as run:
        with pytest.raises(TypeError, match=r"optimizer=str cannot go into a checkpoint.*state_dict"):
            TorchLoop(run, torch.nn.Linear(1, 1), optimizer="adam")
        with pytest.raises(TypeError, match="model=NoneType cannot go into a checkpoint"):
            TorchLoop(run, cast(Any, None))
        with pytest.raises(ValueError, match="epochs=0 of 3 batches"):
            next(make(torch, run)[0].batches(loader(torch), epochs=0))
        with pytest.raises(ValueError, match=r"epochs=2\.5 must be a whole number"):
            next(make(torch, run)[0].batches(loader(torch), epochs=2.5))
        with pytest.raises(TypeError, match="is an iterator, which has one epoch: give the DataLoader of it"):
            next(make(torch, run)[0].batches(iter(loader(torch)), epochs=2))


def test_losses_on_a_device_are_fetched_now_and_then(torch: Any) -> None:
    from prefect_gpu.training.callbacks._values import LossReader

    class OnGpu:
        """Stands in for a tensor on a GPU, which CI has not."""

        device = torch.device("cuda:0")
        fetched = 0

        def __float__(self) -> float:
            OnGpu.fetched += 1
            return 2.0

    reader = LossReader()
    assert reader.read(OnGpu()) == 2.0
    reader._due_at = float("inf")
    assert reader.read(OnGpu()) is None and OnGpu.fetched == 1
    assert reader.read(OnGpu(), last=True) == 2.0
    assert reader.read(torch.ones(1, requires_grad=True)).requires_grad is False


@pytest.mark.slow
def test_a_stopped_training_ends_alike_in_another_process(controller: Any, tmp_path: Path) -> None:
    checkpoints, said = ends_alike(
        controller,
        tmp_path,
        """
        import torch
        from prefect_gpu.training.callbacks.torch import TorchLoop

        torch.manual_seed(5)
        data = torch.utils.data.TensorDataset(torch.randn(40, 4), torch.randn(40, 1))
        loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
        with training_run() as run:
            model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
            optimizer = torch.optim.Adam(model.parameters())
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
            loop = TorchLoop(run, model, optimizer=optimizer, scheduler=scheduler)
            loop.begin()
            first = run.step
            for x, y in loop.batches(loader, epochs=3):
                loss = torch.nn.functional.mse_loss(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
                if run.step == 6:
                    wait(run)
                loop.report(loss)
        with run.saving():
            pass
        print(first, run.step, digest(value.numpy() for value in model.state_dict().values()))
        """,
        held_at=6,
    )
    assert checkpoints == [7] and said == ["7", "15"]
