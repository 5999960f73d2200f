"""The examples of the page about frameworks, run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.callbacks.restarted import OFFLINE

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "frameworks.md"
pytestmark = pytest.mark.needs("frameworks")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


def example(heading: str, module: str) -> Any:
    """The function ``train`` of this section."""
    section = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.S)
    names: dict[str, Any] = {}
    exec(code, names)
    return names["train"]


def test_pytorch() -> None:
    train = example("PyTorch", "torch")
    import torch

    data = torch.utils.data.TensorDataset(torch.ones(4, 2), torch.ones(4, 1))
    model = torch.nn.Linear(2, 1)
    before = model.weight.detach().clone()
    trained = train(model, torch.utils.data.DataLoader(data, batch_size=2))
    assert trained is model and not torch.equal(model.weight, before)


@pytest.mark.filterwarnings("ignore")
def test_lightning() -> None:
    train = example("Lightning", "lightning")
    from tests.training.callbacks.test_lightning import PROGRAM

    names: dict[str, Any] = {}
    exec(PROGRAM, names)
    module = names["Net"]()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    assert train(module, names["data"](), max_epochs=2, **quiet).trainer.global_step == 10


def test_transformers() -> None:
    train = example("Transformers", "transformers")
    from tests.training.callbacks.test_transformers import PROGRAM

    names: dict[str, Any] = {}
    exec(PROGRAM, names)
    options = {"output_dir": "out", "max_steps": 3, "report_to": [], "use_cpu": True, "save_strategy": "no"}
    assert train(names["model"](), names["data"](), **options).state.global_step == 3


def test_keras() -> None:
    train = example("Keras", "keras")
    from tests.training.callbacks.test_keras import PROGRAM

    names: dict[str, Any] = {}
    exec(PROGRAM, names)
    assert int(train(names["model"](), np.ones((64, 4)), np.zeros((64, 1))).optimizer.iterations) == 6
