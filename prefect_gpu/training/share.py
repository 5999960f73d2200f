"""Training for a part of the time: a run that shares its device gives way between two steps (after SpeCon's demotion).

Where the worker can lower a run's priority it does that instead, since a run that merely waits leaves a device idle
when nobody else uses it. A weight of 0, to pause, always ends here.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from prefect_gpu.training.channel.mailbox import Mailbox

PATIENCE_SECONDS = 60.0  # without a word from the worker, nobody is held back for longer than this
_LOOK_SECONDS = 1.0
_SHORTEST = 1.0 / 64


class Pacer:
    """Makes the pauses. One for each training run, used in the training's thread.

    Args:
        mailbox: Where the weight comes in.
        broken_seconds: For how long the worker has been out of reach.
    """

    def __init__(self, mailbox: Mailbox, broken_seconds: Callable[[], float]) -> None:
        self._mailbox = mailbox
        self._broken_seconds = broken_seconds
        self._resumed_at = monotonic()

    def begin(self) -> None:
        """Training starts now."""
        self._resumed_at = monotonic()

    def pause(self) -> float:
        """A step is done: wait as long as the weight asks for.

        A new weight ends the wait at once. So does a wish to stop, or for a checkpoint, which takes another step.

        Returns:
            Seconds waited.
        """
        mailbox, now = self._mailbox, monotonic()
        busy_s = now - self._resumed_at
        while mailbox.weight < 1.0 and not mailbox.urgent:
            mailbox.news.clear()
            weight = mailbox.weight
            left_s = PATIENCE_SECONDS
            if weight > 0.0:
                left_s = busy_s * (1.0 / max(weight, _SHORTEST) - 1.0) - (monotonic() - now)
            if left_s <= 0.0 or self._broken_seconds() > PATIENCE_SECONDS:
                break
            if mailbox.weight == weight and not mailbox.urgent:
                mailbox.news.wait(min(left_s, _LOOK_SECONDS))
        self._resumed_at = monotonic()
        return self._resumed_at - now
