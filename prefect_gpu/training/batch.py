"""The batch of a training: chosen by the pool, or the loop's own; and what a step with it is worth (AdaScale)."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from prefect_gpu.training import checks
from prefect_gpu.training.protocol import ENV_BATCH_SIZE


class Batch:
    """A training's batch, and its progress in steps of the smallest one.

    Args:
        size: Samples, of all devices together; None: nobody has said.
        least: Samples of the smallest batch that the pool may choose; None: it chooses none, and a step is a step.

    Example:
        >>> batch = Batch(256, least=64)
        >>> batch.worth  # nothing is known of the noise yet
        1.0
        >>> batch.measured(192)
        192.0
        >>> batch.worth
        2.2857142857142856
        >>> [batch.advance(step) for step in (0, 2, 4)]
        [2, 4, 6]
    """

    def __init__(self, size: int | None, least: int | None = None) -> None:
        self.size, self.least = size, least
        self.noise_scale: float | None = None
        self._part = 0.0  # of a step, that is done beyond the whole ones

    @classmethod
    def told(cls, environ: Mapping[str, str], own: int | None) -> Batch:
        """What the pool has chosen, as the environment has it; else the loop's own."""
        size, _, least = environ.get(ENV_BATCH_SIZE, "").partition("/")
        if not (size.isdecimal() and least.isdecimal() and int(size) >= int(least) > 0):
            return cls(own)
        return cls(int(size), int(least))

    @property
    def worth(self) -> float:
        """How many steps with the smallest batch a step is worth: the more, the noisier the gradient; at least 1.

        As long as nothing is known of the noise, and where the pool chooses no batch, it is 1.
        """
        if self.size is None or self.least is None or self.noise_scale is None:
            return 1.0
        return self.size / self.least * (self.noise_scale + self.least) / (self.noise_scale + self.size)

    def measured(self, noise_scale: float) -> float:
        """The gradient noise scale is known, in samples; the same as a float.

        Raises:
            ValueError: It is no finite number of at least 0.
        """
        value = checks.number(noise_scale, "scale")
        if not (isfinite(value) and value >= 0):
            raise ValueError(
                f"scale={noise_scale!r} is no gradient noise scale: give a sample's variance over the squared norm, 0 "
                "or more, and leave the call out as long as that is not known."
            )
        self.noise_scale = value
        return value

    def after(self, step: int) -> int:
        """The number of steps that are done with one batch more."""
        return int(step + self._part + self.worth)

    def advance(self, step: int) -> int:
        """The same, and that batch is done: what it is worth beyond whole steps counts on."""
        done = step + self._part + self.worth
        self._part = done - int(done)
        return int(done)
