"""What a training tells the controller of its phases, its progress and its checkpoints; outside the pool, nothing."""

from __future__ import annotations

import logging
from typing import Any

from prefect_gpu.training.channel.link import EXIT_FLUSH_SECONDS, HEARD_OF_SECONDS, Link
from prefect_gpu.training.limits.caps import ran_out
from prefect_gpu.training.progress import Progress
from prefect_gpu.training.protocol import CHECKPOINT, OUT_OF_MEMORY, PHASE, PROGRESS

logger = logging.getLogger("prefect_gpu.training")


class Attachment:
    """A training's use of its process's link.

    Args:
        link: None: nothing is told.
        progress: What the loop has reported.
        about: Steps, batch size and features; told with each phase, as far as they are known then.
    """

    def __init__(self, link: Link | None, progress: Progress, about: dict[str, Any]) -> None:
        self.link = link
        self._client: Any = None if link is None else link.client
        self._progress = progress
        self._about = about
        if link is not None:
            link.client.source = progress

    def phase(self, phase: str, step: int, **more: Any) -> None:
        """A phase begins."""
        if self._client is not None:
            self._client.post(PHASE, {"phase": phase, "step": step, **self._about, **more})

    def is_second(self) -> bool:
        """Whether another process of the run reports, and saves: two must not save in one place."""
        return self._client is not None and self._client.second

    def progress(self) -> None:
        """Before a change of phase: what was reported in the old phase must arrive before the new one."""
        data = self._progress.take() if self._client is not None else None
        if data is not None:
            self._client.post(PROGRESS, data)

    def saved(self, data: dict[str, Any]) -> None:
        """A checkpoint was saved, or could not be."""
        self.progress()
        if self._client is not None:
            self._client.post(CHECKPOINT, data)

    def ended(self, error: BaseException | None) -> None:
        """The training ends by an error, or by none.

        If the limit of its memory was too small, this process waits for its devices to be alone on them should it try
        again. A failure of a process that was given up is not the run's: so the controller is heard first.
        """
        link = self.link
        if link is not None and link.caps.limit_bytes is not None and ran_out(error):
            granted = link.caps.limit_bytes
            link.exhausted = True
            link.caps.relax()
            link.client.post(OUT_OF_MEMORY, {"error": f"{type(error).__name__}: {error}"[:500]})
            logger.warning(
                "Memory ran out: this run was granted %s bytes of a device that it shares. If it is tried again, it "
                "waits until it has the device alone.",
                granted,
            )
        if self._client is not None and isinstance(error, Exception):
            self._client.heard_of(HEARD_OF_SECONDS)

    def finished(self) -> None:
        """All is saved. The end of the process tries once more where the controller has been out of reach for long."""
        if self._client is not None and self._client.broken_seconds() < EXIT_FLUSH_SECONDS:
            self._client.flush(EXIT_FLUSH_SECONDS)


def free(link: Link | None) -> tuple[Link | None, bool]:
    """(This process's link, if a training may have it now; whether another training of this process has it)."""
    if link is None:
        return None, False
    if link.owner is not None and not link.owner._ended:
        logger.warning(
            "Another training_run() is active in another thread of this process: this one is not reported, and "
            "saves no checkpoints."
        )
        return None, True
    return link, False
