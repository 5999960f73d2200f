"""The best model of a training, kept while it goes on: for those that end early, or end worse than they were."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf
from time import monotonic

from prefect_gpu.training.checkpoints import Checkpoint, CheckpointError, CheckpointStore, SaveCallback, Store
from prefect_gpu.training.scratch import Scratch

logger = logging.getLogger("prefect_gpu.training")

MOST_OF_TIME = 0.05  # of the training may go into saving the best


class BestKeeper:
    """Saves what a report offers when its loss is the smallest so far, in a store of its own.

    Saving takes a twentieth of the training's time at most, so an improvement may be passed over; the last step's never
    is. What is kept is the best of what could be saved: call it with the loss that counts, such as one of validation.

    Args:
        store: Where it is kept; None: in a temporary folder that goes with this object.
        clock: Seconds; tests may replace it.

    Attributes:
        loss: Of the checkpoint that is kept; infinite if there is none.
    """

    def __init__(self, store: Store | None, clock: Callable[[], float] = monotonic) -> None:
        if store is None:
            self._temporary = Scratch("prefect-gpu-best-")
            store = CheckpointStore(self._temporary.empty())
        self._store = store
        self._clock = clock
        self._began_at = clock()
        self._spent_s = 0.0
        self._last_s = 0.0  # what the last one took
        self.loss = inf
        found = self.restore()  # of a try before this one
        if found is not None and found.loss is not None:
            self.loss = found.loss

    def begin(self) -> None:
        """Training starts now."""
        self._began_at = self._clock()

    def offer(self, checkpoint: SaveCallback, loss: float, step: int, *, last: bool) -> bool:
        """Save a checkpoint if it is the best so far, and there is time for it.

        Args:
            loss: Smaller is better.
            last: Whether there may be no later chance: then there is time.

        Returns:
            Whether it was saved. If that fails, it is logged, and the one before is still kept.
        """
        if not loss < self.loss:
            return False
        now = self._clock()
        if not last and self._spent_s + self._last_s > MOST_OF_TIME * (now - self._began_at):
            return False
        try:
            self._store.save(checkpoint, step, loss)
            self.loss = loss
        except CheckpointError as error:
            logger.error(
                "The best checkpoint so far, of step %d, could not be saved; training goes on. %s", step, error
            )
            return False
        except Exception:
            logger.exception("The best checkpoint so far, of step %d, could not be saved; training goes on.", step)
            return False
        finally:
            self._last_s = self._clock() - now
            self._spent_s += self._last_s
        return True

    def restore(self) -> Checkpoint | None:
        """The best checkpoint, verified, or None."""
        return self._store.restore()
