"""Children that a run forks, such as PyTorch's data-loader workers, end as if they had been started by themselves.

Prefect has the end of an interpreter wait for what it still sends. A forked child inherits that wish, without the
threads that it is about. At its end it trips over it and exits with code 1, also if its work was done (Prefect 3.8).
PyTorch takes that for a failure of its worker, and ends the training.

It inherits Prefect's answer to SIGTERM, too: with it, a child that outlives its run, and is then ended, would say of
the completed run that it has crashed.
"""

from __future__ import annotations

import inspect
import os
import signal
import threading
from typing import Any

_registered = False


def end_children_well() -> None:
    """Let each child that is forked from now on forget what its parent's end is to wait for. Again is nothing."""
    global _registered
    if not _registered:
        _registered = True
        os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    """Leave the calls that are about objects of the parent; those of modules, such as of thread pools, stay."""
    calls: list[Any] = getattr(threading, "_threading_atexits", [])
    calls[:] = [call for call in calls if getattr(_called(call), "__self__", None) is None]
    if getattr(signal.getsignal(signal.SIGTERM), "__module__", "").startswith("prefect."):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _called(call: Any) -> Any:
    """The function that was registered. Python keeps it in a ``partial``, and since 3.14 in a closure."""
    if inspect.isfunction(call):
        return inspect.getclosurevars(call).nonlocals.get("func", call)
    return getattr(call, "func", call)
