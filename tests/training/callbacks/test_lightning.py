"""The callback against the real PyTorch Lightning."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from prefect_gpu.training import TrainingRunError, training_run
from prefect_gpu.training.protocol import CHECKPOINT, PROGRESS, SAVE_CHECKPOINT, STOP
from tests.training.callbacks.restarted import ends_alike

pytestmark = pytest.mark.needs("frameworks")  # it takes seconds to import

PROGRAM = """
import logging, warnings
warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import lightning, torch

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))

    def training_step(self, batch, index):
        loss = torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]

def data(shuffle=True):
    values = torch.utils.data.TensorDataset(torch.randn(40, 4), torch.randn(40, 1))
    return torch.utils.data.DataLoader(values, batch_size=8, shuffle=shuffle)

def trainer(*callbacks, **options):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    options = {"max_epochs": 3, **options}
    return lightning.Trainer(enable_checkpointing=False, callbacks=list(callbacks), **quiet, **options)
"""


@pytest.fixture(scope="module")
def library() -> dict[str, Any]:
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        exec(PROGRAM, names)
    names["torch"].manual_seed(0)
    return names


def reporter(run: Any, **options: Any) -> Any:
    from prefect_gpu.training.callbacks.lightning import LightningReporter

    return LightningReporter(run, **options)


@pytest.mark.filterwarnings("ignore")
def test_every_step_is_reported_and_what_was_logged(library: dict[str, Any], pool: Any) -> None:
    with training_run() as run:
        trainer = library["trainer"](reporter(run), max_epochs=2)
        trainer.fit(library["Net"](), library["data"](), library["data"]())
    with run.saving():
        pass
    assert [step for step, _ in pool.losses] == list(range(1, 11))
    assert pool.losses[-1][1] == pytest.approx(trainer.callback_metrics["train_loss"].item())
    last = pool.data(PROGRESS)[-1]
    assert (last["step"], last["steps"], set(last["metrics"])) == (10, 10, {"train_loss", "val_loss"})
    assert pool.phases == ["preparing", "training", "saving", "finished"]


@pytest.mark.filterwarnings("ignore")
def test_the_loss_may_be_what_was_logged(library: dict[str, Any], pool: Any) -> None:
    with training_run() as run:
        trainer = library["trainer"](reporter(run, loss="val_loss"), max_epochs=2)
        trainer.fit(library["Net"](), library["data"](), library["data"]())
    with run.saving():
        pass
    assert [step for step, _ in pool.losses] == [5, 10]
    assert pool.losses[-1][1] == trainer.callback_metrics["val_loss"].item()
    with training_run() as run:  # the first validation comes after the second epoch
        trainer = library["trainer"](reporter(run, loss="val_loss"), max_epochs=2, check_val_every_n_epoch=2)
        trainer.fit(library["Net"](), library["data"](), library["data"]())
    with run.saving():
        pass
    assert [step for step, _ in pool.losses] == [5, 10, 10]
    with training_run() as run, pytest.raises(ValueError, match=r"'loss2'.*logged is only train_loss"):
        library["trainer"](reporter(run, loss="loss2")).fit(library["Net"](), library["data"]())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loss", [None, "val_loss"])
def test_the_best_checkpoint_is_kept_whatever_the_loss_is(library: dict[str, Any], loss: str | None) -> None:
    with training_run(keep_best=True) as run:
        library["trainer"](reporter(run, loss=loss)).fit(library["Net"](), library["data"](), library["data"]())
    kept = run.best(library["torch"].load)
    assert kept is not None and kept["global_step"] % 5 == 0


@pytest.mark.filterwarnings("ignore")
def test_accumulated_gradients_make_one_step(library: dict[str, Any]) -> None:
    with training_run() as run:
        trainer = library["trainer"](reporter(run), max_epochs=2, accumulate_grad_batches=2)
        trainer.fit(library["Net"](), library["data"]())
    assert run.step == run.total_steps == trainer.global_step == 6


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "checkpoints", "saved", "steps"),
    [(STOP, "epoch", [5], 5), (STOP, "step", [1], 1), (STOP, None, [], 1), (SAVE_CHECKPOINT, "epoch", [5], 15)],
)
def test_it_saves_and_stops_when_the_pool_asks(
    library: dict[str, Any], pool: Any, kind: str, checkpoints: str | None, saved: list[int], steps: int
) -> None:
    with training_run() as run:
        pool.wait_for(lambda: pool.phases)
        pool.instruct(kind, reason="asked")
        while not run._mailbox.pending:
            pass
        library["trainer"](reporter(run, checkpoints=checkpoints)).fit(library["Net"](), library["data"]())
    with run.saving():
        pass
    assert (run.step, [event["step"] for event in pool.data(CHECKPOINT)]) == (steps, saved)
    assert run.stopped == ("asked" if kind == STOP else None)


@pytest.mark.filterwarnings("ignore")
def test_outside_the_pool_the_result_is_the_same(library: dict[str, Any]) -> None:
    def train(*callbacks: Any) -> Any:
        library["torch"].manual_seed(1)
        model = library["Net"]()
        library["trainer"](*callbacks).fit(model, library["data"](), library["data"]())
        return model.layers[0].weight

    with training_run() as run:
        weight = train(reporter(run))
    assert library["torch"].equal(weight, train())


def test_checkpoints_can_be_of_three_kinds(library: dict[str, Any]) -> None:
    with training_run() as run, pytest.raises(ValueError, match="checkpoints='often'"):
        reporter(run, checkpoints="often")


def test_a_stopped_training_ends_alike_in_another_process(
    library: dict[str, Any], controller: Any, tmp_path: Path
) -> None:
    checkpoints, said = ends_alike(
        controller,
        tmp_path,
        PROGRAM
        + """
from prefect_gpu.training.callbacks.lightning import LightningReporter

class Hold(lightning.Callback):
    def on_train_batch_start(self, trainer, module, batch, index):
        if trainer.global_step == 6:
            wait(run)

lightning.seed_everything(3, verbose=False)
with training_run() as run:
    model, batches, valid = Net(), data(), data(shuffle=False)
    checkpoint = run.restore()
    first = run.step
    trainer(Hold(), LightningReporter(run), max_epochs=4).fit(model, batches, valid, ckpt_path=checkpoint)
with run.saving():
    pass
print(first, run.step, digest(value.numpy() for value in model.state_dict().values()))
""",
        held_at=6,
    )
    assert checkpoints == [10] and said == ["10", "20"]


@pytest.mark.filterwarnings("ignore")
def test_a_second_training_with_one_reporter_is_refused_unless_it_saves_nothing(library: dict[str, Any]) -> None:
    def fit(told: Any) -> None:
        library["trainer"](told, max_epochs=1).fit(library["Net"](), library["data"]())

    with training_run() as run:
        fit(told := reporter(run))
        with pytest.raises(TrainingRunError, match=r"needs a training_run\(\) and a LightningReporter"):
            fit(told)
    with training_run() as run:
        fit(told := reporter(run, checkpoints=None))
        fit(told)
