"""What the scheduler asks of runs that run already: their gate, their cores, their share, their end.

Each change is written to the run's record before it is carried out: a new worker makes up for what its predecessor may
not have come to. All of it may be done twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from prefect_gpu.runtime.channel import ChannelServer
from prefect_gpu.runtime.devices.fleet import Fleet
from prefect_gpu.runtime.launch.launch import GATE_OPENED, Adjustment, Follower, Launch
from prefect_gpu.scheduling.model.instructions import Finish, OpenGate, SetCores, SetShare
from prefect_gpu.training import protocol

# Shares of the processor beside a run that trains. Whoever prepares is awaited by a device; whoever saves, by nobody
# but its user: it comes last, but only while somebody prepares.
ASIDE_WEIGHT = 0.25
LAST_WEIGHT = 1 / 16
_AFTER_S = 0.05  # a change of priority may take the kernel a tenth of a second: whoever trains next is told before


class Adjuster(Follower):
    """Carries out changes of running runs.

    Args:
        channel: Reaches the runs.
        fleet: Their devices.
        launches: All that there are, by run.
        save: Writes a run's record.
        clock: Unix seconds.
    """

    def __init__(
        self,
        channel: ChannelServer,
        fleet: Fleet,
        launches: Mapping[str, Launch],
        save: Callable[[Launch], None],
        clock: Callable[[], float],
    ) -> None:
        self._channel = channel
        self._fleet = fleet
        self._launches = launches
        self._save = save
        self._clock = clock
        self._tasks: set[asyncio.Task[bool]] = set()
        self._ranking: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Change no priority any more."""
        if self._ranking is not None:
            self._ranking.cancel()

    def carry_out(self, run: Launch, change: Adjustment) -> None:
        """Begin a change; several of one run reach it in the order in which they were begun."""
        match change:
            case OpenGate():
                self._pass_gate(run)
            case SetCores(_, cpus):
                run.record.placement = replace(run.record.placement, cpus=cpus)
                self._save(run)
                self.bind(run)
            case SetShare(_, weight):
                run.weighed(weight, self._clock())
                self._save(run)
                self.weigh(run)
            case Finish(_, reason):
                self._send(run, protocol.STOP, {"reason": reason})

    def started(self, launch: Launch) -> None:
        """See :class:`.Follower`. Whoever prepares while another one trains must not be in its way."""
        if launch.handle is not None and launch.record.behind is not None:
            launch.handle.set_priority(ASIDE_WEIGHT)
        elif launch.record.weight != 1.0:
            self.weigh(launch)
        self.rank()

    def reported(self, launch: Launch, kind: str, at: float, data: dict[str, Any]) -> tuple[()]:
        """See :class:`.Follower`."""
        if kind == protocol.PHASE:
            if launch.phase == protocol.TRAINING:
                self._trains(launch)
            self.rank()
            self._save(launch)
        return ()

    def released(self, launch: Launch, at: float, carries_on: bool) -> None:
        """See :class:`.Follower`."""
        self.rank()

    def make_up(self, run: Launch, *, behind: str | None) -> None:
        """Do what an earlier worker may not have come to, now that the scheduler has looked at an adopted run.

        Args:
            behind: The run that it still waits for.
        """
        if run.record.gated and behind is None:
            if run.record.behind is not None:
                run.record.behind, run.record.times[GATE_OPENED] = None, self._clock()
            self.open_gate(run)
        if run.record.weight != 1.0:
            # The scheduler has begun anew: if the run is still to give way, it will say so. Else it may pause for ever.
            run.weighed(1.0, self._clock())
            self._save(run)
            self.weigh(run)
        elif run.handle is not None and not run.record.placement.devices:
            run.handle.set_duty(1.0)  # whoever throttled it may have been killed with the worker

    def _trains(self, run: Launch) -> None:
        """The run trains. If its gate was closed, it was cut off for so long that it went on by itself."""
        if run.record.behind is not None:
            self._pass_gate(run)
        elif run.saving_share is not None:  # it has saved before
            self._raise(run)

    def rank(self) -> None:
        """Somebody has begun or ended to prepare or to save: soon, those who save get their share of the processor."""
        if self._ranking is None:
            self._ranking = asyncio.get_running_loop().call_later(_AFTER_S, self._rank)

    def _rank(self) -> None:
        self._ranking = None
        runs = self._launches.values()
        if len(runs) < 2:
            return  # a saver's share matters beside others only
        prepares = any(run.record.behind is not None and not run.waiting for run in runs)
        share = LAST_WEIGHT if prepares else ASIDE_WEIGHT
        for run in runs:
            weight = min(run.record.weight or 1.0, share)
            if run.phase == protocol.SAVING and run.handle is not None and run.saving_share != weight:
                run.saving_share = weight
                run.handle.set_priority(weight)

    def _pass_gate(self, run: Launch) -> None:
        run.record.behind = None
        run.record.times[GATE_OPENED] = self._clock()
        self._save(run)
        self.open_gate(run)

    def open_gate(self, run: Launch) -> None:
        """The run may train: at once, and with the full share of the processor."""
        # Not admitted to the channel yet, it is launched without a gate; see the controller.
        sent = self._send(run, protocol.OPEN_GATE, {})
        # Only then: the kernel may take a tenth of a second to change a priority, and the device would be idle.
        sent.add_done_callback(lambda _: self._raise(run))

    def _raise(self, run: Launch) -> None:
        if run.handle is not None and run.record.behind is None:
            run.saving_share = None
            run.handle.set_priority(run.record.weight or 1.0)

    def bind(self, run: Launch) -> None:
        """Let the run have the cores that its record says: everything that it has started, and its libraries."""
        cpus = run.record.placement.cpus
        if run.handle is not None and cpus:
            run.handle.bind(cpus)
        self._send(run, protocol.USE_CPUS, {"cpus": list(cpus)})

    def weigh(self, run: Launch) -> None:
        """Give the run its share. The processor is shared out by priority, a GPU by pauses between steps.

        A priority leaves nothing idle, but it does not reach a GPU: its kernels take turns whatever the host does. A
        run without a device is slowed down for what it does to the node's memory: it really computes less, then.
        """
        weight = run.record.weight
        if not run.record.placement.devices and run.handle is not None:
            run.handle.set_priority(weight or 1.0)
            run.handle.set_duty(weight)
            return
        lowered = run.handle is not None and run.handle.set_priority(weight if weight > 0.0 else 1.0)
        on_gpu = self._fleet.on_gpu(run.record.placement)
        paced = weight if weight == 0.0 or on_gpu or not lowered else 1.0
        self._send(run, protocol.SET_SHARE, {"weight": paced})

    def _send(self, run: Launch, kind: str, data: dict[str, object]) -> asyncio.Task[bool]:
        task = asyncio.get_running_loop().create_task(self._channel.instruct(run.run_id, kind, data))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
