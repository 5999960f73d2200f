"""A run's process is gone: make sure that Prefect knows how the run ended, whatever it takes."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Container, Iterable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TypeVar, cast
from uuid import UUID

import psutil
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.exceptions import Abort, ObjectNotFound
from prefect.states import AwaitingRetry, Cancelled, Crashed, Failed, Scheduled
from prefect.utilities.engine import propose_state

from prefect_gpu.phases import within
from prefect_gpu.runtime.drivers.base import ExitReport
from prefect_gpu.runtime.launch.diagnosis import diagnose
from prefect_gpu.runtime.launch.launch import Launch
from prefect_gpu.scheduling.model.instructions import Expire
from prefect_gpu.storage.row import Outcome
from prefect_gpu.worker.endings.suspension import SUSPENDED, suspended_before
from prefect_gpu.worker.server.asking import Asking
from prefect_gpu.worker.server.server_clock import ServerClock
from prefect_gpu.worker.server.states import AWAITING_GPU, CLAIMED, GAVE_WAY, force_if_unchanged, put_back
from prefect_gpu.worker.server.unreadable import UnreadableRun, read_run

T = TypeVar("T")

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
_ANOTHERS_AGAIN_S = 30.0  # a worker that was killed counts as online for some more of its heartbeats
_LONGEST_DELAY_S = 1e9  # of a retry: thirty years. There are no dates for all that a flow may say
_OVERTAKEN_S = 0.2  # before a run is looked at again that has just come to another state
_CONTAINER_ID = 12  # letters of it in an infrastructure_pid
_LARGEST_PID = 2**22  # that Linux gives; psutil cannot ask for any number that somebody has written there
_NO_RECORD = (
    "Its worker is gone. Another worker took over, had no record of the run, and removed its "
    "containers. Workers that share a state folder take running containers over."
)
_AFTER_A_CRASH = " after a crash. "  # in the message of a run that was brought back to its queue
_NOT_BEGUN = "It had not begun: "  # in that of one whose launch was given up before Prefect saw it run


async def _nobody(_: str) -> bool:
    return False


class _OvertakenError(Exception):
    """The run came to another state as it was brought back to its queue, and is in that one: look at it again."""


async def _undisturbed(work: Callable[[], Awaitable[T]]) -> T:
    """What this gives, as soon as no other state comes between reading a run and bringing it to one."""
    while True:
        with suppress(_OvertakenError):
            return await work()


class Finalisation:
    """Brings runs whose process is gone to the state that they belong in.

    Args:
        host_prefix: What the ``infrastructure_pid`` of this machine's processes begins with.
        scope: See :meth:`prefect_gpu.runtime.drivers.base.Driver.scope`; empty: runs are such processes.
        clock: The server's.
        online: Whether another worker of the pool that has this name is online.
    """

    def __init__(
        self,
        asking: Asking,
        host_prefix: str,
        scope: str = "",
        clock: ServerClock | None = None,
        online: Callable[[str], Awaitable[bool]] = _nobody,
    ) -> None:
        self._online = online
        self._clock = clock or ServerClock()
        self.asking = asking
        self._client = asking.client
        self._logger = asking.logger
        self._host_prefix, self._scope = host_prefix, scope

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
        return await _undisturbed(
            lambda: self.asking.persist_of(run, lambda: self._finalise(run, report, api_was_away))
        )

    async def _finalise(self, run: Launch, report: ExitReport, api_was_away: bool) -> tuple[Outcome | None, str]:
        """As :meth:`finalise`.

        Raises:
            _OvertakenError: The run came to another state meanwhile.
        """
        flow_run = await read_run(self._client, UUID(run.run_id))
        if not isinstance(flow_run, UnreadableRun):
            run.record.name = flow_run.name  # a `flow_run_name` is filled in only as the run starts
        state = flow_run.state
        assert state is not None
        if state.type is StateType.CANCELLED:
            if run.stop_reason and run.stop_reason not in (state.message or ""):  # its engine does not know why
                await self._force(flow_run, Cancelled(message=run.stop_reason))
            return "cancelled", run.stop_reason or state.message or ""
        if not state.is_final() and await self._claimed_anew(flow_run.id, run.folder.name):
            return None, "started again since"
        if state.type is StateType.CANCELLING or (run.cancelling and state.type is not StateType.COMPLETED):
            message = f"Cancelled while {within(run.phase)}; its process and all that it started have ended."
            message = f"{run.stop_reason} {message}".strip()
            await self._force(flow_run, Cancelled(message=message))
            return "cancelled", message
        if isinstance(run.eviction, Expire) and (state.type in _UNDECIDED or state.type is StateType.CRASHED):
            message = f"{run.eviction.reason[0].upper()}{run.eviction.reason[1:]}."
            await self._force(flow_run, Failed(name=TIMED_OUT, message=message))
            return "failed", message
        if state.is_final():
            told = state.message or ""
            if state.type is StateType.CRASHED:
                # Its engine knows only that it was asked to stop; the driver may know of whom that was the fault.
                told = diagnose(report) if report.cause else told
                await self._retry(flow_run, told)
            return _outcome(state), told
        if state.type is StateType.PAUSED:
            return None, SUSPENDED
        if state.type is StateType.SCHEDULED and flow_run.empirical_policy.retry_type != "in_process":
            crash = (state.message or "").partition(_AFTER_A_CRASH)[2]
            if crash and await self._claimed_in(flow_run.id, run.folder.name):
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
                await self._force(flow_run, self._again(flow_run, why, pause_s))
                return None, "never began"
        concluded = await self._concluded(flow_run)
        if concluded is not None:
            # The run did report its end; a renaming by a worker that was killed meanwhile came over it.
            await put_back(self._client, flow_run.id, concluded)
            return _outcome(concluded), concluded.message or ""
        return await self._crash(flow_run, report)

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

    async def _crash(self, flow_run: FlowRun, report: ExitReport) -> tuple[Outcome, str]:
        """Let the run be crashed, or bring it back to its queue.

        Raises:
            _OvertakenError: It is not in the state any more that was read. A user may cancel it just now, and an end
                that somebody else told Prefect must not be overwritten.
        """
        message = diagnose(report)
        self._logger.warning("Run %s crashed: %s", flow_run.name, message.splitlines()[0])
        if await self._retry(flow_run, message):
            return "crashed", message
        with suppress(Abort):
            if (await propose_state(self._client, Crashed(message=message), flow_run_id=flow_run.id)).is_crashed():
                return "crashed", message
        current = (await read_run(self._client, flow_run.id)).state
        if current is not None and flow_run.state is not None and current.id != flow_run.state.id:
            raise _OvertakenError
        await self._force(flow_run, Crashed(message=message))
        return "crashed", message

    async def _retry(self, flow_run: FlowRun, crash: str) -> bool:
        """A crashed run of a flow with retries left goes back to the queue; Prefect itself retries only failures.

        It does so without being Crashed in between: that is a final state, and whoever waits for the run would take
        it for the end.
        """
        if not is_tried_again(flow_run):
            return False
        retries = flow_run.empirical_policy.retries or 0
        message = f"Try {flow_run.run_count + 1} of {retries + 1}{_AFTER_A_CRASH}{crash}"
        await self._force(flow_run, self._again(flow_run, message))
        return True

    def _again(self, flow_run: FlowRun, message: str, at_least_s: float = 0.0) -> State:
        delay = min(max(flow_run.empirical_policy.retry_delay or 0, at_least_s), _LONGEST_DELAY_S)
        return AwaitingRetry(scheduled_time=self._clock.now() + timedelta(seconds=delay), message=message)

    async def _force(self, flow_run: FlowRun, state: State) -> None:
        """Bring the run to a state. It waits again only if it still is as it was read.

        Raises:
            _OvertakenError: It is not: its user has cancelled it just now, say.
        """
        if state.type is not StateType.SCHEDULED:
            await self._client.set_flow_run_state(flow_run.id, state, force=True)
            return
        policy = flow_run.empirical_policy.model_copy(update={"retry_type": "reschedule", "resuming": False})
        await self._client.update_flow_run(flow_run.id, empirical_policy=policy)
        if flow_run.state is None or isinstance(flow_run, UnreadableRun):  # then nobody knows the state's id
            await self._client.set_flow_run_state(flow_run.id, state, force=True)
        elif not await force_if_unchanged(self._client, flow_run.id, state, flow_run.state):
            await asyncio.sleep(_OVERTAKEN_S)  # whoever goes on and on with it must not be raced
            raise _OvertakenError

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
            if await self._claimed_anew(flow_run.id, run.folder.name):
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
                await self._force(flow_run, waits)
            return await read_run(self._client, flow_run.id)

        try:
            return await _undisturbed(lambda: self.asking.persist_of(run, work))
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
            if await self._ran(flow_run.id, run.folder.name):
                return flow_run
            if state.type is StateType.CANCELLING:
                await self._force(flow_run, Cancelled(message="Cancelled before it started."))
            elif state.type is StateType.PENDING and await self._claimed_in(flow_run.id, run.folder.name):
                await self._give_back(flow_run, "The worker that had claimed it is gone; the run had not begun.")
            return None

        try:
            flow_run = await _undisturbed(lambda: self.asking.persist_of(run, begun))
            if flow_run is None or flow_run.state is None:
                return None
            outcome, message = await self._brought_to_its_end(run, ExitReport(returncode=None), api_was_away=False)
        except ObjectNotFound:
            return None
        ended_at = self._clock.of(flow_run.state.timestamp) if flow_run.state.is_final() else None
        return None if outcome is None else (outcome, message, ended_at)

    async def return_claim(self, seen: FlowRun, launched: Container[str]) -> bool:
        """Return a run to its queue that this worker has claimed and does not launch.

        Args:
            seen: As it was read, pending.
            launched: The runs that are launched, or about to be.

        Returns:
            Whether it waits again. It does not if it has come to another state, or is launched by now.

        Raises:
            ObjectNotFound: It was deleted.
        """
        flow_run = await read_run(self._client, seen.id)
        assert seen.state is not None
        if flow_run.state is None or flow_run.state.id != seen.state.id or str(seen.id) in launched:
            return False
        with suppress(_OvertakenError):
            await self._give_back(flow_run, "Its claim came to nothing; the run had not begun.")
            return True
        return False

    async def _give_back(self, flow_run: FlowRun, message: str) -> None:
        due = flow_run.next_scheduled_start_time or flow_run.expected_start_time
        await self._force(flow_run, Scheduled(scheduled_time=due, message=message))

    async def _claimed_in(self, run_id: UUID, words: str) -> bool:
        """Whether these words are part of the last claim of the run."""
        return words in await self._last_claim(run_id)

    async def _claimed_anew(self, run_id: UUID, folder: str) -> bool:
        """Whether the run was claimed for another launch after that of this folder.

        Then that launch was settled. Its worker was killed before it could forget it, and the run is another's by now.
        """
        return claimed_for(await self._last_claim(run_id)) not in ("", folder)

    async def _last_claim(self, run_id: UUID) -> str:
        history = await self._client.read_flow_run_states(run_id)
        return next((s.message for s in reversed(history) if s.type is StateType.PENDING and s.message), "")

    async def _is_anothers(self, run_id: UUID) -> bool:
        """Whether another worker that is online has claimed the run: it knows what becomes of the process.

        Machines may have one name, and containers, which have processes of their own, the name of their machine. So
        that there is no such process here does not mean that there is none.
        """
        worker = (await self._last_claim(run_id)).removeprefix(f"{CLAIMED} ").rpartition(" (")[0]
        return bool(worker) and await self._online(worker)

    async def _ran(self, run_id: UUID, folder: str) -> bool:
        """Whether the run has run since its last claim, which was for that folder."""
        ran = False
        for state in reversed(await self._client.read_flow_run_states(run_id)):
            if state.type is StateType.PENDING and state.message:
                return ran and folder in state.message
            ran = ran or state.type is StateType.RUNNING
        return False

    async def cancel_if_ours(self, flow_run: FlowRun) -> None:
        """Finish a cancellation that no process is left to finish: it never had one, or ours is gone.

        A run in a container (``node:container``) is ours if it was claimed for our scope, and a container that nobody
        follows was removed.
        """
        if not flow_run.infrastructure_pid or (
            await self._claimed_in(flow_run.id, _for_scope(self._scope))
            if self._scope
            else self._gone(flow_run) and not await self._is_anothers(flow_run.id)
        ):
            await self._force(flow_run, Cancelled(message="Cancelled; no process of it was running."))

    async def bury_orphans(self, flow_runs: Iterable[FlowRun], ours: Collection[str]) -> None:
        """Runs that Prefect believes to run here, of which neither record nor process is left.

        Here is this machine, or an Engine or a Swarm that we lead now: then these are the runs that an earlier leader
        claimed for it, and everything that is not ours must have been removed there before. What had not begun goes
        back to its queue; what ran is tried again if it has retries left, and else it has crashed. A process of a run
        that another worker has claimed is that one's, until it is not online any more.

        Args:
            flow_runs: Those that may be such runs, as they were read at some time.
            ours: The runs that are launched here. It is looked at for each run anew: they start and end meanwhile.
        """
        left = [one.id for one in flow_runs if str(one.id) not in ours and self._may_be_orphan(one)]
        while left:
            anothers = []
            for run_id in left:
                with suppress(ObjectNotFound):
                    bury = partial(self._bury, run_id, ours)
                    if not await self.asking.persist(partial(_undisturbed, bury)):
                        anothers.append(run_id)
            left = anothers
            if left:
                await asyncio.sleep(_ANOTHERS_AGAIN_S)

    async def _bury(self, run_id: UUID, ours: Collection[str]) -> bool:
        """Returns whether it is settled: it is not while another worker may do that."""
        claimed = not self._scope or await self._claimed_in(run_id, _for_scope(self._scope))
        # One of ours may have ended and been finalised since the run was read, so that it looked like an orphan.
        flow_run = await read_run(self._client, run_id)
        if str(run_id) in ours or not claimed or not self._may_be_orphan(flow_run):
            return True
        if not self._scope and await self._is_anothers(run_id):
            return False
        if flow_run.state_type is StateType.PENDING:
            await self._give_back(flow_run, "The worker that had claimed it is gone, and no container of it is left.")
        elif flow_run.state_type is StateType.CANCELLING:
            await self._force(flow_run, Cancelled(message="Cancelled; no process of it was running."))
        else:
            await self._crash(flow_run, ExitReport(returncode=None, cause=_NO_RECORD if self._scope else ""))
        return True

    def _may_be_orphan(self, flow_run: FlowRun) -> bool:
        """Whether Prefect believes that the run runs, and no process of this machine shows that it does.

        A pending run does not count on this machine: its pid is that of an earlier try, and it may be on its way under
        another worker.
        """
        types = {StateType.RUNNING, StateType.CANCELLING} | ({StateType.PENDING} if self._scope else set())
        believed = flow_run.state is not None and flow_run.state.type in types
        return believed and (bool(self._scope) or self._gone(flow_run))

    def _gone(self, flow_run: FlowRun) -> bool:
        """Whether it was a process of this machine and is no more.

        A node may be called as this machine is; but the twelve letters of a container's id are too many for a pid.
        """
        pid = flow_run.infrastructure_pid or ""
        number = pid.removeprefix(self._host_prefix)
        ours = pid.startswith(self._host_prefix) and number.isdecimal() and len(number) < _CONTAINER_ID
        return ours and (int(number) > _LARGEST_PID or not psutil.pid_exists(int(number)))


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


def is_tried_again(flow_run: FlowRun) -> bool:
    """Whether a run whose process crashes now has a retry left."""
    return 0 < flow_run.run_count <= (flow_run.empirical_policy.retries or 0)


def claim_words(worker: str, folder: str, scope: str = "") -> str:
    """What the state of a run says that a worker has claimed.

    Args:
        folder: Name of the launch's folder.
        scope: See :meth:`prefect_gpu.runtime.drivers.base.Driver.scope`; empty for a process of this machine.
    """
    return f"{CLAIMED} {worker} ({folder}" + (_for_scope(scope) if scope else ")")


def claimed_for(message: str) -> str:
    """The folder that the words of a claim name; empty: they are no such words.

    Example:
        >>> claimed_for(claim_words("gpu (1)", "the-launch-1", "engine-7"))
        'the-launch-1'
    """
    return message.rpartition(" (")[2].partition(")")[0] if message.startswith(CLAIMED) else ""


def _for_scope(scope: str) -> str:
    return f") for {scope}."
