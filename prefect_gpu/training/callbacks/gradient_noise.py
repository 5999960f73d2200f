"""For PyTorch: how noisy the gradient is, which says what a larger batch would bring."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import isfinite

import torch

from prefect_gpu.training import checks
from prefect_gpu.training.run import TrainingRun

_LEAST_PARTS = 2
_SAMPLES = "give the samples of a batch. run.batch_size is None where neither the pool nor training_run() says it."


class GradientNoise:
    """Measures the squared norm and the variance of the gradient, from gradients of parts of a batch.

    The parts are the micro-batches whose gradients are accumulated, the replicas of data-parallel training, or both:
    the mean of their squared norms says how far parts are from the whole (McCandlish et al., 2018, appendix A.1). Each
    backward pass costs one more look at the gradients, and no copy of them. A gradient scaler multiplies both numbers
    by the same; what a larger batch would bring depends on their ratio alone.

    Args:
        parameters: Of the model; those that need a gradient are watched from now on.
        batch_size: Samples of the batch that the variance is told for: the one that the training began with.
        run: The training that is to know the noise (:meth:`.TrainingRun.gradient_noise`): where the pool chooses the
            batch, that depends on it. None: nobody.
        smoothing: How much of the former mean is kept at each step, 0 to 1: single steps say little.

    Raises:
        ValueError: An argument is out of its range, or no parameter needs a gradient.

    Example:
        >>> noise = GradientNoise(model.parameters(), batch_size=64, run=run)          # doctest: +SKIP
        >>> for step in run.steps():                                                   # doctest: +SKIP
        ...     parts = batch_of(run.batch_size)
        ...     for x, y in parts:
        ...         (loss_of(model(x), y) / len(parts)).backward()
        ...     noise.step(run.batch_size)
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        ...     run.report(loss, **noise.metrics())
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        batch_size: int,
        *,
        run: TrainingRun | None = None,
        smoothing: float = 0.95,
    ) -> None:
        batch_size = checks.count(batch_size, "batch_size", least=1, remedy=_SAMPLES)
        if not (isinstance(smoothing, (int, float)) and 0 <= smoothing < 1):
            raise ValueError(f"smoothing={smoothing!r} is out of range: give 0 for none, or a part below 1.")
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        if not self._parameters:
            raise ValueError("parameters has none that needs a gradient: pass those that are trained.")
        self._batch_size, self._smoothing, self._run = batch_size, smoothing, run
        self._parts_sqr: torch.Tensor | None = None
        self._passes = [0] * len(self._parameters)
        self._sqr = self._var = self._weight = 0.0
        for number, parameter in enumerate(self._parameters):
            parameter.register_hook(partial(self._seen, number))

    def step(self, batch_size: int) -> None:
        """A batch's gradient is complete: call it after the last backward pass, before the optimizer's step.

        A batch of which there was only one part says nothing, and is left out; so is one whose gradient is not
        finite, as those with which a gradient scaler finds its scale. Clip gradients, or divide them by a scale,
        afterwards. The numbers are fetched from the device, which waits for it.

        Args:
            batch_size: Samples of the batch, of all replicas together. The loss of each part was divided by the number
                of a replica's parts, so that gradients add up to their mean.

        Raises:
            ValueError: ``batch_size`` is no number of samples.
        """
        batch_size = checks.count(batch_size, "batch_size", least=1, remedy=_SAMPLES)
        parts_sqr, passes = self._parts_sqr, max(self._passes)
        self._parts_sqr, self._passes = None, [0] * len(self._parameters)
        if parts_sqr is None:
            return
        replicas = 1
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            replicas = torch.distributed.get_world_size()
            torch.distributed.all_reduce(parts_sqr)
        parts = passes * replicas
        if parts < _LEAST_PARTS:
            return
        found = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        whole_sqr = float(sum(gradient.detach().double().square().sum() for gradient in found))
        # Each part's gradient was divided by the passes of its replica, and their squares were summed up.
        part_sqr = float(parts_sqr) * passes**2 / parts
        if not (isfinite(whole_sqr) and isfinite(part_sqr)):
            return
        sqr = (parts * whole_sqr - part_sqr) / (parts - 1)
        var = (part_sqr - whole_sqr) * batch_size / (parts - 1)  # of a single sample
        kept = self._smoothing
        self._sqr = kept * self._sqr + (1 - kept) * sqr
        self._var = kept * self._var + (1 - kept) * var / self._batch_size
        self._weight = kept * self._weight + (1 - kept)
        if self._run is not None and self.scale is not None:
            self._run.gradient_noise(self.scale)

    @property
    def scale(self) -> float | None:
        """The gradient noise scale, in samples (McCandlish et al., 2018); None as long as it is unknown."""
        if not self._weight or self._sqr <= 0 or self._var <= 0:
            return None
        return self._var / self._sqr * self._batch_size

    def metrics(self) -> dict[str, float]:
        """What to report: ``gradient_sqr`` and ``gradient_var``; empty as long as they are unknown or not positive."""
        if self.scale is None:
            return {}
        return {"gradient_sqr": self._sqr / self._weight, "gradient_var": self._var / self._weight}

    def _seen(self, number: int, gradient: torch.Tensor) -> None:
        self._passes[number] += 1
        sqr = gradient.detach().double().square().sum()
        self._parts_sqr = sqr if self._parts_sqr is None else self._parts_sqr + sqr.to(self._parts_sqr.device)
