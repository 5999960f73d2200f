"""One sweep at a time goes on with a study. Each leaves a sign of life in it, by which another one knows.

Two of them would take each other's trials for left by one that was interrupted: cancel what is just being submitted,
and tell results twice. Only the changes of the sign count, not the time in it: clocks of two machines may differ.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from types import TracebackType
from typing import Any

import optuna
from optuna.exceptions import StorageInternalError

from prefect_gpu.runtime.drivers import supervisor
from prefect_gpu.sweeps.spoken import logger

SWEPT_BY = "swept_by"
"""User attribute of a study: the sweep that goes on with it, and how often it has given its sign; None: nobody does."""

_BEAT_S = 5.0
_SILENCE_S = 30.0  # after which a sweep on another machine is taken for gone
_LOOK_S = 1.0


class SweepError(RuntimeError):
    """A sweep cannot go on, or has no result. The message says why."""


class Alone:
    """While it is entered, this process is the one that goes on with a study.

    Args:
        study: A study that others can open, too.

    Raises:
        SweepError: Another sweep goes on with it.
    """

    def __init__(self, study: optuna.Study) -> None:
        self._study = study
        self._sign = {**_this_process(), "sweep": secrets.token_hex(8)}
        self._lost: dict[str, Any] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._give_signs, name="prefect-gpu-sweep", daemon=True)

    def __enter__(self) -> Alone:
        self._wait_for_silence()
        self._study.set_user_attr(SWEPT_BY, {**self._sign, "beat": 0})
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        try:
            if self._lost is None:
                self._study.set_user_attr(SWEPT_BY, None)
        except StorageInternalError:
            pass  # whoever comes next finds that this process has ended

    def check(self) -> None:
        """Go on only if no other sweep has taken over.

        Raises:
            SweepError: One has: this process had stood still for long, with its machine, say.
        """
        if self._lost is not None:
            raise SweepError(
                f"This sweep ends: it had given no sign of life, and {_whose(self._lost)} goes on with its study, "
                f"{self._study.study_name!r}."
            )

    def _wait_for_silence(self) -> None:
        before = _sign_in(self._study)
        if before is None or _has_ended(before):
            return
        logger().info(
            "A sweep has gone on with the study %s: %s. For up to %.0f seconds, this one looks whether it still does.",
            self._study.study_name, _whose(before), _SILENCE_S,
        )  # fmt: skip
        end = time.monotonic() + _SILENCE_S
        while time.monotonic() < end:
            time.sleep(_LOOK_S)
            now = _sign_in(self._study)
            if now is None or _has_ended(now):
                return
            if now != before:
                raise SweepError(
                    f"The study {self._study.study_name!r} is searched by another sweep: {_whose(now)}. Wait for it, "
                    "end it, or give this one another name."
                )

    def _give_signs(self) -> None:
        beat = 0
        while not self._over.wait(_BEAT_S):
            beat += 1
            try:
                now = _sign_in(self._study)
                if now is not None and now["sweep"] != self._sign["sweep"]:
                    self._lost = now
                    return
                self._study.set_user_attr(SWEPT_BY, {**self._sign, "beat": beat})
            except StorageInternalError:
                pass  # the sweep itself speaks of it


def _sign_in(study: optuna.Study) -> dict[str, Any] | None:
    sign: dict[str, Any] | None = study.user_attrs.get(SWEPT_BY)
    return sign


def _this_process() -> dict[str, Any]:
    pid = os.getpid()
    seen = supervisor.look(pid)
    return {"host": socket.gethostname(), "pid": pid, "start_ticks": seen.start_ticks if seen else 0, **_here()}


def _here() -> dict[str, str]:
    """What tells whether a process of that number would be seen here: each container has its own."""
    try:
        return {"boot": supervisor.boot_id(), "namespace": os.readlink("/proc/self/ns/pid")}
    except OSError:
        return {"boot": "", "namespace": ""}


def _has_ended(sign: dict[str, Any]) -> bool:
    """Whether its process is known to have ended. On another machine that is not known."""
    here = _here()
    if not here["boot"] or any(sign[name] != here[name] for name in here):
        return False
    return not supervisor.alive(sign["pid"], sign["start_ticks"])


def _whose(sign: dict[str, Any]) -> str:
    return f"process {sign['pid']} on {sign['host']}"
