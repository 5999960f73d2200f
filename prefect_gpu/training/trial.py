"""A training that is a trial of a study: it tells the study how far it is, and ends when the study says so.

Nothing in the training function says so. Whoever started the run has set ``PREFECT_GPU_TRIAL``; :func:`.training_run`
finds it. Optuna and the study's storage are asked in a thread: a slow database does not slow down a training that a
pruner looks at, which may do some more steps until it is told that it ends. Only at a rung is the answer waited for.
"""

from __future__ import annotations

import json
import logging
import pickle
import queue
import threading
import warnings
from base64 import b64decode
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from math import inf, isfinite
from time import monotonic, time
from typing import Any, TypeVar

from prefect_gpu.training import checks
from prefect_gpu.training.rungs import Reached, Rungs

logger = logging.getLogger("prefect_gpu.training")
T = TypeVar("T")

PRUNED = "pruned: other trials were better at this step"
STOPPED = "stopped at a rung: other trials were better there"
COMPLETE = "complete: the last step of the search is done"
AT_A_RUNG = "It has stopped at a rung"
"""How the message of a state of Prefect begins that a trial has given to its own run."""
PRUNED_AT = "pruned_at"
"""User attribute of a trial: the step after which it was pruned."""
STEP_S = "step_s"
"""User attribute of a trial: seconds of training that a step took, on the whole."""
TRAINED = "trained"
"""User attribute of a trial: when each of its launches began to train and ended, as Unix seconds; None: not yet."""
STEPS = "steps"
"""User attribute of a trial: how many steps its whole training has, if it says so."""
NEEDED = "needed"
"""User attribute of a trial, which the sweep writes: by rung, as text, the worst value with which it goes on there."""

_LOOKS = 20  # at most so many times is a training of known length looked at
_EVERY = 10  # steps from one look to the next, where the length is not known
_PATIENCE_S = 30.0  # for the answer at a rung, and for the last looks, when the training is over
_AGAIN_S = 5.0  # after so long a database is asked again that was out of reach
_MOST_LOOKS = 1000  # are kept for when it is back


@dataclass(frozen=True)
class TrialOf:
    """Which trial of which study.

    Attributes:
        storage: Where the study is, as Optuna's URL.
        study: Its name.
        trial: Optuna's id of the trial in that storage.
        number: Its number in the study.
        value: What the study optimises: ``loss``, or a metric that the training reports.
        pruner: Optuna's pruner, pickled, in base64: a storage does not keep it. It is trusted as the flow is, which
            comes from the same hands, and is pickled, too.
        rungs: Where trials stop, and may be promoted; None: the pruner decides, and whoever ends has ended.
    """

    storage: str
    study: str
    trial: int
    number: int
    value: str
    pruner: str
    rungs: Rungs | None = None

    def as_text(self) -> str:
        """For an environment variable."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> TrialOf:
        """What :meth:`as_text` wrote.

        Raises:
            ValueError: It is something else.
            TypeError: It is, too.
        """
        told = json.loads(text)
        rungs = told.pop("rungs", None)
        return cls(**told, rungs=Rungs(**rungs) if rungs else None)


def without_warnings_of_choices() -> None:
    """Let Optuna not warn of lists and tuples among choices, as it does wherever it reads them.

    They come back as they were, and what a database cannot keep is refused (:mod:`prefect_gpu.sweeps.space`).
    """
    warnings.filterwarnings("ignore", "Choices for a categorical distribution should be a tuple", UserWarning)


class TrialLink:
    """Follows one training for its study.

    Args:
        about: Which trial it is.
        steps: How many steps the training has; None: nobody knows.

    Attributes:
        ends: Why the training is to end; None as long as it need not.
    """

    def __init__(self, about: TrialOf, steps: int | None) -> None:
        self.ends: str | None = None
        self._about = about
        self._rungs = about.rungs and about.rungs.judging(steps)
        self._steps = steps
        self._first = self._last = 0  # the steps that were done when it began, and at its last report
        self._seen = 0  # the step that was last told with a value; at first, as many as were done when it began
        self._carries_on = False  # whether the training offers checkpoints, so that it can be promoted
        self._began = monotonic()
        self._gone = False  # whether the study cannot be told of this trial at all
        self._away = False  # whether its database is out of reach
        self._over = threading.Event()  # the training is
        self._answered = threading.Event()  # all judgements so far
        # Steps with a value, and whether it is judged; when the training began; None: it is over.
        self._looks: queue.SimpleQueue[tuple[list[int], float, bool] | float | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._follow, name="prefect-gpu-trial", daemon=True)
        self._thread.start()

    def expect(self, steps: int) -> None:
        """The training has so many steps, which only its framework knew. It has not begun yet."""
        self._steps, self._rungs = steps, self._about.rungs and self._about.rungs.judging(steps)

    def began(self, done: int) -> None:
        """The training's first step begins now.

        Args:
            done: Steps that it had done before, if it was restored.
        """
        self._began, self._first, self._last, self._seen = monotonic(), done, done, done
        self._looks.put(time())

    def reported(
        self, step: int, loss: float | None, metrics: dict[str, Any], *, carries_on: bool = False
    ) -> str | None:
        """The training has done a step. Costs next to nothing, but at a rung, where the study is asked.

        Args:
            carries_on: Whether it offers checkpoints, now and then at least, and there is a place for them.

        Returns:
            Why it is to end; None if it is not.
        """
        if self.ends is not None:
            return self.ends
        self._carries_on, self._last = carries_on, step
        value = loss if self._about.value == "loss" else metrics.get(self._about.value)
        if value is not None:  # frameworks tell it after the step, or now and then: it counts for all steps until then
            looks, judged = self._looks_between(self._seen, step)
            self._seen = step
            if looks:
                self._look(looks, checks.number(value, self._about.value), judged)
        rungs = self._rungs
        if rungs is not None and rungs.max_steps is not None and step >= rungs.max_steps:
            self.ends = COMPLETE
        return self.ends

    def ended(self) -> None:
        """The training is over: what was not told yet is told."""
        self._looks.put(None)
        self._over.set()
        self._thread.join(_PATIENCE_S)

    def suspend(self, run_id: str, step: int) -> None:
        """It has ended at a rung, and its checkpoint is saved: its flow run waits for its promotion.

        Raises:
            prefect.exceptions.Pause: The run is suspended, and its process is to end.
        """
        words = f"{AT_A_RUNG} after step {step}, where other trials were better. It may be promoted."
        # By its name: what talks to the pool does without Prefect, and here Prefect is asked.
        import_module("prefect_gpu.stopped_trial").suspend(run_id, words)

    def _look(self, looks: list[int], value: float, judged: bool) -> None:
        """Tell the study of these steps. At a rung, wait for its answer."""
        if judged:
            self._answered.clear()
        if self._gone or (self._away and self._looks.qsize() >= _MOST_LOOKS):
            return
        self._looks.put((looks, value, judged))
        if judged and self._rungs is not None and not self._away and not self._answered.wait(_PATIENCE_S):
            logger.warning("The study %s does not answer: this trial trains on.", self._about.study)

    def _looks_between(self, before: int, now: int) -> tuple[list[int], bool]:
        """The steps after which all trials are looked at, so that they can be compared: those just passed.

        And whether it is judged there whether the training goes on.
        """
        if self._rungs is not None:
            passed = self._rungs.between(self._about.number, before, now)
            return [*self._rungs.below(self._about.number, before, now), *passed], bool(passed)
        every = max(1, -(-self._steps // _LOOKS)) if self._steps else _EVERY
        return ([now] if now // every > before // every or now == self._steps else []), True

    def _follow(self) -> None:
        try:
            trial = self._insist(self._open)
            trained = list(trial.user_attrs.get(TRAINED, ()))
            while (look := self._looks.get()) is not None:
                if isinstance(look, float):
                    trained.append([look, None])
                    self._insist(partial(trial.set_user_attr, TRAINED, trained))
                elif self.ends != PRUNED:
                    self._insist(partial(self._tell, trial, *look))
            if trained and trained[-1][1] is None:
                trial.set_user_attr(TRAINED, [*trained[:-1], [trained[-1][0], time()]])
            if self._last > self._first:
                trial.set_user_attr(STEP_S, (monotonic() - self._began) / (self._last - self._first))
                if self._steps and STEPS not in trial.user_attrs:
                    trial.set_user_attr(STEPS, self._steps)
        except Exception as error:  # whatever is wrong with the study, the training goes on
            logger.warning("The study %s cannot be told of this trial: %s", self._about.study, said_by(error))
            self._gone = True
            self._answered.set()

    def _insist(self, work: Callable[[], T]) -> T:
        """Do what takes the study's database, again and again while that is out of reach: the training goes on."""
        while True:
            try:
                done = work()
            except Exception as error:
                if not _of_a_database(error) or self._over.is_set():
                    raise
                if not self._away:
                    self._away = True
                    logger.warning(
                        "The study %s cannot be told of this trial, which trains on, until its database is back: %s",
                        self._about.study, said_by(error),
                    )  # fmt: skip
                self._answered.set()
                self._over.wait(_AGAIN_S)
            else:
                self._away = False
                return done

    def _tell(self, trial: Any, steps: list[int], value: float, judged: bool) -> None:
        for step in steps:
            trial.report(value, step)
        if judged:
            if steps[-1] != self._steps:  # a training that has come to its end is a result
                self.ends = self.ends or self._verdict(trial, steps[-1])
            self._answered.set()

    def _verdict(self, trial: Any, step: int) -> str | None:
        """Why the training is to end after this step; None if it goes on."""
        rungs = self._rungs
        if rungs is None:
            if not trial.should_prune():
                return None
        else:
            if self._goes_on(rungs, trial.study, step):
                return None
            if self._carries_on:
                return STOPPED
            logger.warning(
                "This trial is pruned at step %d, and cannot be promoted later: the training offers no checkpoints. "
                "Give run.report(checkpoint=...), and begin with run.restore().",
                step,
            )
        trial.set_user_attr(PRUNED_AT, step)
        return PRUNED

    def _goes_on(self, rungs: Rungs, study: Any, step: int) -> bool:
        """What the sweep has said of this trial at this rung, else what the rungs say."""
        trials, maximize = study.get_trials(deepcopy=False), study.direction.name == "MAXIMIZE"
        own = next(one for one in trials if one.number == self._about.number)
        needed = own.user_attrs.get(NEEDED, {}).get(str(step))
        if needed is not None and self._carries_on:  # whoever has no second chance is not given up on a forecast
            value = own.intermediate_values[step]
            return isfinite(value) and bool(value >= needed if maximize else value <= needed)
        reached = reached_by(trials, maximize=maximize)
        return rungs.goes_on(self._about.number, reached, at_least=0 if self._carries_on else 1)

    def _open(self) -> Any:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        without_warnings_of_choices()
        pruner = pickle.loads(b64decode(self._about.pruner))
        study = optuna.load_study(study_name=self._about.study, storage=self._about.storage, pruner=pruner)
        return optuna.trial.Trial(study, self._about.trial)


def reached_by(trials: Iterable[Any], *, maximize: bool) -> Reached:
    """What the rungs look at, of Optuna's trials."""
    sign = -1.0 if maximize else 1.0
    return {
        trial.number: {
            step: sign * value if isfinite(value) else inf for step, value in trial.intermediate_values.items()
        }
        for trial in trials
    }


def _of_a_database(error: Exception) -> bool:
    """Whether a study's database has failed, rather than what it was asked for."""
    return type(error).__name__ == "StorageInternalError" or type(error).__module__.startswith("sqlalchemy.")


def said_by(error: Exception) -> str:
    """What a study's database or Prefect has said. Optuna speaks of values that are too long, whatever it was."""
    cause = error.__cause__ if type(error).__name__ == "StorageInternalError" else None
    if cause is None:
        return repr(error)
    return " ".join(str(getattr(cause, "orig", None) or cause).split())


def link_from(text: str | None, steps: int | None) -> TrialLink | None:
    """The link that an environment variable describes; None if this training is no trial."""
    if not text:
        return None
    try:
        about = TrialOf.from_text(text)
    except (AttributeError, TypeError, ValueError):
        logger.warning("PREFECT_GPU_TRIAL is not understood: this training is no trial of a study.")
        return None
    return TrialLink(about, steps)
