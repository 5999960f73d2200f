"""The object that a training loop reports to: its phases, its gate, its progress and its checkpoints.

Inside the pool it talks to the controller over the channel. Everywhere else the same calls do the same things as far
as the loop can tell, with no thread and no socket.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from math import isfinite
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Literal, TypeVar, overload

from prefect_gpu.training import checks, numbering
from prefect_gpu.training.arguments import Arguments
from prefect_gpu.training.batch import Batch
from prefect_gpu.training.best import BestKeeper
from prefect_gpu.training.channel.attachment import Attachment, free
from prefect_gpu.training.channel.link import process_link, wait_alone, wait_at_gate
from prefect_gpu.training.channel.mailbox import Mailbox
from prefect_gpu.training.checkpoints import SaveCallback, open_store, part_of
from prefect_gpu.training.checkpoints.lost import tell_if_lost
from prefect_gpu.training.checks import NonFiniteLoss, TrainingRunError
from prefect_gpu.training.limits import cpus
from prefect_gpu.training.progress import Progress
from prefect_gpu.training.protocol import (
    ENV_CHECKPOINTS,
    ENV_KEEP_BEST,
    ENV_POOL,
    ENV_RESTORES_ONLY,
    ENV_RUN_ID,
    ENV_SAVED,
    ENV_STAYS,
    ENV_TRIAL,
    FINISHED,
    PREPARING,
    SAVING,
    TRAINING,
)
from prefect_gpu.training.run_log import speak_in_the_run
from prefect_gpu.training.saver import Saver
from prefect_gpu.training.share import Pacer
from prefect_gpu.training.suspension import forgetting
from prefect_gpu.training.trial import STOPPED, TrialLink, link_from

logger = logging.getLogger("prefect_gpu.training")

T = TypeVar("T")
_current: ContextVar[TrainingRun | None] = ContextVar("prefect_gpu_training_run", default=None)


def training_run(
    steps: int | None = None,
    batch_size: int | None = None,
    features: dict[str, Any] | None = None,
    *,
    checkpoint_every: float | None = None,
    on_nonfinite: Literal["raise", "warn"] = "raise",
    keep_best: bool | str | None = None,
) -> TrainingRun:
    """Describe a training to the pool; use it as a context manager around the training.

    Args:
        steps: How many steps the training has, in whatever unit the loop counts (epochs, batches, boosting rounds);
            None if that is not known.
        batch_size: Samples per step of the optimiser. It is kept in the history. Where the pool chooses the batch
            (``@gpu(batch_size=(64, 1024))``), this is what :attr:`TrainingRun.batch_size` is outside of it.
        features: Further numbers and short texts that tell how large the training is.
        checkpoint_every: Save a checkpoint every so many seconds, if ``report()`` offers one. None saves only when the
            controller asks.
        on_nonfinite: What a NaN or infinite loss does: ``"raise"`` stops the training with :class:`NonFiniteLoss`,
            ``"warn"`` logs it once and goes on.
        keep_best: Whether the checkpoint with the smallest loss is kept, for :meth:`TrainingRun.best`, if reports offer
            one. It takes 5 % of the time at most. A name does too: trainings of one run whose order may change, such as
            the trials of a study, need one each. None: only in the pool, for a run with ``converged="stop"``.

    Raises:
        ValueError: An argument makes no sense. The message names it.

    Example:
        >>> with training_run(steps=3) as run:
        ...     for step in run.steps():
        ...         run.report(loss=1 / (step + 1))
        >>> run.step
        3
    """
    return TrainingRun(Arguments(steps, batch_size, features, checkpoint_every, on_nonfinite, keep_best).checked())


class TrainingRun:
    """One training. Made by :func:`training_run`.

    Its phases are those of Liquid §5.1, eq. 1: *preparing* (the launch, T_l) from entering the context, *training*
    (N·(T_t + T_sy)) from :meth:`ready`, *saving* (T_sa) inside :meth:`saving`.

    Attributes:
        total_steps: How many steps the training has, or None.
        step: Finished steps, those of a restored checkpoint included. Where the pool chooses the batch, they are steps
            with the smallest one.
    """

    def __init__(self, arguments: Arguments) -> None:
        self._arguments = arguments
        self.total_steps = arguments.steps
        self.step = 0
        self._best: BestKeeper | None = None
        self._about = arguments.told()
        self._warned_nonfinite = False
        self._went_through = False  # a loop over steps() has done them all
        self._phase: str | None = None
        self._ended = False  # the with block is over
        self._tries: Mapping[Hashable, int] = {}  # of the flows and the task that it is in
        self._loop_step: int | None = None  # the step that steps() is in, counted from 1
        self._progress = Progress(arguments.steps)
        self._batch = Batch(arguments.batch_size)
        self._mailbox = Mailbox()
        self._told = Attachment(None, self._progress, self._about)
        self._client: Any = None  # of the link; report() looks at it every time
        self._had_saved: str | None = None  # the step of its checkpoint when it was stopped before
        self._on_cores: list[Callable[[int], object]] = []
        self._on_report: list[Callable[[int, float | None, dict[str, Any]], object]] = []
        self._trial: TrialLink | None = None
        self._saver = Saver(None, None, self._told.saved)
        self._pacer = Pacer(self._mailbox, lambda: 0.0)

    # Phases

    def __enter__(self) -> TrainingRun:
        if self._phase is not None:
            raise TrainingRunError("This training_run was used before: call training_run() again for another training.")
        link, outer = process_link(), _current.get()
        self._tries = numbering.tries()
        for before in (outer, None if link is None else link.owner):
            if before is not None and numbering.is_later_try(self._tries, before._tries):
                before._give_up()
        if outer is not None and not outer._ended:
            raise TrainingRunError(
                "training_run() inside another training_run(): one training at a time. Leave the outer with block "
                "first, or report both to one run object."
            )
        speak_in_the_run()
        link, taken = free(link)
        part = numbering.own.next(os.environ.get(ENV_RUN_ID))
        of_run = None if taken else os.environ.get(ENV_CHECKPOINTS)
        place = part_of(of_run, part) if of_run and part else of_run
        saves = os.environ.get(ENV_RESTORES_ONLY) != "1"
        keep = os.environ.get(ENV_KEEP_BEST) == "1" if self._arguments.keep_best is None else self._arguments.keep_best
        if keep and saves:
            where, name = (of_run, f"best-{keep}") if isinstance(keep, str) else (place, "best")
            self._best = BestKeeper(open_store(part_of(where, name)) if where else None)
        store = open_store(place, pool=os.environ.get(ENV_POOL, "")) if place else None
        self._had_saved = None if taken or part else os.environ.get(ENV_SAVED)
        _current.set(self)  # only now: a store that cannot be opened must not be in the next try's way
        if not taken:
            self._batch = Batch.told(os.environ, self._batch.size)
        if self._batch.least is not None:
            self._about["batch_size"] = self._batch.size
            self._progress.count_batches()
        if link is not None:
            link.owner = self
            self._told = Attachment(link, self._progress, self._about)
            self._client, self._mailbox = link.client, link.mailbox
            self._pacer = Pacer(link.mailbox, link.client.broken_seconds)
            link.mailbox.go_on = forgetting()
        self._saver = Saver(
            store, self._arguments.checkpoint_every, self._told.saved, saves=saves, is_second=self._told.is_second
        )
        self._saver.on_cores = self._on_cores
        self._trial = link_from(os.environ.get(ENV_TRIAL), self.total_steps) if saves else None
        self._enter_phase(PREPARING)
        if link is not None:
            if link.exhausted:  # the preparation may need more memory, too, than it was granted
                self._enter_phase(PREPARING, waiting=True)
                wait_alone(link)
                self._enter_phase(PREPARING)
            link.caps.apply(training=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ended:
            return
        if _current.get() is self:
            _current.set(None)
        self._give_up()
        if self._trial is not None and error is None and self.stopped == STOPPED:
            with self.saving():  # the device is free from here on
                self._trial.suspend(os.environ[ENV_RUN_ID], self.step)
        if error is None:
            self._done_in_spite_of_a_suspension()
        self._told.ended(error)

    def _give_up(self) -> None:
        """It is over, also if nobody has left its block: a generator keeps it open when what reads it has failed."""
        if not self._ended:
            self._ended = True
            self._told.progress()
            if self._trial is not None:
                self._trial.ended()

    def _done_in_spite_of_a_suspension(self) -> None:
        """Keep Prefect's engine from dropping the result of a run that was done before its suspension came to anything.

        The pool would have refused it, or would have stopped the run at a step: whoever has left its loop is done.
        """
        if self.step > 0 or os.environ.get(ENV_STAYS) == "1":
            self._mailbox.go_on()

    def ready(self) -> None:
        """Preparation is done: wait for the device if the pool wants that, and begin training.

        Inside the pool a run may have been started while its predecessor is still training, so that it can prepare
        meanwhile (Liquid's pre-scheduling). It then waits here until the predecessor saves. Without that, returns at
        once. A second call does nothing.
        """
        self._require_open("ready()")
        if self._phase == TRAINING:
            return
        if self._phase != PREPARING:
            raise TrainingRunError("ready() after saving() has begun: call training_run() again for another training.")
        link = self._told.link
        if link is not None and not (self._mailbox.gate.is_set() and link.lock.try_acquire()):
            self._enter_phase(PREPARING, waiting=True)
            wait_at_gate(link)
            link.lock.acquire()
        if link is not None:
            link.caps.apply()
        self._progress.begin(self.step, monotonic())
        self._saver.begin()
        if self._best is not None:
            self._best.begin()
        self._pacer.begin()
        if self._trial is not None:
            self._trial.began(self.step)
        self._enter_phase(TRAINING)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """The device is not needed any more: what is left is to write and upload the result.

        Nothing in this block should use the device: a scheduler may give it to the next run while this one saves. The
        block can stand inside the ``training_run`` block or after it.

        Example:
            >>> with training_run(steps=1) as run:
            ...     for _ in run.steps():
            ...         run.report()
            >>> with run.saving():
            ...     pass  # upload(model)
        """
        if self._phase is None:
            raise TrainingRunError("saving() before training: use it after `with training_run(...) as run:`.")
        self._told.progress()
        if self._told.link is not None:
            self._told.link.lock.release()
        self._enter_phase(SAVING)
        yield
        self._done_in_spite_of_a_suspension()
        self._enter_phase(FINISHED)
        self._told.finished()

    # The loop

    def expect(self, steps: int) -> None:
        """Say how many steps the training has, where only the framework knows: callbacks call it before the loop.

        Args:
            steps: All steps, those of a restored checkpoint included. Replaces what :func:`training_run` was told.

        Raises:
            ValueError: ``steps`` is no whole number of at least 1.
        """
        steps = checks.count(steps, "steps", least=1, remedy="pass how many steps the training has.")
        self.total_steps = self._progress.steps = self._about["steps"] = steps
        if self._trial is not None:
            self._trial.expect(steps)

    @property
    def steps_left(self) -> int | None:
        """Steps that are still to do, or None if the total is unknown."""
        return None if self.total_steps is None else max(0, self.total_steps - self.step)

    @property
    def next_step(self) -> int:
        """The number of the step that the next report is about, counted from 1."""
        return self._batch.after(self.step) if self._loop_step is None else self._loop_step

    @property
    def batch_size(self) -> int | None:
        """Samples of a batch, of all devices together: what the pool has chosen for this launch (Pollux).

        It does so for a flow with ``@gpu(batch_size=(64, 1024))``, at each change of the number of devices; the batch
        is a multiple of that number. Everywhere else this is what :func:`training_run` was told.

        Example:
            >>> with training_run(steps=2, batch_size=64) as run:
            ...     run.batch_size
            64
        """
        return self._batch.size

    def gradient_noise(self, scale: float) -> None:
        """Say how noisy the gradient is: what a larger batch brings depends on it, and so does the one that is chosen.

        The gradient noise scale is the variance of one sample's gradient, summed over all parameters, divided by the
        squared norm of the true gradient (McCandlish et al., 2018). With batches far below it, twice as many samples
        save half of the steps; far above it, nothing. For PyTorch,
        :class:`~prefect_gpu.training.callbacks.gradient_noise.GradientNoise` measures it and calls this.

        Args:
            scale: In samples; a mean over many steps, the same in all instances of a gang.

        Raises:
            ValueError: It is no finite number of at least 0.
        """
        self._progress.noise_scale = self._batch.measured(scale)

    @property
    def worth(self) -> float:
        """How many steps with the smallest batch a step with :attr:`batch_size` is worth (AdaScale); at least 1.

        So many steps is the training further with each one that :meth:`steps` yields, or :meth:`report` counts. It is
        1 where the pool chooses no batch, and until :meth:`gradient_noise` was called. A learning rate that was chosen
        for the smallest batch may be multiplied by it.
        """
        return self._batch.worth

    @property
    def cores(self) -> int:
        """How many cores the run may use now. The pool may change that while it trains (CODA §V.B).

        Threads of PyTorch and of numeric libraries follow by themselves. What a loop starts anew now and then can be
        made as large as this: data-loader workers, say.

        Example:
            >>> with training_run(steps=2) as run:
            ...     for epoch in run.steps():
            ...         workers = max(1, run.cores - 1)  # DataLoader(data, num_workers=workers)
            ...         run.report()
        """
        return cpus.usable()

    def on_cores(self, call: Callable[[int], object]) -> None:
        """Have a function called with the number of cores when it has changed: in a report, in its thread."""
        self._on_cores.append(call)

    def on_report(self, call: Callable[[int, float | None, dict[str, Any]], object]) -> None:
        """Have a function called with what each report says: the step, the loss and the metrics; in its thread.

        Example:
            >>> seen = []
            >>> with training_run(steps=2) as run:
            ...     run.on_report(lambda step, loss, metrics: seen.append((step, loss)))
            ...     for _ in run.steps():
            ...         run.report(loss=0.5)
            >>> seen
            [(1, 0.5), (2, 0.5)]
        """
        self._on_report.append(call)

    @property
    def stopped(self) -> str | None:
        """Why the loop ended, or should end, before its last step; None as long as it need not."""
        return self._saver.stopped

    @property
    def stop_requested(self) -> bool:
        """Whether the loop should end now. Loops that do not use :meth:`steps` look at it after each report."""
        return self._saver.stopped is not None

    def stop(self, reason: str) -> None:
        """End the loop: :meth:`steps` yields no more after the next report, which may save a checkpoint before.

        Args:
            reason: What :attr:`stopped` says then.
        """
        self._require_open("stop()")
        self._saver.stop(reason)

    def steps(self) -> Iterator[int]:
        """The numbers of the steps to do, from 0, or from where the restored checkpoint ends.

        Where the pool chooses the batch, a step is :attr:`worth` several, and numbers are left out.

        Calls :meth:`ready` first if that has not been done. Without a total it goes on until the loop breaks. Ends
        early when the controller wants the run to stop; :attr:`stopped` then says why. A restored training that was
        complete already has no steps left, and a second loop over the same training has none, either: that is logged.
        """
        self.ready()
        done = self.step
        if self._went_through and done == self.total_steps:
            logger.warning(
                "steps() has no steps left: another loop has done all %d. "
                "Call training_run() again for another training.",
                done,
            )
        while self.total_steps is None or done < self.total_steps:
            # A loop that offers checkpoints is stopped by the report that offers one, so that no step is lost.
            self._saver.stop_unsaved(self._mailbox)
            if self._saver.stopped is not None:
                return
            self._loop_step = self._batch.advance(done)
            if self.total_steps is not None:
                self._loop_step = min(self._loop_step, self.total_steps)
            yield done
            done = self._loop_step
            if self.step < done:  # the step did not report
                self.step = done
                self._progress.put(done, None, None, monotonic())
                if self._mailbox.weight < 1.0 and done != self.total_steps:
                    self._pacer.pause()
        self._went_through = True

    def report(
        self,
        loss: Any = None,
        *,
        step: int | None = None,
        checkpoint: SaveCallback | None = None,
        **metrics: Any,
    ) -> None:
        """Report a finished step. Costs a few microseconds; sending is done elsewhere, at a few events per second.

        Args:
            loss: The training loss: a number, also one of numpy or a tensor on the CPU.
            step: How many steps are done now. Left out, it is the step of :meth:`steps`, or one more than before.
            checkpoint: Called, now and in this thread, with a path when a checkpoint is due: it creates a file or a
                folder there. Otherwise it is forgotten again. If it fails, that is logged, and training goes on.
            **metrics: Further numbers, such as ``accuracy=0.9``.

        Raises:
            NonFiniteLoss: The loss is NaN or infinite, unless ``on_nonfinite="warn"``.
            TypeError: The loss or a metric is not a number.
            TrainingRunError: Training has not begun, or is over.
        """
        if self._phase != TRAINING or self._ended:
            self._refuse_report()
        if step is None:
            step = self._batch.advance(self.step) if self._loop_step is None else self._loop_step
        elif type(step) is not int or step < 0:
            step = checks.count(step, "step", least=0, remedy="pass how many steps are done.")
        diverged = None
        if loss is not None:
            if type(loss) is not float:
                loss = checks.number(loss, "loss")
            if not isfinite(loss):
                diverged = loss
                self._nonfinite(loss, step)
                loss = None
        self.step = step
        now = monotonic()
        self._progress.put(step, loss, checks.metrics(metrics) if metrics else None, now)
        for call in self._on_report:
            call(step, loss, metrics)
        saver = self._saver
        if checkpoint is not None:
            saver.offer()
        if self._trial is not None:
            told = loss if diverged is None else diverged  # else a trial that has diverged would never be judged
            if ends := self._trial.reported(step, told, metrics, carries_on=saver.offers):
                saver.stop(ends)
        if checkpoint is not None and self._best is not None and loss is not None and not self._told.is_second():
            last = step == self.total_steps or saver.asked_to_stop(self._mailbox) is not None
            self._best.offer(checkpoint, loss, step, last=last)
        if self._mailbox.pending or now >= saver.due_at or saver.wish is not None:
            saver.obey(self._mailbox, checkpoint, step, last=step == self.total_steps)
        client = self._client
        if client is not None and client.asleep:
            client.wake()
        if self._mailbox.weight < 1.0 and step != self.total_steps:  # whoever is done need not give way
            self._pacer.pause()

    # Checkpoints

    @overload
    def restore(self) -> Path | None: ...

    @overload
    def restore(self, load: Callable[[Path], T]) -> T | None: ...

    def restore(self, load: Callable[[Path], T] | None = None) -> T | Path | None:
        """Carry on from this run's newest good checkpoint, if there is one.

        Args:
            load: Called with the path that the checkpoint was saved to; what it returns is returned.

        Returns:
            What ``load`` returned, or the path if there is no ``load``; None if there is no checkpoint.

        Example:
            >>> with training_run(steps=5) as run:
            ...     model = run.restore() or "a new model"
        """
        self._require_open("restore()")
        if self._phase != PREPARING:
            raise TrainingRunError("restore() after training has begun: call it before ready() and steps().")
        store = self._saver.store
        found = store.restore() if store is not None else None
        if found is None:
            if self._had_saved is not None and store is not None:
                tell_if_lost(store, self._had_saved, os.environ.get(ENV_CHECKPOINTS, ""))
            return None
        loaded = found.path if load is None else load(found.path)
        self.step = found.step
        return loaded

    @property
    def checkpoint_due(self) -> bool:
        """Whether a report that offers a checkpoint would save it now.

        For loops that cannot save inside :meth:`report`, such as a framework's: they look here after a step, have the
        framework save, and then offer what it saved. Whoever looks has offered: a stop waits for that save.
        """
        return self._saver.due(self._mailbox)

    @overload
    def best(self) -> Path | None: ...

    @overload
    def best(self, load: Callable[[Path], T]) -> T | None: ...

    def best(self, load: Callable[[Path], T] | None = None) -> T | Path | None:
        """The checkpoint with the smallest loss, of those that were kept (``keep_best``); also later.

        Args:
            load: Called with the path that the checkpoint was saved to; what it returns is returned.

        Returns:
            What ``load`` returned, or the path if there is no ``load``; None if nothing is kept.

        Example:
            >>> from functools import partial
            >>> with training_run(steps=3, keep_best=True) as run:
            ...     for step, loss in zip(run.steps(), (0.5, 0.4, 0.2), strict=True):
            ...         run.report(loss=loss, checkpoint=partial(Path.write_text, data=f"model of {loss}"))
            >>> run.best(Path.read_text)
            'model of 0.2'
        """
        if self._phase is None:
            raise TrainingRunError("best() before training: use it after the loop.")
        found = self._best.restore() if self._best is not None else None
        if found is None:
            return None
        return found.path if load is None else load(found.path)

    # Inside

    def _enter_phase(self, phase: str, **more: Any) -> None:
        self._phase = phase
        self._told.phase(phase, self.step, **more)

    def _nonfinite(self, loss: float, step: int) -> None:
        self._progress.put_nonfinite(step)
        error = NonFiniteLoss(loss, step)
        if self._arguments.on_nonfinite == "raise":
            raise error
        if not self._warned_nonfinite:
            self._warned_nonfinite = True
            logger.warning(
                "loss=%s at step %d is not a finite number; training goes on (on_nonfinite='warn').", loss, step
            )

    def _require_open(self, call: str) -> None:
        if self._phase is None or self._ended:
            raise TrainingRunError(f"{call} outside its `with training_run(...) as run:` block.")

    def _refuse_report(self) -> None:
        self._require_open("report()")
        if self._phase == PREPARING:
            raise TrainingRunError(
                "report() before training has begun: iterate over run.steps(), or call run.ready() before the loop."
            )
        raise TrainingRunError("report() after saving() has begun: report while training.")

    def _detach(self) -> None:
        """In a forked child: this copy of the run reports nothing, and leaves the parent's checkpoints alone."""
        self._told = Attachment(None, self._progress, self._about)
        self._client, self._mailbox = None, Mailbox()
        self._saver = Saver(None, None, self._told.saved)
        self._best = None
        self._progress.unlock()
