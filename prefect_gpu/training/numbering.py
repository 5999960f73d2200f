"""Which of its run's trainings a training is: each carries on from checkpoints of its own.

A flow may train several times, one after the other: the folds of a cross-validation, or a pretraining and what follows.
Nothing in such trainings says which is which, but their order does: a run that carries on, or is tried again, does the
same ones again, apart from flows and tasks in it that are done, whose results Prefect remembers. So trainings are
counted from the beginning of each try, and those in a flow or a task of the run on their own.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Hashable, Mapping
from typing import Any

from prefect_gpu.training.protocol import ENV_ROLE

Path = tuple[str, ...]


class Numbering:
    """Counts the trainings of one process."""

    def __init__(self) -> None:
        self._run: str | None = None
        self._begun: dict[Path, int] = {}  # how many trainings, by the flow or task that they are in
        self._tries: dict[Path, Hashable] = {}  # the newest of each flow
        self._tasks: dict[Hashable, tuple[int, int]] = {}  # the newest try, and what had begun before the first

    def next(self, run_id: str | None) -> str:
        """What the training that begins now, in this thread, is called; empty: it is the first one of the run itself.

        Args:
            run_id: Whose training it is: a process may become another run.
        """
        if run_id != self._run:
            self._run = run_id
            for kept in (self._begun, self._tries, self._tasks):
                kept.clear()
        path: Path = ()
        flows, task = _around()
        if ENV_ROLE in os.environ:  # of a gang's instances, only the first one's flows are known to Prefect as such
            flows = []
        for flow in flows:
            if flow.parent_task_run_id is not None:  # it stands for the call, and is the same in each try
                path = (*path, str(flow.parent_task_run_id))
            self._flow(path, (flow.id, flow.run_count))
        if task is not None:
            path = (*path, f"{task.task.name} {_known_by(task.parameters)}")
            self._task(path, task.task_run)
        number = self._begun[path] = self._begun.get(path, 0) + 1
        if path:
            return f"training-{hashlib.sha256(json.dumps(path).encode()).hexdigest()[:12]}-{number}"
        return f"training-{number}" if number > 1 else ""

    def _flow(self, path: Path, this_try: Hashable) -> None:
        """A flow's next try begins anew, with all that is in it."""
        if self._tries.setdefault(path, this_try) != this_try:
            self._tries[path] = this_try
            self._begun = {other: n for other, n in self._begun.items() if other[: len(path)] != path}

    def _task(self, path: Path, run: Any) -> None:
        """A task's next try begins where the one before began."""
        known, begun = self._tasks.setdefault(run.id, (run.run_count, self._begun.get(path, 0)))
        if known != run.run_count:
            self._tasks[run.id] = run.run_count, begun
            self._begun[path] = begun


def tries() -> dict[Hashable, int]:
    """How often the flows and the task that this thread is in have begun, by their ids."""
    flows, task = _around()
    runs = [*flows, *([] if task is None else [task.task_run])]
    return {run.id: run.run_count for run in runs}


def is_later_try(now: Mapping[Hashable, int], before: Mapping[Hashable, int]) -> bool:
    """Whether a flow or a task was tried again since.

    Example:
        >>> is_later_try({"flow": 1, "task": 2}, {"flow": 1, "task": 1})
        True
        >>> is_later_try({"flow": 1, "task": 1}, {"flow": 1})
        False
    """
    return any(count > before.get(run, count) for run, count in now.items())


own = Numbering()
"""That of this process."""


def _around() -> tuple[list[Any], Any]:
    """The flow runs that this thread is in, from the outside in, and the context of the task; without Prefect, none.

    A flow that is called in another one's thread hides it, and Prefect has no word for what is hidden: it is in the
    token with which the context variable is put back.
    """
    context: Any = sys.modules.get("prefect.context")
    if context is None:
        return [], None
    flows, flow = [], context.FlowRunContext.get()
    while getattr(flow, "flow_run", None) is not None:
        flows.append(flow.flow_run)
        flow = getattr(getattr(flow, "_token", None), "old_value", None)
    return flows[::-1], context.TaskRunContext.get()


def _known_by(parameters: Mapping[str, Any]) -> str:
    """What tells calls of a task apart: those of its parameters that are the same in another process."""
    told = {}
    for name, value in parameters.items():
        try:
            told[name] = json.dumps(value, sort_keys=True, default=_content)
        except (TypeError, ValueError, RecursionError):
            continue  # an object of the user's own, whose text has its address, say
    return json.dumps(told, sort_keys=True)


def _content(value: Any) -> str:
    """Of an array: what it holds."""
    if not hasattr(type(value), "tobytes"):
        raise TypeError
    return hashlib.sha256(value.tobytes()).hexdigest()
