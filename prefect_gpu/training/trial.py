"""A training that is a trial of a study: it tells the study how far it is, and ends when the study's pruner says so.

Nothing in the training function says so. Whoever started the run has set ``PREFECT_GPU_TRIAL``; :func:`.training_run`
finds it. Optuna and the study's storage are asked in a thread: a slow database does not slow down the training.
"""

from __future__ import annotations

import json
import logging
import pickle
import queue
import threading
from base64 import b64decode
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger("prefect_gpu.training")

PRUNED = "pruned: other trials were better at this step"
PRUNED_AT = "pruned_at"
"""User attribute of a trial: the step after which it was pruned."""

_LOOKS = 20  # at most so many times is a training of known length looked at
_EVERY = 10  # steps from one look to the next, where the length is not known
_PATIENCE_S = 30.0  # for the last looks, when the training is over


@dataclass(frozen=True)
class TrialOf:
    """Which trial of which study.

    Attributes:
        storage: Where the study is, as Optuna's URL.
        study: Its name.
        trial: Optuna's id of the trial in that storage.
        value: What the study optimises: ``loss``, or a metric that the training reports.
        pruner: Optuna's pruner, pickled, in base64: a storage does not keep it. It is trusted as the flow is, which
            comes from the same hands, and is pickled, too.
    """

    storage: str
    study: str
    trial: int
    value: str
    pruner: str

    def as_text(self) -> str:
        """For an environment variable."""
        return json.dumps(vars(self))


class TrialLink:
    """Follows one training for its study.

    Args:
        about: Which trial it is.
        steps: How many steps the training has; None: nobody knows.

    Attributes:
        pruned: Whether the pruner has said that it is to end.
    """

    def __init__(self, about: TrialOf, steps: int | None) -> None:
        self.pruned = False
        self._about = about
        self._steps = steps
        self._seen = 0
        self._looks: queue.SimpleQueue[tuple[int, float] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._follow, name="prefect-gpu-trial", daemon=True)
        self._thread.start()

    def reported(self, step: int, loss: float | None, metrics: dict[str, Any]) -> bool:
        """The training has done a step. Costs next to nothing.

        Returns:
            Whether it is to end.
        """
        if self.pruned:
            return True
        every = max(1, -(-self._steps // _LOOKS)) if self._steps else _EVERY
        # All trials of a length are looked at after the same steps, so that they can be compared.
        if step // every > self._seen // every or step == self._steps:
            value = loss if self._about.value == "loss" else metrics.get(self._about.value)
            if value is not None:
                self._looks.put((step, float(value)))
        self._seen = step
        return False

    def ended(self) -> None:
        """The training is over: what was not told yet is told."""
        self._looks.put(None)
        self._thread.join(_PATIENCE_S)

    def _follow(self) -> None:
        trial = None
        while (look := self._looks.get()) is not None:
            if self.pruned:
                continue
            try:
                trial = trial or self._open()
                trial.report(look[1], look[0])
                if look[0] != self._steps and trial.should_prune():  # whoever has trained to the end is a result
                    trial.set_user_attr(PRUNED_AT, look[0])
                    self.pruned = True
            except Exception as error:  # whatever is wrong with the study, the training goes on
                logger.warning("The study %s cannot be told of this trial: %s", self._about.study, error)
                return

    def _open(self) -> Any:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        pruner = pickle.loads(b64decode(self._about.pruner))
        study = optuna.load_study(study_name=self._about.study, storage=self._about.storage, pruner=pruner)
        return optuna.trial.Trial(study, self._about.trial)


def link_from(text: str | None, steps: int | None) -> TrialLink | None:
    """The link that an environment variable describes; None if this training is no trial."""
    if not text:
        return None
    try:
        about = TrialOf(**json.loads(text))
    except (TypeError, ValueError):
        logger.warning("PREFECT_GPU_TRIAL is not understood: this training is no trial of a study.")
        return None
    return TrialLink(about, steps)
