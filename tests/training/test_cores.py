"""A run whose cores change while it trains: what it can read, what it is told, and what its libraries do."""

from __future__ import annotations

import os
from typing import Any

import pytest

from prefect_gpu.training import training_run
from prefect_gpu.training.protocol import USE_CPUS

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]


def test_outside_the_pool_a_run_has_the_cores_of_its_process() -> None:
    told: list[int] = []
    with training_run(steps=2) as run:
        run.on_cores(told.append)
        for _ in run.steps():
            run.report()
        assert run.cores == len(CORES)
    assert told == []


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_a_run_is_told_of_its_cores_in_a_report_and_can_read_them(controller: Any) -> None:
    process = controller.popen(
        """
        import threading
        from prefect_gpu.training import training_run

        told = []
        with training_run() as run:
            run.on_cores(lambda count: told.append((count, run.cores, threading.current_thread().name)))
            for _ in run.steps():
                run.report()
                if told:
                    break
        print(*told[0])
        """
    )
    controller.instruct(USE_CPUS, cpus=[CORES[0]])
    out, err = process.communicate(timeout=600)
    assert out.split() == ["1", "1", "MainThread"], err


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_xgboost_uses_as_many_threads_from_the_next_round_on(controller: Any, count: int) -> None:
    if len(CORES) < count:
        pytest.skip("needs two cores")
    process = controller.popen(
        """
        import json, numpy as np, xgboost
        from prefect_gpu.training import training_run
        from prefect_gpu.training.callbacks.xgboost import XGBoostReporter

        data = xgboost.DMatrix(np.eye(20), np.arange(20.0))
        told = []

        class Look(xgboost.callback.TrainingCallback):
            def after_iteration(self, model, epoch, evals_log):
                if told:
                    print(json.loads(model.save_config())["learner"]["generic_param"]["nthread"])
                return bool(told)

        with training_run() as run:
            reporter = XGBoostReporter(run)
            run.on_cores(told.append)
            xgboost.train({"nthread": 3, "max_depth": 1}, data, 100000, callbacks=[reporter, Look()])
        """
    )
    controller.instruct(USE_CPUS, cpus=CORES[:count])
    out, err = process.communicate(timeout=600)
    assert out.split() == [str(count)], err


@pytest.mark.needs("pytorch")
def test_torch_uses_as_many_threads_from_the_next_report_on(controller: Any) -> None:
    process = controller.popen(
        """
        import torch
        from prefect_gpu.training import training_run

        torch.set_num_threads(3)
        told = []
        with training_run() as run:
            run.on_cores(told.append)
            for _ in run.steps():
                run.report()
                if told:
                    break
        print(torch.get_num_threads())
        """
    )
    controller.instruct(USE_CPUS, cpus=[CORES[0]])
    out, err = process.communicate(timeout=600)
    assert out.split() == ["1"], err
