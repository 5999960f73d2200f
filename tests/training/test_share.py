"""A run that gives way: with real threads, and in a real process. No test waits for a pause to pass by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from prefect_gpu.training import share
from prefect_gpu.training.channel.mailbox import Mailbox
from prefect_gpu.training.protocol import SAVE_CHECKPOINT, SET_SHARE, STOP
from prefect_gpu.training.share import Pacer
from tests.training.conftest import PATIENCE, Controller


class Waiting:
    """A pause in a thread of its own."""

    def __init__(self, mailbox: Mailbox, broken_seconds: Callable[[], float] = lambda: 0.0) -> None:
        self.pacer = Pacer(mailbox, broken_seconds)
        self.waited: list[float] = []
        self.thread = threading.Thread(target=lambda: self.waited.append(self.pacer.pause()), daemon=True)
        self.thread.start()

    @property
    def over(self) -> bool:
        return bool(self.waited)

    def end(self) -> None:
        """The pause must end now: what it would take by itself is longer than the patience."""
        self.thread.join(PATIENCE / 2)
        assert self.over


@pytest.fixture
def mailbox() -> Mailbox:
    mailbox = Mailbox()
    mailbox.put(SET_SHARE, {"weight": 0.0})
    return mailbox


def looks(mailbox: Mailbox) -> None:
    """Wait until the pausing thread has looked: it clears the news before."""
    while mailbox.news.is_set():
        pass


def test_a_full_share_never_waits() -> None:
    assert Pacer(Mailbox(), lambda: 0.0).pause() < 1.0


@pytest.mark.parametrize("weight", [1.0, 0.5], ids=["full", "half"])
def test_a_new_weight_ends_a_pause_at_once(mailbox: Mailbox, weight: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "_LOOK_SECONDS", PATIENCE)  # only the news can end the wait
    waiting = Waiting(mailbox)
    looks(mailbox)
    assert not waiting.over
    mailbox.put(SET_SHARE, {"weight": weight})
    waiting.end()


def test_a_smaller_weight_goes_on_with_the_pause(mailbox: Mailbox) -> None:
    waiting = Waiting(mailbox)
    looks(mailbox)
    mailbox.put(SET_SHARE, {"weight": 0.0})
    looks(mailbox)
    assert not waiting.over
    mailbox.put(SET_SHARE, {"weight": 1.0})
    waiting.end()


def test_a_wish_to_stop_ends_a_pause_at_once(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "_LOOK_SECONDS", PATIENCE)
    waiting = Waiting(mailbox)
    looks(mailbox)
    assert not waiting.over
    mailbox.put(STOP, {"reason": "enough"})
    waiting.end()


def test_who_is_to_stop_does_not_begin_a_pause(mailbox: Mailbox) -> None:
    mailbox.put(STOP, {"reason": "enough"})
    assert Pacer(mailbox, lambda: 0.0).pause() < 1.0


def test_a_worker_that_is_away_for_long_holds_nobody_back(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "_LOOK_SECONDS", 0.01)
    away = 0.0
    waiting = Waiting(mailbox, lambda: away)
    looks(mailbox)
    assert not waiting.over
    away = share.PATIENCE_SECONDS + 1.0
    waiting.end()


def test_a_part_of_the_time_is_a_pause_that_fits_the_work_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = 0.0, []
    mailbox = Mailbox()
    mailbox.put(SET_SHARE, {"weight": 0.25})

    def wait(seconds: float) -> bool:
        nonlocal now
        slept.append(seconds)
        now += seconds
        return False

    # Stand-ins at the border to real time alone.
    monkeypatch.setattr(share, "monotonic", lambda: now)
    monkeypatch.setattr(mailbox.news, "wait", wait)
    pacer = Pacer(mailbox, lambda: 0.0)
    for _ in range(3):
        now += 0.5  # a step
        assert pacer.pause() == pytest.approx(1.5)
    assert max(slept) <= 1.0


@pytest.mark.slow
def test_a_real_run_pauses_when_told_and_goes_on_when_told(controller: Controller) -> None:
    process = controller.popen(
        """
        import time
        from prefect_gpu.training import training_run
        with training_run(steps=200) as run:
            for step in run.steps():
                time.sleep(0.01)
                run.report(loss=float(step))
        """
    )
    controller.wait_for(lambda: controller.losses)
    controller.instruct(SET_SHARE, weight=0.0, reason="others learn")
    # It pauses after the step that it is in: what was reported is then sent, and nothing comes any more.
    seen = -1
    while seen != len(controller.losses):
        seen = len(controller.losses)
        threading.Event().wait(1.0)
    assert seen < 200 and process.poll() is None
    controller.instruct(SET_SHARE, weight=1.0, reason="they do not")
    assert process.wait(PATIENCE) == 0
    controller.wait_for(lambda: controller.losses[-1] == [200, 199.0])


@pytest.mark.parametrize("weight", [0.0, 0.01])
def test_a_wish_for_a_checkpoint_ends_a_pause_at_once(
    mailbox: Mailbox, weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can only be saved after another step, and whoever asks does not wait for ever."""
    monkeypatch.setattr(share, "_LOOK_SECONDS", PATIENCE)
    waiting = Waiting(mailbox)
    looks(mailbox)
    assert not waiting.over
    mailbox.put(SAVE_CHECKPOINT, {"reason": "to make room"})
    waiting.end()
