"""A run's process is gone: make sure that Prefect knows how the run ended, whatever it takes."""

from __future__ import annotations

import signal
from collections import Counter
from typing import cast
from uuid import UUID

from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Failed, Scheduled

from prefect_gpu.phases import within
from prefect_gpu.runtime.drivers.base import ExitReport
from prefect_gpu.runtime.launch.diagnosis import diagnose
from prefect_gpu.runtime.launch.launch import Launch
from prefect_gpu.scheduling.model.instructions import Expire
from prefect_gpu.storage.row import Outcome
from prefect_gpu.worker.endings.claims import Claims
from prefect_gpu.worker.endings.settling import AFTER_A_CRASH, Settling, undisturbed
from prefect_gpu.worker.endings.suspension import SUSPENDED, suspended_before
from prefect_gpu.worker.server.asking import Asking
from prefect_gpu.worker.server.server_clock import ServerClock
from prefect_gpu.worker.server.states import AWAITING_GPU, GAVE_WAY, put_back
from prefect_gpu.worker.server.unreadable import UnreadableRun, read_run

TIMED_OUT = "TimedOut"
"""The name of the state of a run that has held its devices for as long as it may: Prefect's own, of its timeouts."""

_OUT_OF_REACH = "Prefect was out of reach when the run started"
_ENDED_BEFORE = "Its process was ended from outside before the flow began"
# What the end of a run's output has when it could not reach Prefect, or a gateway answered instead. It is the only
# witness when the worker that launched the run is gone; a module that fails on a connection of its own says the
# same, so restarts are counted.
_SIGNS_OF_ABSENCE = (
    *("ConnectError", "ConnectTimeout", "Connection refused", "All connection attempts failed"),
    *("prefect.exceptions.PrefectHTTPStatusError", "prefect.exceptions.ObjectNotFound"),
)
_NODE_LOST = "Its node was lost before it began"
_MOST_RESTARTS = 5  # for reasons that may be the run's own; the loss of a node never is
_UNDECIDED = (StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING)
_FIRST_RESTART_S = 1.0  # then twice as long each time: a Swarm may take ten seconds to see that a node is lost
_LONGEST_RESTART_S = 60.0
_NOT_BEGUN = "It had not begun: "  # in the message of one whose launch was given up before Prefect saw it run


class Finalisation:
    """Brings runs whose process is gone to the state that they belong in.

    Args:
        clock: The server's.
    """

    def __init__(self, asking: Asking, clock: ServerClock | None = None) -> None:
        self._clock = clock or ServerClock()
        self._asking, self._client = asking, asking.client
        self._claims = Claims(asking.client)
        self._settling = Settling(asking.client, self._clock, asking.logger)

    async def finalise(self, run: Launch, report: ExitReport, *, api_was_away: bool) -> tuple[Outcome | None, str]:
        """See :meth:`prefect_gpu.runtime.controller.Host.finalise`.

        Args:
            run: The launch whose process is gone.
            report: How it ended.
            api_was_away: Whether Prefect was out of reach at some time since the launch.

        Returns:
            (outcome, message); the outcome is None if the run never began and waits again.
        """
        try:
            return await self._brought_to_its_end(run, report, api_was_away=api_was_away)
        except ObjectNotFound:
            return "cancelled", "The flow run was deleted while it ran."

    async def _brought_to_its_end(
        self, run: Launch, report: ExitReport, *, api_was_away: bool
    ) -> tuple[Outcome | None, str]:
        return await undisturbed(
            lambda: self._asking.persist_of(run, lambda: self._finalise(run, report, api_was_away))
        )

    async def _finalise(self, run: Launch, report: ExitReport, api_was_away: bool) -> tuple[Outcome | None, str]:
        """As :meth:`finalise`.

        Raises:
            OvertakenError: The run came to another state meanwhile.
        """
        flow_run = await read_run(self._client, UUID(run.run_id))
        if not isinstance(flow_run, UnreadableRun):
            run.record.name = flow_run.name  # a `flow_run_name` is filled in only as the run starts
        state = flow_run.state
        assert state is not None
        if state.type is StateType.CANCELLED:
            if run.stop_reason and run.stop_reason not in (state.message or ""):  # its engine does not know why
                await self._settling.force(flow_run, Cancelled(message=run.stop_reason))
            return "cancelled", run.stop_reason or state.message or ""
        if not state.is_final() and await self._claims.is_anew(flow_run.id, run.folder.name):
            return None, "started again since"
        if state.type is StateType.CANCELLING or (run.cancelling and state.type is not StateType.COMPLETED):
            message = f"Cancelled while {within(run.phase)}; its process and all that it started have ended."
            message = f"{run.stop_reason} {message}".strip()
            await self._settling.force(flow_run, Cancelled(message=message))
            return "cancelled", message
        if isinstance(run.eviction, Expire) and (state.type in _UNDECIDED or state.type is StateType.CRASHED):
            message = f"{run.eviction.reason[0].upper()}{run.eviction.reason[1:]}."
            await self._settling.force(flow_run, Failed(name=TIMED_OUT, message=message))
            return "failed", message
        if state.is_final():
            told = state.message or ""
            if state.type is StateType.CRASHED:
                # Its engine knows only that it was asked to stop; the driver may know of whom that was the fault.
                told = diagnose(report) if report.cause else told
                await self._settling.retry(flow_run, told)
            return _outcome(state), told
        if state.type is StateType.PAUSED:
            return None, SUSPENDED
        if state.type is StateType.SCHEDULED and flow_run.empirical_policy.retry_type != "in_process":
            crash = (state.message or "").partition(AFTER_A_CRASH)[2]
            if crash and await self._claims.last_has(flow_run.id, run.folder.name):
                # Brought back before, by us or by a worker that was killed; the answer or the history row was lost.
                return "crashed", crash
            return None, "waits again"
        if state.type is StateType.PENDING and report.returncode != 0:
            # It could not even report that it runs, so nothing of the flow's function has.
            why = _why_it_never_began(run, report, api_was_away)
            restarts = await self._restarts(flow_run) if why else Counter()
            lost = restarts[_NODE_LOST]
            if why == _NODE_LOST or (why and restarts.total() - lost < _MOST_RESTARTS):
                pause_s = min(_LONGEST_RESTART_S, _FIRST_RESTART_S * 2 ** min(restarts.total(), 10))
                await self._settling.again(flow_run, why, pause_s)
                return None, "never began"
        concluded = await self._concluded(flow_run)
        if concluded is not None:
            # The run did report its end; a renaming by a worker that was killed meanwhile came over it.
            await put_back(self._client, flow_run.id, concluded)
            return _outcome(concluded), concluded.message or ""
        return "crashed", await self._settling.crash(flow_run, report)

    async def _concluded(self, flow_run: FlowRun) -> State | None:
        """The final state that the run's last try reported, if it did."""
        concluded = None
        for state in await self._client.read_flow_run_states(flow_run.id):
            if state.type is StateType.PENDING:
                concluded = None
            elif state.is_final():
                concluded = state
        return concluded

    async def _restarts(self, flow_run: FlowRun) -> Counter[str]:
        """How often it was started again before it began, by reason."""
        history = await self._client.read_flow_run_states(flow_run.id)
        reasons = (_OUT_OF_REACH, _NODE_LOST, _ENDED_BEFORE)
        return Counter(state.message for state in history if state.message in reasons)

    async def give_way(self, run: Launch, reason: str) -> FlowRun | None:
        """Let a run that was stopped wait again, from where it was. Its retries are left to it: this is none.

        Returns:
            The run as it waits; None if it is over, or about to be.
        """

        retries: int | None = None

        async def work() -> FlowRun | None:
            nonlocal retries
            flow_run = await read_run(self._client, UUID(run.run_id))
            state = flow_run.state
            # Its engine may have had the time to say what the signal that stopped it looks like from inside: a crash.
            stopped = state is not None and state.type is StateType.CRASHED and bool(run.record.leaving)
            suspension = suspended_before(await self._client.read_flow_run_states(flow_run.id)) if stopped else None
            if suspension is not None:
                await put_back(self._client, flow_run.id, suspension)
                return None
            open_types = (StateType.PENDING, StateType.RUNNING, StateType.SCHEDULED)
            if state is None or not (stopped or state.type in open_types):
                return None
            if await self._claims.is_anew(flow_run.id, run.folder.name):
                return None
            if state.type is not StateType.SCHEDULED:
                policy = flow_run.empirical_policy
                if policy.retries and flow_run.run_count:  # Prefect counts each start as a try
                    retries = policy.retries + 1 if retries is None else retries  # once, however often this is tried
                    flow_run.empirical_policy = policy.model_copy(update={"retries": retries})
                from_where = f" It carries on from step {run.saved_step}." if run.saved_step else ""
                began = stopped or state.type is StateType.RUNNING
                waits: State = Scheduled(  # one that had not begun waits as one does that nobody has looked at
                    scheduled_time=self._clock.now(),
                    name=AWAITING_GPU if began else None,
                    message=f"{GAVE_WAY if began else _NOT_BEGUN}{reason}.{from_where}",
                )
                await self._settling.force(flow_run, waits)
            return await read_run(self._client, flow_run.id)

        try:
            return await undisturbed(lambda: self._asking.persist_of(run, work))
        except ObjectNotFound:
            return None

    async def give_back(self, run: Launch) -> tuple[Outcome, str, float | None] | None:
        """Return a run to its queue that an earlier worker claimed but never started.

        If Prefect has seen it run, it was started: what its process and its supervisor wrote was lost with the power.

        Returns:
            (outcome, message, when it ended in the worker's time, None if nobody knows) of a run that had begun; None
            if it waits again.
        """

        async def begun() -> FlowRun | None:
            """The run, if this launch of it ran; else it waits again."""
            flow_run = await read_run(self._client, UUID(run.run_id))
            state = flow_run.state
            if state is None:
                return None
            if await self._claims.began(flow_run.id, run.folder.name):
                return flow_run
            if state.type is StateType.CANCELLING:
                await self._settling.force(flow_run, Cancelled(message="Cancelled before it started."))
            elif state.type is StateType.PENDING and await self._claims.last_has(flow_run.id, run.folder.name):
                words = "The worker that had claimed it is gone; the run had not begun."
                await self._settling.give_back(flow_run, words)
            return None

        try:
            flow_run = await undisturbed(lambda: self._asking.persist_of(run, begun))
            if flow_run is None or flow_run.state is None:
                return None
            outcome, message = await self._brought_to_its_end(run, ExitReport(returncode=None), api_was_away=False)
        except ObjectNotFound:
            return None
        ended_at = self._clock.of(flow_run.state.timestamp) if flow_run.state.is_final() else None
        return None if outcome is None else (outcome, message, ended_at)


def _outcome(state: State) -> Outcome:
    """What the history calls a final state."""
    return cast(Outcome, state.type.value.lower())


def _why_it_never_began(run: Launch, report: ExitReport, api_was_away: bool) -> str:
    """Why a run that was launched, but never reported that it runs, may simply be started again; empty: it may not."""
    if report.lost:
        return _NODE_LOST
    if report.returncode is not None and (
        api_was_away or any(sign in line for sign in _SIGNS_OF_ABSENCE for line in report.tail)
    ):
        return _OUT_OF_REACH
    killed = report.returncode in (-signal.SIGKILL, -signal.SIGTERM) and not report.cause  # not by its memory limit
    return _ENDED_BEFORE if run.handle is not None and (killed or report.returncode is None) else ""
