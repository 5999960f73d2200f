"""For PyTorch loops of one's own: state to and from checkpoints, the device after the gate, batches as steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from prefect_gpu.training import checks
from prefect_gpu.training.callbacks._random import random_state, set_random_state
from prefect_gpu.training.callbacks._values import LossReader
from prefect_gpu.training.checks import TrainingRunError
from prefect_gpu.training.run import TrainingRun


class TorchLoop:
    """What a PyTorch loop does around its steps, in the order that the pool needs.

    The model is built on the CPU, the newest checkpoint is read, the pool is waited for
    (:meth:`TrainingRun.ready`), and only then does the model move to the device. Random numbers go on where the
    checkpoint left them, so that a training that was interrupted ends as it would have ended.

    Args:
        run: The training run.
        model: The module to train, on the CPU.
        device: Where to train. Default: the first GPU that PyTorch sees (inside the pool, the one that was granted),
            else the CPU.
        **parts: Whatever else belongs into a checkpoint, under any name: optimizer, learning rate scheduler, gradient
            scaler; anything with ``state_dict()`` and ``load_state_dict()``. Checkpoints are pickled, and read from
            this run's own folder only.

    Attributes:
        device: The device to train on.
        epoch: The epoch of the newest batch of :meth:`batches`, from 0.

    Raises:
        TypeError: The model, or a part, has no ``state_dict()`` or no ``load_state_dict()``.

    Example:
        >>> with training_run(steps=20) as run:                               # doctest: +SKIP
        ...     loop = TorchLoop(run, model, optimizer=optimizer)
        ...     for epoch in loop.steps():
        ...         for x, y in map(loop.to_device, loader):
        ...             loss = fit_one(model, optimizer, x, y)
        ...         loop.report(loss)
    """

    def __init__(
        self, run: TrainingRun, model: torch.nn.Module, *, device: str | torch.device | None = None, **parts: Any
    ) -> None:
        for name, part in {"model": model, **parts}.items():
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise TypeError(
                    f"{name}={type(part).__name__} cannot go into a checkpoint: pass objects with state_dict() and "
                    "load_state_dict(), such as a module, an optimizer or a scheduler."
                )
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.epoch = 0
        self._run, self._model, self._parts = run, model, parts
        self._begun = self._in_batches = False
        self._losses = LossReader()
        self._generators: list[torch.Generator] = []  # that the loader of batches() draws from, if it has its own
        self._generator_states: Any = None
        self._epoch_begin: dict[str, Any] | None = None  # random numbers, as the current epoch of batches() began

    def begin(self) -> None:
        """Restore, wait for the pool, move to the device. :meth:`steps` and :meth:`batches` do it; again is nothing."""
        if self._begun:
            return
        self._begun = True
        state = self._run.restore(_load)
        if state is not None:
            self._model.load_state_dict(state["model"])
        self._run.ready()
        self._model.to(self.device)
        if state is not None:
            # After the move: an optimizer puts its state where the parameters are.
            for name, part in self._parts.items():
                part.load_state_dict(state["parts"][name])
            set_random_state(state["random"])
            self._epoch_begin, self._generator_states = state["epoch_begin"], state["generator"]

    def steps(self) -> Iterator[int]:
        """The numbers of the steps to do (:meth:`TrainingRun.steps`), for loops in which a step is an epoch, say."""
        self.begin()
        yield from self._run.steps()

    def batches(self, loader: Any, epochs: int) -> Iterator[Any]:
        """Every batch of every epoch, on the device; one batch is one step.

        A restored training goes on in the middle of its epoch, with the batches that are left of it: the earlier ones
        are drawn again and skipped. The order is the same as before if it is drawn from PyTorch's generators.

        Args:
            loader: A ``DataLoader``, or anything with a length that can be iterated over again and again. An epoch has
                as many batches as the length says; what comes after them is left out.
            epochs: How often.

        Yields:
            Batches, moved to the device.

        Raises:
            TypeError: The loader has no length, or can be iterated over only once.
            ValueError: It is empty, it has fewer batches than its length says, or ``epochs`` is no number from 1 up.
            TrainingRunError: It is called a second time.

        Example:
            >>> for x, y in loop.batches(loader, epochs=3):                   # doctest: +SKIP
            ...     loop.report(fit_one(model, optimizer, x, y))
        """
        count, epochs = len(loader), checks.count(epochs, "epochs", least=0, remedy="say how often.")
        if count < 1 or epochs < 1:
            raise ValueError(f"epochs={epochs} of {count} batches: there is nothing to train on.")
        if epochs > 1 and hasattr(loader, "__next__"):
            raise TypeError(
                f"loader={type(loader).__name__} is an iterator, which has one epoch: give the DataLoader of it."
            )
        if self._in_batches:
            raise TrainingRunError(
                "batches() a second time: it goes through all epochs by itself. A second training, as after a "
                "pretraining, needs a training_run() and a TorchLoop of its own."
            )
        self._in_batches = True
        self._run.expect(epochs * count)
        self.begin()
        self._generators = _generators(loader)
        self._set_own_states(self._generator_states)
        if self._epoch_begin is not None and self._run.step >= count and getattr(loader, "persistent_workers", False):
            # What the first epoch draws for its workers, later ones with the same workers do not.
            now = random_state()
            iter(loader)
            set_random_state(now)
            self._set_own_states(self._generator_states)
        fetched: Iterator[Any] | None = None
        for step in self._run.steps():
            self.epoch, index = divmod(step, count)
            if fetched is None or index == 0:
                fetched = self._epoch(loader, index)
            yield self.to_device(_next(fetched, index, count))

    def report(self, loss: Any = None, *, step: int | None = None, **metrics: Any) -> None:
        """Report a finished step and offer a checkpoint of everything (:meth:`TrainingRun.report`).

        A loss on a GPU is fetched a few times a second, rather than in every step: to fetch it is to wait for it.
        """
        last = self._run.steps_left is not None and self._run.steps_left <= 1
        self._run.report(self._losses.read(loss, last=last), step=step, checkpoint=self.save, **metrics)

    def save(self, path: Path) -> None:
        """Write a checkpoint: model, parts and random numbers."""
        state = {
            "model": self._model.state_dict(),
            "parts": {name: part.state_dict() for name, part in self._parts.items()},
            "random": random_state(),
            "generator": self._own_states(),
            "epoch_begin": self._epoch_begin,
        }
        torch.save(state, path)

    def to_device(self, batch: Any) -> Any:
        """A batch on the device: a tensor, or lists, tuples and dicts of them. Anything else stays as it is."""
        if isinstance(batch, torch.Tensor):
            return batch.to(self.device, non_blocking=True)
        if isinstance(batch, Mapping):
            return {key: self.to_device(value) for key, value in batch.items()}
        if isinstance(batch, (list, tuple)):
            moved = [self.to_device(value) for value in batch]
            if hasattr(batch, "_fields"):  # a named tuple
                return type(batch)(*moved)
            return type(batch)(moved)
        return batch

    def _epoch(self, loader: Any, skip: int) -> Iterator[Any]:
        """The batches of this epoch from number ``skip`` on; above 0 right after a restore only."""
        sampler: Any = getattr(loader, "sampler", None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(self.epoch)
        now = random_state()
        if skip == 0 or self._epoch_begin is None:
            self._epoch_begin = {"random": now, "generator": self._own_states()}
        else:
            set_random_state(self._epoch_begin["random"])
            self._set_own_states(self._epoch_begin["generator"])
        batches = iter(loader)
        if skip:
            for number in range(skip):
                _next(batches, number, len(loader))
            set_random_state(now)
        return batches

    def _own_states(self) -> list[torch.Tensor]:
        return [generator.get_state() for generator in self._generators]

    def _set_own_states(self, states: Any) -> None:
        kept = [states] if isinstance(states, torch.Tensor) else states or []  # one, in checkpoints of old
        for generator, state in zip(self._generators, kept, strict=False):
            generator.set_state(state)


def _next(batches: Iterator[Any], number: int, count: int) -> Any:
    try:
        return next(batches)
    except StopIteration:
        raise ValueError(
            f"The loader's length is {count}, and an epoch of it has only {number} batches: correct the __len__ of its "
            "dataset. With num_workers, it counts the samples of all workers together."
        ) from None


def _generators(loader: Any) -> list[torch.Generator]:
    """The generators that a loader has of its own, itself or in its samplers; each once."""
    holders = [loader, *(getattr(loader, name, None) for name in ("sampler", "batch_sampler"))]
    holders.append(getattr(holders[-1], "sampler", None))
    found = [getattr(holder, "generator", None) for holder in holders]
    return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())


def _load(path: Path) -> dict[str, Any]:
    # Unpickles, since a part's state may hold anything: the file is of this run's own folder.
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False)
    return state
