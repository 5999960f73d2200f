"""What a search says of its trials while it runs: lines that are readable aloud."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import optuna
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState
from prefect.logging import get_logger

from prefect_gpu.sweeps.spoken import Spoken


@contextmanager
def lines_of(logger: logging.Logger) -> Iterator[list[str]]:
    """What is said meanwhile, outside of a flow."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def study_of(direction: str = "minimize") -> optuna.Study:
    """Trial 0 is complete, 1 is pruned, 2 has stopped at step 3, 3 has failed, 4 trains and has said nothing yet."""
    study = optuna.create_study(direction=direction)
    trials = [study.ask({"x": FloatDistribution(0.0, 1.0)}) for _ in range(5)]
    trials[0].report(0.1875, 9)
    trials[0].report(0.25, 27)
    study.tell(trials[0], 0.25)
    trials[1].report(2.0, 1)
    study.tell(trials[1], state=TrialState.PRUNED)
    trials[2].report(0.75, 1)
    trials[2].report(0.125, 3)
    study.tell(trials[3], state=TrialState.FAIL)
    return study


def test_each_trial_that_ends_or_stops_is_a_line_and_so_is_a_promotion() -> None:
    spoken = Spoken(study_of(), "loss")
    with lines_of(get_logger("gpu.sweeps")) as lines:
        for number in range(4):
            spoken.at_rest(number)
        spoken.promoted(2, "it promises most for its time")
    best = "The best so far is trial 2, with loss 0.125."
    assert lines == [
        f"Trial 0 is complete, loss 0.25. {best}",
        f"Trial 1 is pruned after step 1, loss 2. {best}",
        f"Trial 2 has stopped after step 3, loss 0.125. {best}",
        f"Trial 2 is promoted from step 3: it promises most for its time. {best}",
    ], "of one that failed, the warning has spoken"


def test_the_best_is_the_largest_where_that_is_wanted_and_nobody_where_nothing_is_known() -> None:
    with lines_of(get_logger("gpu.sweeps")) as lines:
        Spoken(study_of("maximize"), "accuracy").at_rest(0)
        study = optuna.create_study()
        study.ask()
        Spoken(study, "loss").promoted(0, "why not")
    assert lines[0].endswith("The best so far is trial 1, with accuracy 2.")
    assert lines[1] == "Trial 0 is promoted: why not."
