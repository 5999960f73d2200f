"""The callback against Hugging Face's real Trainer; models are made from a configuration, nothing is downloaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from prefect_gpu.training import TrainingRunError, training_run
from prefect_gpu.training.protocol import CHECKPOINT, PROGRESS, SAVE_CHECKPOINT, STOP
from tests.training.callbacks.restarted import OFFLINE, ends_alike

pytestmark = pytest.mark.needs("frameworks")  # it takes seconds to import

PROGRAM = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

def model():
    torch.manual_seed(2)
    sizes = {"n_embd": 8, "n_head": 1, "n_layer": 1, "n_positions": 8, "vocab_size": 20}
    return GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **sizes))

def data():
    drawn = torch.randint(20, (24, 6), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in drawn]

def trainer(*callbacks, **options):
    options = {"max_steps": 9, "logging_steps": 2, "save_strategy": "no", **options}
    arguments = TrainingArguments(
        output_dir="out", per_device_train_batch_size=4, report_to=[], disable_tqdm=True, use_cpu=True, **options
    )
    return Trainer(model(), arguments, train_dataset=data(), eval_dataset=data(), callbacks=list(callbacks))
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(PROGRAM, names)
    return names


def reporter(run: Any, **options: Any) -> Any:
    from prefect_gpu.training.callbacks.transformers import TransformersReporter

    return TransformersReporter(run, **options)


def test_steps_logged_losses_and_evaluations_are_reported(library: dict[str, Any], pool: Any) -> None:
    with training_run() as run:
        trainer = library["trainer"](reporter(run), max_steps=6, eval_strategy="steps", eval_steps=3)
        trainer.train()
    with run.saving():
        pass
    logged = {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
    assert dict(pool.losses) == logged and list(logged) == [2, 4, 6]
    last = pool.data(PROGRESS)[-1]
    assert (last["step"], last["steps"]) == (6, 6) and {"eval_loss", "learning_rate"} <= set(last["metrics"])
    assert pool.phases == ["preparing", "training", "saving", "finished"]


@pytest.mark.parametrize(
    ("kind", "checkpoints", "saved", "steps"),
    [(STOP, True, [1], 1), (STOP, False, [], 1), (SAVE_CHECKPOINT, True, [1], 9)],
)
def test_it_saves_and_stops_when_the_pool_asks(
    library: dict[str, Any], pool: Any, kind: str, checkpoints: bool, saved: list[int], steps: int
) -> None:
    with training_run() as run:
        pool.wait_for(lambda: pool.phases)
        pool.instruct(kind, reason="asked")
        while not run._mailbox.pending:
            pass
        library["trainer"](reporter(run, checkpoints=checkpoints)).train()
    with run.saving():
        pass
    assert (run.step, [event["step"] for event in pool.data(CHECKPOINT)]) == (steps, saved)
    assert not list(Path("out").glob("checkpoint-*"))  # what is ours does not stay in the user's folder


@pytest.mark.parametrize("limit", [None, 1])
def test_what_the_user_has_saved_stays(
    library: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int | None
) -> None:
    monkeypatch.setenv("PREFECT_GPU_CHECKPOINTS", str(tmp_path / "ours"))
    with training_run(checkpoint_every=1e-9) as run:
        options = {"save_strategy": "steps", "save_steps": 4, "save_total_limit": limit}
        library["trainer"](reporter(run), **options).train()
    there = {path.name for path in Path("out").iterdir()}
    assert there == ({"checkpoint-4", "checkpoint-8", "checkpoint-9"} if limit is None else {"checkpoint-9"})
    assert (tmp_path / "ours" / "current").read_text().strip() == "step-000009"


def test_the_best_checkpoint_stays_for_the_trainer_to_load_it(
    library: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_GPU_CHECKPOINTS", str(tmp_path / "ours"))
    options = {"save_strategy": "best", "metric_for_best_model": "eval_loss", "load_best_model_at_end": True}
    with training_run(checkpoint_every=1e-9) as run:
        trainer = library["trainer"](reporter(run), max_steps=2, eval_strategy="steps", eval_steps=2, **options)
        trainer.train()
    assert trainer.state.best_model_checkpoint and Path(trainer.state.best_model_checkpoint).is_dir()
    assert [path.name for path in Path("out").iterdir()] == ["checkpoint-2"]
    assert (tmp_path / "ours" / "current").read_text().strip() == "step-000002"


def test_a_checkpoint_without_the_optimizer_is_refused(library: dict[str, Any]) -> None:
    with training_run() as run, pytest.raises(ValueError, match=r"save_only_model=True.*checkpoints=False"):
        library["trainer"](reporter(run), save_only_model=True).train()


def test_outside_the_pool_the_result_is_the_same(library: dict[str, Any]) -> None:
    with training_run() as run:
        ours = library["trainer"](reporter(run))
        ours.train()
    plain = library["trainer"]()
    plain.train()
    weights = [trainer.model.transformer.wte.weight for trainer in (ours, plain)]
    assert library["torch"].equal(*weights) and run.step == 9
    assert not os.path.exists("out") or not os.listdir("out")


def test_a_stopped_training_ends_alike_in_another_process(
    library: dict[str, Any], controller: Any, tmp_path: Path
) -> None:
    checkpoints, said = ends_alike(
        controller,
        tmp_path,
        PROGRAM
        + """
import contextlib, io
from prefect_gpu.training.callbacks.transformers import TransformersReporter

class Hold(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 7:
            wait(run)

with training_run() as run, contextlib.redirect_stdout(io.StringIO()):
    checkpoint = run.restore(str)
    first = run.step
    run.ready()
    trained = trainer(Hold(), TransformersReporter(run), max_steps=16)
    trained.train(resume_from_checkpoint=checkpoint)
with run.saving():
    pass
print(first, run.step, digest(value.numpy() for value in trained.model.state_dict().values()))
""",
        held_at=7,
    )
    assert checkpoints == [8] and said == ["8", "16"]


def test_a_second_training_with_one_reporter_is_refused_unless_it_saves_nothing(library: dict[str, Any]) -> None:
    with training_run() as run:
        told = reporter(run)
        library["trainer"](told, max_steps=2).train()
        with pytest.raises(TrainingRunError, match=r"needs a training_run\(\) and a TransformersReporter"):
            library["trainer"](told, max_steps=2).train()
    with training_run() as run:
        told = reporter(run, checkpoints=False)
        library["trainer"](told, max_steps=2).train()
        library["trainer"](told, max_steps=2).train()
