"""The PyTorch training, in this process and without a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.torch_training import build, load, train_cnn
from prefect_gpu.training.protocol import ENV_CHECKPOINTS
from tests.training.conftest import as_another_process

pytestmark = pytest.mark.needs("pytorch")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """More threads would only wait for each other over steps as small as these."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
def test_it_learns_to_read_digits_and_saves_what_it_learned(tmp_path: Path) -> None:
    import torch

    accuracy = train_cnn.fn(str(tmp_path / "model.pt"))
    model = build(channels=16).eval()
    model.load_state_dict(torch.load(tmp_path / "model.pt"))
    x, y = load()[1].tensors
    assert accuracy == (model(x).argmax(1) == y).float().mean().item() > 0.95


def test_a_run_that_was_interrupted_ends_as_it_would_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from prefect_gpu.training.callbacks.torch import TorchLoop

    def train(name: str) -> dict[str, torch.Tensor]:
        train_cnn.fn(str(tmp_path / name), epochs=2, channels=2, batch_size=256)
        weights: dict[str, torch.Tensor] = torch.load(tmp_path / name)
        return weights

    whole = train("whole.pt")
    monkeypatch.setenv(ENV_CHECKPOINTS, str(tmp_path / "checkpoints"))
    report = TorchLoop.report

    def crash(loop: TorchLoop, loss: torch.Tensor, epoch: int) -> None:
        loop._run._saver.due_at = 0.0  # a checkpoint is due in every step
        report(loop, loss, epoch=epoch)
        if loop._run.step == 8:
            raise MemoryError

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(TorchLoop, "report", crash)
        as_another_process()
        train("interrupted.pt")
    as_another_process()
    restored = train("restored.pt")
    assert restored.keys() == whole.keys() and all(torch.equal(restored[name], whole[name]) for name in whole)
