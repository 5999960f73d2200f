"""``sweep``: trials in a real pool are pruned while they train, and a sweep that was interrupted goes on."""

from __future__ import annotations

import asyncio
import functools
import time
from pathlib import Path
from uuid import UUID

import optuna
import pytest
from optuna.trial import TrialState
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.client.schemas.sorting import LogSort
from prefect.runtime import flow_run

from benchmarks._host.served import using
from prefect_gpu import asha, gpu, sweep, training_run
from prefect_gpu.sweeps import SweepError
from prefect_gpu.training.trial import PRUNED_AT
from tests.live.pool import LivePool, eventually

optuna.logging.set_verbosity(optuna.logging.WARNING)
STEPS = 40


@flow(name="parabola")
def parabola(x: float, step_s: float = 0.0, fail_above: float = 9.0) -> dict[str, float]:
    """Its loss comes down to the square of x. It knows nothing of a study."""
    if x > fail_above:
        raise ValueError("too large")
    with training_run(steps=STEPS) as run:
        for step in run.steps():
            time.sleep(step_s * max(1.0, x))  # where much is to be pruned, there is time for it
            run.report(loss=x * x + 1.0 / (step + 1))
    return {"loss": x * x, "steps": float(run.step)}


def in_pool(pool: LivePool) -> object:
    return gpu(work_pool=pool.name)(parabola)


async def test_bad_trials_are_pruned_while_they_train_and_the_study_goes_on_later(
    serving: LivePool, tmp_path: Path
) -> None:
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    order = (0.1, 0.2, 5.0, 6.0, 7.0)
    search = functools.partial(
        sweep,
        in_pool(serving),
        {"x": (0.0, 8.0)},
        parallel=2,
        fixed={"step_s": 0.1},
        storage=storage,
        name="search",
        sampler=optuna.samplers.RandomSampler(seed=0),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=4),
    )
    study = optuna.create_study(storage=storage, study_name="search")
    for x in order:
        study.enqueue_trial({"x": x})
    with using(serving.sandbox):
        study = await asyncio.to_thread(search, trials=len(order))
    by_x = {trial.params["x"]: trial for trial in study.trials}
    assert by_x[0.1].value == pytest.approx(0.01) and by_x[0.1].last_step == STEPS
    pruned = [x for x in order if by_x[x].state is TrialState.PRUNED]
    assert set(pruned) <= {5.0, 6.0, 7.0} and pruned, {x: (trial.state, trial.value) for x, trial in by_x.items()}
    for x in pruned:
        assert by_x[x].user_attrs[PRUNED_AT] < STEPS
    assert study.best_params == {"x": 0.1}
    # Called again, it counts what is over, and does the rest.
    with using(serving.sandbox):
        study = await asyncio.to_thread(search, trials=len(order) + 1)
        assert len(study.trials) == len(order) + 1
        study = await asyncio.to_thread(search, trials=len(order) + 1)
    assert len(study.trials) == len(order) + 1


@flow(name="slope", persist_result=True)
def slope(x: float, trace: str) -> float:
    """Its loss is x. It carries on from its checkpoint, and notes each step."""
    with training_run(steps=2) as run:
        run.restore()
        for step in run.steps():
            with open(trace, "a") as notes:
                notes.write(f"{x} {step}\n")
            run.report(loss=x, checkpoint=functools.partial(Path.write_text, data=str(step)))
    return x


@flow(name="a-search")
def a_search(pool: str, trace: str, storage: str) -> UUID:
    """Two trials, one at a time. Returns its own run."""
    sweep(
        gpu(work_pool=pool)(slope),
        {"x": (0.0, 8.0)},
        trials=2,
        parallel=1,
        rungs=asha(min_steps=1, reduction=2),
        fixed={"trace": trace},
        storage=storage,
    )
    return UUID(flow_run.id)


async def test_who_is_among_the_best_of_its_rung_is_promoted_and_carries_on_from_its_checkpoint(
    serving: LivePool, tmp_path: Path
) -> None:
    storage, trace = f"sqlite:///{tmp_path / 'study.db'}", tmp_path / "trace"
    study = optuna.create_study(storage=storage, study_name="slope")
    for x in (1.0, 2.0):
        study.enqueue_trial({"x": x})
    with using(serving.sandbox):
        search = await asyncio.to_thread(a_search, serving.name, str(trace), storage)
        study = optuna.load_study(study_name="slope", storage=storage)
        async with get_client() as client:
            of_search = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[search]))

            async def said() -> list[str]:
                logs = await client.read_logs(of_search, sort=LogSort.TIMESTAMP_ASC)
                found = [log.message for log in logs if log.message.startswith("Trial ")]
                return found if len(found) >= 4 else []

            lines = await eventually(said, "the search's lines in the log of its flow run")
            ids = [UUID(trial.user_attrs["flow_run"]) for trial in study.trials]
            names = [[state.name for state in await client.read_flow_run_states(id_)] for id_ in ids]
    best = "The best so far is trial 0, with loss 1."
    assert lines == [
        f"Trial 0 has stopped after step 1, loss 1. {best}",
        f"Trial 1 has stopped after step 1, loss 2. {best}",
        f"Trial 0 is promoted from step 1: it is among the best of its rung. {best}",
        f"Trial 0 is complete, loss 1. {best}",
    ]
    # The first stops, as one of one. The second is worse, so that the first is the better one of two.
    assert trace.read_text().splitlines() == ["1.0 0", "2.0 0", "1.0 1"], "no step is lost, and none is done twice"
    assert names[0].count("Suspended") == 1 and names[0][-1] == "Completed", names
    assert names[1].count("Suspended") == 1 and names[1][-1] == "Cancelled", names
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE, TrialState.PRUNED]
    assert study.best_value == 1.0 and study.trials[0].user_attrs["step_s"] > 0.0


async def test_a_trial_that_was_left_training_is_waited_for_and_failed_ones_do_not_stop_a_sweep(
    serving: LivePool, tmp_path: Path
) -> None:
    storage, train = f"sqlite:///{tmp_path / 'study.db'}", in_pool(serving)
    study = optuna.create_study(storage=storage, study_name="parabola")
    with using(serving.sandbox):
        left = study.ask({"x": optuna.distributions.FloatDistribution(0.0, 1.0)})
        future = await asyncio.to_thread(train.submit, x=0.5)  # type: ignore[attr-defined]
        left.set_user_attr("flow_run", str(future.flow_run_id))
        unborn = study.ask({"x": optuna.distributions.FloatDistribution(0.0, 1.0)})
        study.enqueue_trial({"x": 3.0})
        study = await asyncio.to_thread(
            sweep, train, {"x": (0.0, 4.0)}, trials=3, fixed={"fail_above": 2.0}, storage=storage
        )
    assert study.trials[left.number].value == pytest.approx(0.25)
    assert study.trials[unborn.number].state is TrialState.FAIL
    assert study.trials[2].state is TrialState.FAIL and "too large" in study.trials[2].user_attrs["error"]
    assert len(study.trials) == 4, "the one that had no run has given its place to another one"


async def test_a_sweep_of_which_all_trials_fail_says_why(serving: LivePool) -> None:
    with using(serving.sandbox), pytest.raises(SweepError, match=r"The only trial failed.*too large"):
        await asyncio.to_thread(sweep, in_pool(serving), {"x": (1.0, 2.0)}, trials=1, fixed={"fail_above": 0.0})
