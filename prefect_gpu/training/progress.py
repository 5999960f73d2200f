"""The newest progress of a training, and the loss curve since it was last sent. Memory is bounded."""

from __future__ import annotations

import threading
from typing import Any

MAX_POINTS = 256  # between two sends; a loop faster than that is thinned out evenly
MAX_METRICS = 100  # names; further ones are left out


class Progress:
    """Filled by the training's thread, emptied by the channel's. Both hold the lock for a microsecond.

    Example:
        >>> progress = Progress(steps=10)
        >>> progress.begin(0, at=0.0)
        >>> progress.put(1, 0.5, None, at=2.0)
        >>> progress.take()
        {'step': 1, 'steps': 10, 'loss': 0.5, 'losses': [[1, 0.5]], 'steps_per_s': 0.5}
        >>> progress.take() is None
        True
    """

    def __init__(self, steps: int | None) -> None:
        self.steps = steps
        self.dirty = False
        self._step, self._at = 0, 0.0
        self._sent_step, self._sent_at = 0, 0.0
        self._loss: float | None = None
        self._metrics: dict[str, float | None] = {}
        self._nonfinite_step: int | None = None
        self.noise_scale: float | None = None
        self._batches: int | None = None
        self._points: list[tuple[int, float]] = []
        self._newest_point: tuple[int, float] | None = None
        self._stride, self._skipped = 1, 0
        self.unlock()

    def unlock(self) -> None:
        """Start with a fresh lock: in a forked child, the parent's channel thread may have held the old one."""
        self._lock = threading.Lock()

    def count_batches(self) -> None:
        """From now on, tell how many batches were done, too: a step may be a part of one."""
        self._batches = 0

    def begin(self, step: int, at: float) -> None:
        """Training starts, after ``step`` finished steps, at the monotonic time ``at`` (seconds)."""
        with self._lock:
            self._step, self._at = step, at
            self._sent_step, self._sent_at = step, at

    def put(self, step: int, loss: float | None, metrics: dict[str, float | None] | None, at: float) -> None:
        """Store what is newest: finished steps, loss, further metrics; ``at`` in monotonic seconds."""
        with self._lock:
            if self._batches is not None and step > self._step:
                self._batches += 1
            self._step, self._at = step, at
            if metrics:
                self._metrics.update(metrics)
                if len(self._metrics) > MAX_METRICS:
                    self._metrics = dict(list(self._metrics.items())[:MAX_METRICS])
            if loss is not None:
                self._loss = loss
                self._add_point(step, loss)
            self.dirty = True

    def put_nonfinite(self, step: int) -> None:
        """Note that the loss of this step was no finite number: it has no place on the curve, but is not hidden."""
        with self._lock:
            self._nonfinite_step = step
            self._loss = None
            self.dirty = True

    def take(self) -> dict[str, Any] | None:
        """What is new since the last call, as the data of a PROGRESS event; None if nothing is."""
        with self._lock:
            if not self.dirty:
                return None
            self.dirty = False
            data: dict[str, Any] = {"step": self._step}
            if self.steps is not None:
                data["steps"] = self.steps
            if self._loss is not None:
                data["loss"] = self._loss
            if self._metrics:
                data["metrics"] = dict(self._metrics)
            points, newest = self._points, self._newest_point
            if newest is not None and points[-1] != newest:
                points.append(newest)
            data["losses"] = [[step, loss] for step, loss in points]
            if self._step > self._sent_step and self._at > self._sent_at:
                data["steps_per_s"] = (self._step - self._sent_step) / (self._at - self._sent_at)
            if self._nonfinite_step is not None:
                data["nonfinite_step"] = self._nonfinite_step
            if self._batches is not None:
                data["batches"] = self._batches
            if self.noise_scale is not None:
                data["noise_scale"] = self.noise_scale
            if self._step != self._sent_step:  # several reports of one step are no progress
                self._sent_step, self._sent_at = self._step, self._at
            self._points, self._newest_point = [], None
            self._stride, self._skipped = 1, 0
            return data

    def _add_point(self, step: int, loss: float) -> None:
        points = self._points
        self._newest_point = (step, loss)
        if points and points[-1][0] == step:  # a second report of one step corrects the first
            points[-1] = self._newest_point
            return
        self._skipped += 1
        if self._skipped < self._stride and points:
            return
        self._skipped = 0
        points.append(self._newest_point)
        if len(points) >= MAX_POINTS:
            del points[1::2]
            self._stride *= 2
