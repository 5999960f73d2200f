"""When a training run saves a checkpoint: when the controller asks, at a stop, and every so many seconds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import Any

from prefect_gpu.training.channel.mailbox import Mailbox
from prefect_gpu.training.checkpoints import CheckpointError, SaveCallback, Store
from prefect_gpu.training.limits import cpus

logger = logging.getLogger("prefect_gpu.training")

ENDS_WITHIN_S = 10.0
"""For so long does a training wait to be stopped, once it has saved the checkpoint that was asked for."""


class Saver:
    """Obeys the controller's instructions inside ``report()``, in the training's thread.

    Args:
        store: Where checkpoints are kept; None saves none.
        every: Seconds between two checkpoints, or None.
        on_saved: Called with the data of a CHECKPOINT event after each attempt.
        saves: Whether it is for this process to save: of a gang, one does.
        is_second: Says whether another process has turned out to save for the run.

    Attributes:
        due_at: The monotonic time at which the next checkpoint is due without being asked for.
        on_cores: Called with the number of cores when the run has got more or fewer.
        stopped: Why the loop is to end now: everything that can be saved has been saved. None otherwise.
    """

    def __init__(
        self,
        store: Store | None,
        every: float | None,
        on_saved: Callable[[dict[str, Any]], None],
        *,
        saves: bool = True,
        is_second: Callable[[], bool] = lambda: False,
    ) -> None:
        self.store = store
        self._is_second = is_second
        self._saves_to = store if saves else None
        self.due_at = float("inf")
        self.stopped: str | None = None
        self.on_cores: list[Callable[[int], object]] = []
        self.wish: str | None = None  # why the training itself wants to stop
        self._every = every
        self._on_saved = on_saved
        self._offered = False  # whether this loop ever offers checkpoints

    def begin(self) -> None:
        """Training starts now."""
        if self._every is not None and self._saves_to is not None:
            self.due_at = monotonic() + self._every

    @property
    def offers(self) -> bool:
        """Whether the loop offers checkpoints, now and then at least, and there is a place for them."""
        return self._offered and self.store is not None

    def offer(self) -> None:
        """Note that the loop offers checkpoints: from now on, a stop waits for one."""
        self._offered = True

    def due(self, mailbox: Mailbox) -> bool:
        """Whether a checkpoint that were offered now would be saved. Whoever asks will offer one."""
        if self._saves_to is None:
            return False
        self._offered = True
        asked = mailbox.save is not None or (self.asked_to_stop(mailbox) is not None and self.stopped is None)
        return asked or monotonic() >= self.due_at

    def stop(self, reason: str) -> None:
        """The training itself wants to stop: at the next report that can save, as if the controller had asked."""
        self.wish = self.wish or reason

    def asked_to_stop(self, mailbox: Mailbox) -> str | None:
        """Why the run is to stop, whoever wants it; None if nobody does."""
        return mailbox.stop or self.wish

    def stop_unsaved(self, mailbox: Mailbox) -> None:
        """Stop between two steps if somebody wants that, unless a later report can save first."""
        if not self._offered:
            self.stopped = self.asked_to_stop(mailbox)

    def obey(self, mailbox: Mailbox, checkpoint: SaveCallback | None, step: int, *, last: bool = False) -> None:
        """Do what was asked, as far as this report allows it.

        Args:
            last: Whether this was the last step: whoever asked for a checkpoint is told that it need stop nobody.
        """
        mailbox.pending = False  # before looking, so that what comes in meanwhile is looked at next time
        if mailbox.threads is not None:
            count, mailbox.threads = mailbox.threads, None
            cpus.use_threads(count)
            for call in self.on_cores:
                call(count)
        stop = self.asked_to_stop(mailbox)
        if checkpoint is not None:
            asked = mailbox.save
            if asked is not None:
                mailbox.save = None
            if self._is_second():
                self._saves_to, self.due_at = None, float("inf")
            if self._saves_to is not None and (asked is not None or stop is not None or monotonic() >= self.due_at):
                data = self._save(self._saves_to, checkpoint, step)
                if asked is None and mailbox.save is not None:  # it was asked for while it was written
                    asked, mailbox.save = mailbox.save, None
                if last:
                    data["last"] = True
                if asked is None and stop is None:
                    data["unasked"] = True
                self._on_saved(data)
                if asked is not None and not last:
                    _wait_to_be_stopped(mailbox)
        if stop is not None and (checkpoint is not None or not self._offered):
            self.stopped = stop
        # A wish for a checkpoint, or to stop with one, stays until a report offers one.
        if mailbox.save is not None or (mailbox.stop is not None and self.stopped is None):
            mailbox.pending = True

    def _save(self, store: Store, checkpoint: SaveCallback, step: int) -> dict[str, Any]:
        """Save one. Returns what is told of it."""
        begin = monotonic()
        data: dict[str, Any] = {"step": step}
        try:
            saved = store.save(checkpoint, step)
            data |= {
                "path": saved.kept_at or str(saved.path),
                "bytes": saved.size_bytes,
                "seconds": monotonic() - begin,
            }
        except CheckpointError as error:  # its words say what to do, and a traceback says no more
            logger.error("The checkpoint of step %d could not be saved; training goes on. %s", step, error)
            data["error"] = f"{type(error).__name__}: {error}"[:1000]
        except Exception as error:
            # A full disk at night is no reason to lose the training as well; the previous checkpoint is still good.
            logger.exception("The checkpoint of step %d could not be saved; training goes on.", step)
            data["error"] = f"{type(error).__name__}: {error}"[:1000]
        if self._every is not None:
            self.due_at = monotonic() + self._every
        return data


def _wait_to_be_stopped(mailbox: Mailbox) -> None:
    """Do nothing until this process is ended, as whoever asks for a checkpoint does next.

    The next steps would be done again later, and whatever they tell others, too. If nobody comes, training goes on.
    """
    end = monotonic() + ENDS_WITHIN_S
    while mailbox.stop is None and (left_s := end - monotonic()) > 0.0:
        mailbox.news.clear()
        mailbox.news.wait(left_s)
