"""From a grant to a process: claim the run in Prefect, fill in its configuration, say how to start it."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import Abort, ObjectNotFound, Pause
from prefect.states import Pending
from prefect.utilities.engine import propose_state
from prefect.workers.base import BaseWorker
from pydantic import ValidationError

from prefect_gpu.request import explain, said_in_vain
from prefect_gpu.runtime.clock import CLOCK
from prefect_gpu.runtime.drivers.base import LaunchError, LaunchSpec
from prefect_gpu.runtime.host import NotOursError
from prefect_gpu.runtime.launch.inherited import inherited, is_passed
from prefect_gpu.runtime.launch.launch import Launch
from prefect_gpu.runtime.launch.records import RunRecord
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.settings import GpuSettings
from prefect_gpu.training import protocol
from prefect_gpu.worker.configuration import GpuJobConfiguration, container_of, merge_job_variables
from prefect_gpu.worker.endings.claims import claim_words
from prefect_gpu.worker.endings.what_it_took import taken_before
from prefect_gpu.worker.launching.permitted import permitted
from prefect_gpu.worker.launching.run_credentials import RunCredentials
from prefect_gpu.worker.nodes.infrastructure import passed_patterns, without_this_machine
from prefect_gpu.worker.nodes.reach import seen_from_outside
from prefect_gpu.worker.queue.intake import Intake
from prefect_gpu.worker.server.asking import Asking
from prefect_gpu.worker.server.control import CONTROL_VARIABLES, EngineControl
from prefect_gpu.worker.server.pool import PoolView
from prefect_gpu.worker.server.states import claim_was_clean
from prefect_gpu.worker.telling.launch_events import Told

_ENGINE = shlex.join([sys.executable, "-m", "prefect.engine"])
_INSTANCE = (sys.executable, "-m", "prefect_gpu.instance")
_ENGINE_INSIDE = ("python", "-m", "prefect.engine")
_INSTANCE_INSIDE = ("python", "-m", "prefect_gpu.instance")
# Settings that name files or folders of the worker's machine.
_OF_THIS_MACHINE = frozenset(
    {
        "PREFECT_HOME",
        "PREFECT_PROFILES_PATH",
        "PREFECT_LOCAL_STORAGE_PATH",
        "PREFECT_RESULTS_LOCAL_STORAGE_PATH",
        "PREFECT_LOGGING_SETTINGS_PATH",
        "PREFECT_INTEGRATIONS_GPU_STATE_DIR",
    }
)
_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_NAMED_WRONGLY_S = 1.0
_SET_DIRECTORY = "prefect.deployments.steps.set_working_directory"


class Launcher:
    """Prepares the launches of one worker."""

    def __init__(
        self,
        worker: BaseWorker[Any, Any, Any],
        pool: PoolView,
        intake: Intake,
        control: EngineControl,
        asking: Asking,
        settings: GpuSettings,
        outside: bool = False,
        elsewhere: bool = False,
        scope: str = "",
        credentials: Mapping[str, str] | None = None,
        role: RunCredentials | None = None,
        shares_files: bool = True,
    ) -> None:
        self._worker = worker
        self._client = worker.client
        self._pool = pool
        self._intake = intake
        self._control = control
        self._settings = settings
        self._outside = outside
        self._elsewhere = elsewhere
        self._scope = scope
        self._credentials = dict(credentials or {})
        self._role = role
        # As it was given to the worker: scikit-learn, which is imported to learn, sets variables for itself that runs
        # must not see, and that their warm interpreter does not have.
        self._environ = inherited(os.environ, passed_patterns(settings))
        if not shares_files:
            self._environ = without_this_machine(self._environ, settings)
        self._unseen = outside or not shares_files
        self._asking = asking

    def describe(self, job: Job, in_time: bool = False) -> RunRecord:
        """A record with everything that is known at submission.

        Args:
            in_time: Whether it has a deadline that was found possible.
        """
        flow_run = self._intake.granted(job.id)
        return RunRecord(
            run_id=job.id,
            name=flow_run.name,
            pool=self._worker.work_pool.name,
            queue=job.queue,
            token="",
            request=job.request,
            placement=Placement("", (), ()),
            attempt=flow_run.run_count + 1,
            known={
                "flow_name": str(flow_run.flow_id),  # until the flow has been read
                "parameters": dict(self._intake.parameters(job.id)),
                "worker": self._worker.name,
                "pool_id": self._asking.pool_id,
                "held_s": job.attained(CLOCK()),  # also before a move
                "promised": job.promised,
                "in_time": in_time,
                "features": {"gpus": job.request.gpus, "tags": sorted(flow_run.tags)}
                | ({"named": job.request.features} if job.request.features else {}),
                **taken_before(flow_run),
            },
            times={"submitted": job.submitted_at, "due": job.not_before},
        )

    async def prepare(self, run: Launch) -> LaunchSpec:
        """See :meth:`prefect_gpu.runtime.controller.Host.prepare`."""
        flow_run = self._intake.granted(run.run_id)
        # A block that is not there is named wrongly, most likely, and its user waits to be told.
        configure = self._asking.persist(lambda: self._configure(flow_run, run), believed_after_s=_NAMED_WRONGLY_S)
        configuring = asyncio.ensure_future(configure)
        told = self._credentials
        try:
            if self._role is not None:  # before the claim: while it cannot be had, the run waits
                told = {protocol.ENV_CREDENTIALS: await self._role.of(run.run_id)}
            async with self._intake.lock(run.run_id):
                await self._claim(flow_run, run)
            if not await self._asking.persist(lambda: claim_was_clean(self._client, flow_run.id, run.folder.name)):
                raise NotOursError("another worker has it")
        except BaseException:
            configuring.cancel()
            await asyncio.gather(configuring, return_exceptions=True)
            raise
        try:
            configuration, deployment = await configuring
        except Exception as error:
            # The user's to mend: a block that does not exist, a working directory that is no folder, ...
            words = explain(error) if isinstance(error, ValidationError) else str(error)
            message = f"The run could not be configured: {words}"
            await self._asking.persist(lambda: self._intake.refuse(flow_run, message))
            raise NotOursError(message) from error
        return self._specify(flow_run, run, configuration, deployment, told)

    async def _claim(self, flow_run: FlowRun, run: Launch) -> None:
        # A later worker recognises its predecessor's claim: by the folder's name, if it has the folder, else by where
        # the run was to start.
        claim: Any = Pending(message=claim_words(self._worker.name, run.folder.name, self._scope))
        try:
            state = await propose_state(self._client, claim, flow_run_id=flow_run.id)
        except (Abort, Pause) as error:  # paused: another worker has started it, and its user has suspended it
            raise NotOursError(str(error)) from None
        except ObjectNotFound:
            raise NotOursError("it was deleted") from None
        except httpx.HTTPError as error:
            # The answer may be what was lost, and not the claim. Then it is ours, and nobody else would ever start it.
            if await self._is_claimed(flow_run, run):
                return
            raise LaunchError(f"Prefect could not be asked: {error!r}") from error
        if not state.is_pending():
            # A deployment's own limit put it off, say. It is read again once it has been released.
            raise NotOursError(f"Prefect left it {state.name}: {state.message}")

    async def _is_claimed(self, flow_run: FlowRun, run: Launch) -> bool:
        """Whether the run is pending by this launch's claim, as soon as Prefect can be asked."""
        try:
            state = (await self._asking.persist(lambda: self._client.read_flow_run(flow_run.id))).state
        except ObjectNotFound:
            return False
        return state is not None and state.is_pending() and run.folder.name in (state.message or "")

    async def _configure(self, flow_run: FlowRun, run: Launch) -> tuple[GpuJobConfiguration, DeploymentResponse | None]:
        deployment = await self._pool.deployment(flow_run.deployment_id) if flow_run.deployment_id else None
        flow = await self._pool.flow(flow_run.flow_id)
        variables = merge_job_variables(flow_run, deployment)
        if words := said_in_vain(variables, self._worker.work_pool):
            self._worker.get_flow_run_logger(flow_run).warning("%s", words)
        configuration: GpuJobConfiguration = await GpuJobConfiguration.from_template_and_values(
            base_job_template=self._worker.work_pool.base_job_template,
            values=variables,
            client=self._client,
        )
        if not self._unseen and configuration.working_dir is not None and not configuration.working_dir.is_dir():
            raise ValueError(f"working_dir={str(configuration.working_dir)!r} is not a folder on the worker's machine.")
        command, said = configuration.command, set(configuration.env)
        configuration.prepare_for_flow_run(
            flow_run=flow_run,
            deployment=deployment,
            flow=flow,
            work_pool=self._worker.work_pool,
            worker_name=self._worker.name,
            worker_id=self._worker.backend_id,
        )
        configuration.command = command or _ENGINE
        # Prefect adds all of the worker's settings, those of its server's database too. What the run says stays.
        passed = passed_patterns(self._settings)
        configuration.env = {
            name: value
            for name, value in configuration.env.items()
            if name in said or (is_passed(name, passed) and not (self._unseen and name in _OF_THIS_MACHINE))
        }
        if self._outside:
            permitted(container_of(configuration, self._settings.image), self._settings)  # its owner is told now
        run.attach(Told(flow_run, flow, deployment))
        run.record.known |= {"flow_name": flow.name, "deployment": deployment.name if deployment else None}
        return configuration, deployment

    def _specify(
        self,
        flow_run: FlowRun,
        run: Launch,
        configuration: GpuJobConfiguration,
        deployment: DeploymentResponse | None,
        credentials: Mapping[str, str],
    ) -> LaunchSpec:
        if self._outside:
            return self._specify_container(flow_run, run, configuration, credentials)
        env = with_credentials(self._environ, credentials, configuration.env)
        env = {name: value for name, value in {**env, **configuration.env}.items() if value is not None}
        env["PREFECT__FLOW_RUN_ID"] = run.run_id
        if self._elsewhere:
            self._seen_from_there(env)
        else:
            env |= self._control.register(run.run_id)
        env.setdefault("PYTHONUNBUFFERED", "1")
        cwd = configuration.working_dir
        local = local_source(deployment) if configuration.command == _ENGINE and not self._unseen else None
        if local is not None:
            cwd, env["PREFECT__FLOW_ENTRYPOINT"] = local
        elif cwd is None and self._unseen:
            cwd = Path()  # one of its own, where it runs
        elif cwd is None:
            cwd = run.folder / "work"
            cwd.mkdir(exist_ok=True)
        return LaunchSpec(
            run_id=run.run_id,
            run_dir=run.folder,
            argv=tuple(shlex.split(configuration.command or "")),
            env=env,
            cwd=cwd,
            instance_argv=_INSTANCE if configuration.command == _ENGINE else (),
            told_at=CONTROL_VARIABLES if self._elsewhere else (),
            stream_output=configuration.stream_output,
            label=flow_run.name,
        )

    def _specify_container(
        self, flow_run: FlowRun, run: Launch, configuration: GpuJobConfiguration, credentials: Mapping[str, str]
    ) -> LaunchSpec:
        """A container gets nothing of the worker's machine: what it needs to reach Prefect, and what the run says."""
        own = {name: value for name, value in configuration.env.items() if value is not None}
        env = with_credentials({}, credentials, own) | own
        self._seen_from_there(env)
        env["PREFECT__FLOW_RUN_ID"] = run.run_id
        env.setdefault("PYTHONUNBUFFERED", "1")
        plain = configuration.command == _ENGINE
        return LaunchSpec(
            run_id=run.run_id,
            run_dir=run.folder,
            argv=_ENGINE_INSIDE if plain else tuple(shlex.split(configuration.command or "")),
            env=env,
            cwd=configuration.working_dir or Path(),
            instance_argv=_INSTANCE_INSIDE if plain else (),
            told_at=CONTROL_VARIABLES,
            stream_output=configuration.stream_output,
            label=flow_run.name,
            container=permitted(container_of(configuration, self._settings.image), self._settings),
        )

    def _seen_from_there(self, env: dict[str, str]) -> None:
        """Let a run on another machine, or in a container, find a Prefect server on this machine."""
        for name in ("PREFECT_API_URL", "PREFECT_SERVER_UI_API_URL"):
            if name in env:
                env[name] = seen_from_outside(env[name], self._settings.advertise)


def with_credentials(
    environ: Mapping[str, str], credentials: Mapping[str, str], own: Mapping[str, Any]
) -> dict[str, str]:
    """An environment with the credentials of the checkpoints' place, all of one kind: they belong together.

    Args:
        credentials: From a block, or of a role; empty: whatever is in the environment.
        own: What the run says of its environment. One with credentials of its own keeps to those, unless there is a
            role: then they are for what else it does.
    """
    if protocol.ENV_CREDENTIALS in credentials:
        return {**environ, **credentials}
    if not credentials or any(name in own for name in _CREDENTIALS):
        return dict(environ)
    return {name: value for name, value in environ.items() if name not in _CREDENTIALS} | dict(credentials)


def local_source(deployment: DeploymentResponse | None) -> tuple[Path, str] | None:
    """(folder, entrypoint) of a deployment whose only pull step is to change into a folder of this machine.

    Prefect's engine takes such an entrypoint from its environment, as Prefect's own runner gives it, and need not
    ask for the deployment and run its steps again: a fifth of a second less between the grant and the first line.
    """
    if deployment is None or not deployment.entrypoint or ":" not in deployment.entrypoint:
        return None
    steps = deployment.pull_steps or []
    if len(steps) != 1 or list(steps[0]) != [_SET_DIRECTORY]:
        return None
    directory = (steps[0][_SET_DIRECTORY] or {}).get("directory")
    if not isinstance(directory, str) or "{{" in directory or not os.path.isabs(directory):
        return None
    folder = Path(directory)
    file = folder / deployment.entrypoint.rpartition(":")[0]
    return (folder, deployment.entrypoint) if file.is_file() else None
