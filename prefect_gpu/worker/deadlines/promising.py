"""What Prefect is told of deadlines: promised, refused, or at risk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import datetime
from typing import Any

from prefect.client.schemas.objects import FlowRun, State
from prefect.exceptions import Abort, ObjectNotFound
from prefect.states import Cancelled
from prefect.utilities.engine import propose_state

from prefect_gpu.runtime.clock import CLOCK
from prefect_gpu.scheduling.model.instructions import AtRisk, Promise, Refuse
from prefect_gpu.worker.server.asking import Asking

PROMISED = "prefect-gpu.promised"
"""The label of a flow run whose deadline was promised: the probability. A later worker keeps what it finds here."""

REFUSED = "Refused"
"""The name of a refused run's state. Its type is Cancelled, as of runs that Prefect's own limits refuse."""

Answer = Promise | Refuse | AtRisk


class Promising:
    """Tells Prefect the scheduler's answers.

    Args:
        flow_run: A run as it was read last; None: it was not.
        deadline_of: When a run is to have ended, by the worker's time; None: nobody knows.
        start: Keeps work that goes on beside.
        logger_of: Writes to the logs of a run.

    Attributes:
        on_risk: Called with a run that may miss its deadline, its name, the reason, and the deadline in Unix seconds.
        refusing: Runs whose refusal is on its way: see :class:`.Intake`.
    """

    def __init__(
        self,
        asking: Asking,
        flow_run: Callable[[str], FlowRun | None],
        deadline_of: Callable[[str], float | None],
        start: Callable[[Coroutine[Any, Any, None], str], Any],
        logger_of: Callable[[FlowRun], logging.Logger | logging.LoggerAdapter[Any]],
        refusing: set[str],
    ) -> None:
        self._asking, self._flow_run, self._deadline_of = asking, flow_run, deadline_of
        self._start, self._logger_of, self.refusing = start, logger_of, refusing
        self.on_risk: Callable[[str, str, str, float | None], None] = lambda run_id, name, reason, by: None

    def answered(self, answer: Answer) -> None:
        """Tell Prefect, as soon as it can be asked."""
        flow_run = self._flow_run(answer.job)
        if isinstance(answer, AtRisk):
            by = self._deadline_of(answer.job)
            name = flow_run.name if flow_run is not None else answer.job
            self.on_risk(answer.job, name, answer.reason, None if by is None else CLOCK.unix(by))
        if flow_run is None:
            return
        match answer:
            case Promise():
                self._start(self._promise(flow_run, answer), f"promise-{answer.job}")
            case Refuse():
                self.refusing.add(answer.job)
                self._start(self._refuse(flow_run, answer), f"refuse-{answer.job}")
            case AtRisk(_, reason):
                self._logger_of(flow_run).warning("Its deadline is at risk: %s.", reason)

    async def _promise(self, flow_run: FlowRun, answer: Promise) -> None:
        labels: Any = {PROMISED: answer.probability}
        with suppress(ObjectNotFound):
            await self._asking.persist(lambda: self._asking.label(answer.job, labels))
        by = self._deadline_of(answer.job)
        when = "" if by is None else f", {in_words(by)},"
        words = f"Its deadline{when} is promised with {answer.probability:.0%}: {answer.reason}."
        self._logger_of(flow_run).info("%s", words)

    async def _refuse(self, flow_run: FlowRun, answer: Refuse) -> None:
        words = refusal(answer)
        self._logger_of(flow_run).warning("%s", words)
        refused: State = Cancelled(name=REFUSED, message=words)
        try:
            with suppress(Abort, ObjectNotFound):  # it has ended otherwise, or was deleted
                client = self._asking.client
                await self._asking.persist(lambda: propose_state(client, refused, flow_run_id=flow_run.id))
        finally:
            self.refusing.discard(answer.job)


def promised_before(flow_run: FlowRun) -> float | None:
    """With which probability a run's deadline was promised before, by whichever worker; None: it was not.

    A label that is no probability is somebody else's, and counts for nothing.
    """
    found = (flow_run.labels or {}).get(PROMISED)
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    return float(found) if is_number and 0 <= found <= 1 else None  # type: ignore[operator,arg-type]


def refusal(answer: Refuse) -> str:
    """What the owner of a refused run reads."""
    why = f"{answer.reason[0].upper()}{answer.reason[1:]}"
    if answer.earliest is None:
        return f"The deadline cannot be promised. {why}."
    return (
        f"The deadline cannot be promised. The earliest that could be promised now is {in_words(answer.earliest)}. "
        f"{why}. Nothing was queued: submit the run again with a later deadline, or with deadline_kind=best-effort."
    )


def in_words(moment: float) -> str:
    """A moment of the worker's time as people read it, in this machine's time zone."""
    return f"{datetime.fromtimestamp(CLOCK.unix(moment)).astimezone():%Y-%m-%d %H:%M:%S %Z}"
