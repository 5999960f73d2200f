"""The worker of a ``gpu`` work pool, as Prefect knows it. What it does lies in ``session``.

Training environments import this, too, to submit runs. They have only what ``pip install prefect-gpu`` brings, so what
serving needs is imported when a worker starts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio.abc
import httpx
from prefect.exceptions import InfrastructureNotAvailable, InfrastructureNotFound
from prefect.workers.base import BaseWorker
from pydantic import ValidationError

from prefect_gpu.extras import MissingExtra, must_have
from prefect_gpu.links import DOCUMENTATION, LOGO_OF_PROCESSES
from prefect_gpu.prefect_client import ask_again_soon
from prefect_gpu.runtime.disk.private import close_to_others
from prefect_gpu.settings import GpuSettings
from prefect_gpu.units import plural
from prefect_gpu.worker.configuration import GpuJobConfiguration, GpuVariables, GpuWorkerResult
from prefect_gpu.worker.health import Health
from prefect_gpu.worker.queue.adhoc import submit_adhoc_run
from prefect_gpu.worker.server.answers import believe_only_prefect
from prefect_gpu.worker.server.asking import NO_ANSWERS
from prefect_gpu.worker.server.compatible import must_fit

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.client.schemas.objects import FlowRun

    from prefect_gpu.worker.session import PoolSession


class GpuWorker(BaseWorker[GpuJobConfiguration, GpuVariables, GpuWorkerResult]):
    """Runs flows on this machine's GPUs: ``prefect worker start --pool gpus``."""

    type = "gpu"
    job_configuration = GpuJobConfiguration
    job_configuration_variables = GpuVariables
    _display_name = "GPU"
    _documentation_url = DOCUMENTATION
    _logo_url = LOGO_OF_PROCESSES
    _description = (
        "Run training flows on GPUs: each run is given devices and cores, started warm, followed through its "
        "phases and losses, and remembered."
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._session: PoolSession | None = None
        self._run_once = False
        self._serving: asyncio.Task[None] | None = None
        self._printer: Callable[..., None] = print
        self._refusal: Exception | None = None
        self._umask = -1
        self._has_served = False
        self._said = ""  # why it cannot serve now
        self._health = Health()

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(
        self, run_once: bool = False, with_healthcheck: bool = False, printer: Callable[..., None] = print
    ) -> None:
        """Serve the pool until told to stop.

        The first SIGTERM or SIGINT drains: no run is started any more, and the worker ends when the running ones
        have ended. A second one leaves at once: running trainings go on, and the next worker takes them over.

        Raises:
            SystemExit: Packages are missing, Prefect is of a version that cannot be used, the settings or the blocks
                that they name are wrong, or the engine cannot be reached; the message says what to do.
        """
        self._run_once = run_once
        try:
            must_have("worker", "Serving a pool")
        except MissingExtra as error:
            raise SystemExit(f"The worker cannot start: {error}") from None
        from prefect_gpu.storage.engine import HistoryError
        from prefect_gpu.worker.session import PoolSession
        from prefect_gpu.worker.setup_error import unusable

        try:
            must_fit(self)
            settings = GpuSettings()
            try:
                self._umask = close_to_others(settings.resolved_state_dir) if settings.private else -1
                session = PoolSession(self, settings, printer, self._umask, self._health.looked)
            except OSError as error:
                raise unusable(settings.resolved_state_dir, error) from error
        except (ValidationError, HistoryError, ValueError) as error:
            raise SystemExit(f"The worker cannot start: {_one_line(error)}") from None
        self._session = session
        self._printer = printer
        self._serving = asyncio.ensure_future(super().start(run_once, with_healthcheck, printer))
        turning = asyncio.ensure_future(self._health.turn())
        with _Signals(lambda: self._on_signal(printer)):
            try:
                await self._serving
            except asyncio.CancelledError:
                if self._refusal is not None:
                    raise SystemExit(f"The worker cannot start: {self._refusal}") from None
                if not session.draining:
                    raise
                printer(f"Worker {self.name!r} stopped!")
            finally:
                self._serving.cancel()
                turning.cancel()
                await asyncio.gather(self._serving, turning, return_exceptions=True)
                self._session = None
                if self._umask != -1:
                    os.umask(self._umask)

    def _on_signal(self, printer: Callable[..., None]) -> None:
        session, serving = self._session, self._serving
        if session is None or serving is None:
            return
        if session.draining:
            printer("Leaving now. Running trainings go on; the next worker takes them over.")
            serving.cancel()
            return
        count = session.begin_drain(on_drained=serving.cancel)
        if count:
            printer(
                f"Draining: {plural(count, 'run')} to finish, and no new run starts. After a second "
                "signal the worker leaves at once: the trainings go on, and the next worker takes them over."
            )

    async def setup(self) -> None:
        """Once the worker has begun, an answer that makes no sense is none; a locked database is asked again soon."""
        await super().setup()
        believe_only_prefect(self.client, self._logger)
        ask_again_soon(self.client)

    async def teardown(self, *exc_info: Any) -> None:
        """Let go of everything but the running processes."""
        if self._session is not None:
            await self._session.close()
        await super().teardown(*exc_info)

    async def sync_with_backend(self) -> None:
        """Send a heartbeat and read the pool. Once the worker has begun, whatever Prefect answers is waited out."""
        try:
            await super().sync_with_backend()
        except NO_ANSWERS as error:
            if not self.is_setup:
                raise
            self._logger.debug("No heartbeat could be sent: %r", error)

    async def _setup_cancellation_observer(self) -> None:
        """Cancellations are learned from the session's own event stream."""

    # -- runs -----------------------------------------------------------------------------------------------------

    async def get_and_submit_flow_runs(self) -> list[FlowRun]:
        """One look at the whole pool: the fallback for events that were missed.

        Returns:
            The runs that wait.
        """
        self._health.looked()
        session = self._session
        if session is None or not self._has_successfully_synced:
            return []
        from prefect_gpu.worker.session import REFUSALS

        try:
            if session.lost:
                session = await self._stand_by_again(session)
            if not session.is_open:
                await session.open()
            waiting = await session.look()
        except REFUSALS as error:
            if self._has_served:  # it was right before, and may be so again
                self._say_once(f"The pool cannot be served now: {error}")
                return []
            self._refusal = error
            if self._serving is not None:
                self._serving.cancel()
            return []
        except NO_ANSWERS as error:
            if self._run_once and not isinstance(error, httpx.TransportError):
                raise
            # Prefect's own loop would end the worker after some of these; trainings are better off with it.
            self._say_once(f"Prefect does not answer as it should ({error!r}); the worker keeps trying.")
            return []
        except Exception:
            if not self._has_served:
                raise
            self._logger.exception("The pool could not be looked at; the worker keeps trying.")
            return []
        if self._said:
            self._said = ""
            self._logger.info("Prefect answers again.")
        self._has_served = True
        if self._run_once:
            await session.wait_finished()
        return waiting

    async def _stand_by_again(self, lost: PoolSession) -> PoolSession:
        """Another worker may lead: a new session waits for its turn. What was to be drained is not ours any more."""
        from prefect_gpu.worker.session import PoolSession

        session = PoolSession(self, GpuSettings(), self._printer, self._umask, self._health.looked)
        await lost.close()
        if lost.draining and self._serving is not None:
            self._serving.cancel()
        session.follow(lost)
        self._session = session
        return session

    def _say_once(self, words: str) -> None:
        """Until the worker can serve again."""
        level = logging.DEBUG if self._said else logging.WARNING
        self._said = self._said or words
        self._logger.log(level, "%s", words)

    def is_worker_still_polling(self, query_interval_seconds: float) -> bool:
        """Whether no restart would help. Prefect's health check asks it, in a thread of its own."""
        wrong = [] if self._session is None else self._health.wrong(self._session, query_interval_seconds)
        for what in wrong:
            self._logger.error("The worker is not well and should be restarted: %s", what)
        return not wrong

    async def run(
        self,
        flow_run: FlowRun,
        configuration: GpuJobConfiguration,
        task_status: anyio.abc.TaskStatus[int] | None = None,
    ) -> GpuWorkerResult:
        """Prefect's way to run a flow run at once; a GPU run starts when the scheduler grants it a device.

        Raises:
            RuntimeError: Always. Submit the run to the work pool; its worker takes it from there.
        """
        raise RuntimeError(
            f"Flow run {flow_run.name!r} cannot skip the queue of its pool: schedule it in work pool "
            f"{self._work_pool_name!r}, and the worker starts it when a device is free."
        )

    async def _submit_adhoc_run(
        self,
        flow: Flow[..., Any],
        parameters: dict[str, Any] | None = None,
        job_variables: dict[str, Any] | None = None,
        task_status: anyio.abc.TaskStatus[FlowRun] | None = None,
        flow_run: FlowRun | None = None,
    ) -> None:
        await submit_adhoc_run(self, flow, parameters, job_variables, task_status, flow_run)

    async def kill_infrastructure(
        self, infrastructure_pid: str, configuration: GpuJobConfiguration, grace_seconds: int = 30
    ) -> None:
        """Stop a run's process and everything it started.

        Args:
            infrastructure_pid: ``host:pid`` of a process, ``node:container`` of a container.
            configuration: Of the run that is meant, if it was prepared for one: another's process is left alone.
            grace_seconds: What the process has to end by itself.

        Raises:
            InfrastructureNotFound: There is no such process (any more).
            InfrastructureNotAvailable: It runs under another worker.
        """
        if self._session is None or not self._session.is_open:
            raise InfrastructureNotAvailable(f"{infrastructure_pid}: this worker does not serve its pool.")
        host, run_id = self._session.host, configuration.env.get("PREFECT__FLOW_RUN_ID") or ""
        if not host.is_here(infrastructure_pid):
            raise InfrastructureNotAvailable(f"{infrastructure_pid} runs on another machine.")
        if await host.kill(infrastructure_pid, grace_seconds, run_id):
            return
        if host.is_anothers(infrastructure_pid, run_id):
            raise InfrastructureNotAvailable(f"{infrastructure_pid} runs under another worker of this machine.")
        raise InfrastructureNotFound(f"{infrastructure_pid} is not running.")


class _Signals:
    """SIGTERM and SIGINT as a callback while the worker serves; the handlers before are put back afterwards."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.getsignal(number)
            with suppress(NotImplementedError):
                loop.add_signal_handler(number, self._callback)

    def __exit__(self, *exc_info: object) -> None:
        loop = asyncio.get_running_loop()
        for number, handler in self._before.items():
            with suppress(NotImplementedError):
                loop.remove_signal_handler(number)
            signal.signal(number, handler)


def _one_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(
            f"PREFECT_INTEGRATIONS_GPU_{str(problem['loc'][0]).upper()}={problem['input']!r}: {problem['msg']}"
            for problem in error.errors()
        )
    return str(error)
