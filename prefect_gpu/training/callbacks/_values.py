"""Losses and metrics as frameworks hand them out."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import Any

from prefect_gpu.training.channel.client import PROGRESS_SECONDS

_TAKEN = {"loss", "step", "checkpoint"}  # arguments of report()


class LossReader:
    """Reads losses without slowing a GPU down.

    To fetch a number from a GPU is to wait for it. So a loss that lies there is fetched as often as one is sent to the
    controller, a few times a second, and left alone otherwise; one on the CPU is always read.
    """

    def __init__(self) -> None:
        self._due_at = 0.0

    def read(self, loss: Any, *, last: bool = False) -> Any:
        """The loss as ``report()`` takes it, or None if it is not to be fetched now; ``last`` fetches it anyway."""
        device = getattr(loss, "device", None)
        if hasattr(loss, "detach"):
            loss = loss.detach()
        if getattr(device, "type", "cpu") == "cpu":
            return loss
        if not last and monotonic() < self._due_at:
            return None
        loss = float(loss)
        self._due_at = monotonic() + PROGRESS_SECONDS
        return loss


def metrics(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those values that are single numbers, under names that ``report()`` does not use itself (``loss_`` for ``loss``).

    What frameworks log are also texts and tensors of several numbers; those are for others.
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, (str, bytes)):
            continue
        try:
            number = float(value.detach() if hasattr(value, "detach") else value)
        except (TypeError, ValueError, RuntimeError):
            continue
        found[f"{name}_" if name in _TAKEN else str(name)] = number
    return found
