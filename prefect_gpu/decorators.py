"""``@gpu``: bind a flow to a work pool of type ``gpu``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from datetime import datetime, timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast
from uuid import uuid4

import anyio
from prefect import Flow, get_client
from prefect.exceptions import ObjectNotFound
from prefect.filesystems import LocalFileSystem, WritableFileSystem
from prefect.flows import InfrastructureBoundFlow
from prefect.futures import PrefectFlowRunFuture, resolve_futures_to_results
from prefect.logging import get_logger
from prefect.results import get_result_store, resolve_result_storage
from prefect.utilities.annotations import NotSet
from prefect.utilities.asyncutils import run_coro_as_sync
from prefect.utilities.callables import get_call_parameters

from prefect_gpu.prefect_client import ask_again_soon, one_client
from prefect_gpu.request import (
    Converged,
    DeadlineKind,
    GpuRequest,
    KindChoice,
    check_job_variable_names,
    check_request,
    said_in_vain,
)
from prefect_gpu.run_future import RunFuture
from prefect_gpu.sendable import must_be_sendable
from prefect_gpu.server_needed import server_needed
from prefect_gpu.units import shown

if TYPE_CHECKING:
    from prefect.client.schemas.objects import WorkPool

P = ParamSpec("P")
R = TypeVar("R")
logger = get_logger("gpu.decorators")

_REQUEST_FIELDS = set(GpuRequest.model_fields)
_OTHER_ARGUMENTS = {"work_pool", "env", "include_files", "include_files_base_dir", "launcher"}
# What a flow is bound with, besides its pool.
_BINDING = ("job_variables", "launcher", "include_files", "include_files_base_dir")
# Variables of every Prefect pool: never taken for misspelt arguments.
_COMMON_VARIABLES = {"name", "labels", "command"}
_status: dict[str, str] = {}  # of pools, when runs were submitted to them last


def gpu(
    work_pool: str = "gpus",
    *,
    gpus: int | tuple[int, int] = 1,
    gpu_memory: str | None = None,
    gpu_kind: str | Sequence[str] | None = None,
    gpu_kind_choice: KindChoice | None = None,
    exclude_gpu_kind: str | Sequence[str] | None = None,
    compute_capability: str | None = None,
    nvlink: bool | None = None,
    cpus: int | None = None,
    workers: int | tuple[int, int] | None = None,
    batch_size: tuple[int, int] | None = None,
    ps: int | None = None,
    preemptible: bool | None = None,
    category: str | None = None,
    exclusive: bool | None = None,
    features: Sequence[str] | None = None,
    converged: Converged | None = None,
    owner: str | None = None,
    priority: int | None = None,
    time_limit: str | float | None = None,
    deadline: str | datetime | timedelta | None = None,
    deadline_kind: DeadlineKind | None = None,
    env: Mapping[str, str | None] | None = None,
    include_files: Sequence[str] | None = None,
    include_files_base_dir: Path | str | None = None,
    launcher: Any = None,
    **job_variables: Any,
) -> Callable[[Flow[P, R]], GpuFlow[P, R]]:
    """Run a flow in a GPU work pool.

    Calling the flow, or its ``.submit(...)``, starts a run in the pool, where a running worker takes it;
    ``.fn(...)`` still runs the function here and now, without Prefect.

    Args:
        work_pool: The pool's name.
        gpus: How many GPUs the run needs; 0 for none. ``(1, 4)``: between one and four, and more or fewer of them
            while it trains, as other runs start and end: it is then stopped at a checkpoint, and continues.
        gpu_memory: Memory needed on each of them, for example ``"6GiB"``. Default: whole GPUs.
        gpu_kind: Names of the kinds of GPU that will do, best first: ``"A100"``, ``["H100", "A100"]``. A name fits if
            all its words are in the GPU's name. Default: any; the pool chooses by how fast the program is on each.
        gpu_kind_choice: Which of these kinds. ``"listed"``: the first of them that is free. ``"ends-first"``: the one
            on which the run is expected to end first, also if it has to wait for it. Default: ``"listed"``.
        exclude_gpu_kind: Names of the kinds that will not do.
        compute_capability: Bounds of the compute capability, such as ``">=8.0"``. Default: any.
        nvlink: Whether those GPUs of the run that are on one node must be connected over NVLink. Default: no.
        cpus: CPU cores needed. Default: the pool decides.
        workers: How many instances train together, each with ``gpus`` GPUs of its own. Default: one. They start and end
            together; each sees ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and the other variables of torchrun.
            ``(1, 8)``: between one and eight, on one node or on several, and more or fewer of them while it trains, as
            other runs start and end: all are then stopped at a checkpoint, and continue.
        batch_size: ``(64, 1024)``, where ``gpus`` or ``workers`` is a range: samples of the smallest and of the largest
            batch, of all GPUs together. The pool chooses the batch with the number of GPUs, by how noisy the gradient
            is (``run.gradient_noise``); the run reads it as ``run.batch_size``. Default: the batch is the flow's own.
        ps: How many parameter servers they have: instances without a GPU, whose ranks come last.
        preemptible: Whether the run may be stopped at a checkpoint, to make room for others or to continue elsewhere.
            It must offer checkpoints, and begin with ``run.restore()``. Default: only where ``gpus`` or ``workers`` is
            a range.
        category: Kind of training, kept in the history: cv, nlp, speech, tabular, recommendation,
            reinforcement or other.
        exclusive: Whether the GPUs are for this run alone. True: always. False: it may share them, if ``gpu_memory``
            says how much it needs. Default: the pool decides, by what earlier runs of the program needed.
        features: Names of the parameters that say what a run needs, with dots for nested ones, for example
            ``["lr", "model.width"]``: estimates rest on these alone. Default: all parameters are looked at.
        converged: What happens when the loss that the run reports stands still. ``"yield"``: the run gets less of a GPU
            that it shares with runs that still learn, until its loss moves again. ``"stop"``: it also ends its
            training early, with the best checkpoint kept. ``"ignore"``: nothing. Default: the pool's own, ``"yield"``.
        owner: Who the run is for, where the pool is divided among owners. Default: the pool finds out.
        priority: Runs of a higher priority go first, of those in the same work queue and of the same owner. Default: 0.
        time_limit: How long the run may hold its GPUs in all, such as ``"2h"``, or seconds. At the limit it saves a
            checkpoint, is stopped, and ends as ``TimedOut``. Time in which it waits does not count. Default: no limit.
        deadline: When a run is to have ended: a length of time after it is due, such as ``"6h"``, or a date with its
            time zone. Default: none.
        deadline_kind: ``"best-effort"``: the run is preferred as its deadline comes near. ``"promise"``: the pool
            promises the deadline at once, or refuses the run, as ``Cancelled``, with the earliest date that it could
            promise. Default: the pool's own, ``"best-effort"``.
        env: Environment variables of the run.
        include_files: Patterns of files to send along with the flow, relative to the flow's own file. The run
            finds them in its working folder.
        include_files_base_dir: What those patterns are relative to instead.
        launcher: Commands that start Prefect's bundle steps, as in Prefect's own decorators.
        job_variables: Any other variable of the pool.

    Raises:
        ValueError: An argument is not allowed; at once, not when the first run starts.
        TypeError: The decorated object is not a flow.

    Example:
        ```python
        @gpu(work_pool="gpus", gpus=1, category="cv")
        @flow
        def train(lr: float) -> float: ...

        future = train.submit(lr=0.1)
        loss = future.result()
        ```
    """
    if not isinstance(work_pool, str):
        raise TypeError("Write @gpu() with parentheses, above @flow.")
    if not work_pool.strip():
        raise ValueError("work_pool='' is not allowed: give the name of a work pool of type gpu.")
    check_job_variable_names(set(job_variables) - _COMMON_VARIABLES, _REQUEST_FIELDS | _OTHER_ARGUMENTS)
    gpus, max_gpus = _range_of(gpus)
    workers, max_workers = _range_of(workers)
    least_batch, most_batch = _range_of(batch_size)
    if preemptible is False and (max_gpus, max_workers) != (None, None):
        raise ValueError(
            "preemptible=False is not allowed where `gpus` or `workers` is a range: their number changes at "
            "checkpoints. Leave preemptible out, or give one number."
        )
    if gpus == 0 and max_gpus is not None:
        raise ValueError(
            f"gpus=(0, {max_gpus!r}) is not allowed: a run without a GPU would never get one. Give "
            f"(1, {max_gpus!r}), or 0."
        )
    asked = {
        "gpus": gpus,
        "max_gpus": max_gpus,
        "preemptible": preemptible,
        "gpu_memory": gpu_memory,
        "gpu_kind": _listed(gpu_kind),
        "gpu_kind_choice": gpu_kind_choice,
        "exclude_gpu_kind": _listed(exclude_gpu_kind),
        "compute_capability": compute_capability,
        "nvlink": nvlink,
        "cpus": cpus,
        "workers": workers,
        "max_workers": max_workers,
        "batch_size": least_batch,
        "max_batch_size": most_batch,
        "ps": ps,
        "category": category,
        "exclusive": exclusive,
        "features": list(features) if isinstance(features, (tuple, set, frozenset)) else features,
        "converged": converged,
        "owner": owner,
        "priority": priority,
        "time_limit": time_limit,
        "deadline": deadline,
        "deadline_kind": deadline_kind,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    # What was not given is not sent, so that the pool's own defaults count.
    variables = check_request(**given).model_dump(mode="json", include=set(given))
    if env is not None:
        variables["env"] = _check_env(env)
    variables.update(job_variables)

    def decorate(flow: Flow[P, R]) -> GpuFlow[P, R]:
        if not isinstance(flow, Flow):
            name = getattr(flow, "__name__", repr(flow))
            raise TypeError(f"@gpu needs a flow, and {name} is none: write @gpu(...) above @flow.")
        return GpuFlow.bind(
            flow,
            work_pool=work_pool,
            job_variables=variables,
            launcher=launcher,
            include_files=include_files,
            include_files_base_dir=include_files_base_dir,
        )

    return decorate


class GpuFlow(InfrastructureBoundFlow[P, R]):
    """A flow bound to a GPU work pool; made by `gpu`.

    GPUs belong to the worker that runs, so a call never starts a worker of its own, as Prefect's other bound
    flows do: it always hands the run to the pool.
    """

    _ready = False

    @classmethod
    def bind(cls, flow: Flow[P, R], **binding: Any) -> GpuFlow[P, R]:
        """Bind a copy of a flow; the arguments are those of Prefect's ``bind_flow_to_infrastructure``."""
        bound = cls(flow.fn, worker_cls=cast(Any, None), **binding)
        for name, value in vars(flow).items():
            if name not in ("work_pool", *_BINDING):
                setattr(bound, name, value)
        return bound

    @property
    def worker_cls(self) -> Any:
        """The worker's class. Looked up when asked for: a training process carries the flow, not the worker."""
        return import_module("prefect_gpu.worker").GpuWorker

    @worker_cls.setter
    def worker_cls(self, value: Any) -> None:
        pass  # set by Prefect's constructor; a GPU flow has one kind of worker

    def __call__(  # type: ignore[override]
        self,
        *args: Any,
        return_state: bool = False,
        wait_for: Iterable[Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run the flow in the pool and wait for what it returns."""

        async def call() -> Any:
            for future in wait_for or ():
                await anyio.to_thread.run_sync(future.wait)
            future = await anyio.to_thread.run_sync(partial(self.submit_to_work_pool, *args, **kwargs))
            if return_state:
                await future.wait_async()
                return future.state
            return await future.aresult()

        return call() if inspect.iscoroutinefunction(self.fn) else run_coro_as_sync(call())

    def submit(self, *args: Any, **kwargs: Any) -> PrefectFlowRunFuture[R]:
        """Start a run in the pool and return at once; futures among its parameters are waited for.

        Returns:
            A future; ``.result()`` waits for what the flow returns.

        Raises:
            TypeError: A parameter cannot be sent to the pool: parameters travel as JSON. Or the flow is a generator, or
                a method.
        """
        return self.submit_to_work_pool(*args, **kwargs)

    def submit_to_work_pool(self, *args: Any, **kwargs: Any) -> PrefectFlowRunFuture[R]:
        """The same as `submit`."""
        if self.isgenerator:
            raise TypeError(
                f"Flow {self.name!r} yields values, which nobody would get: a run in the pool has one result. Let it "
                "return a list of them."
            )
        if self.ismethod or self.isclassmethod:
            raise TypeError(
                f"Flow {self.name!r} is a method, and what it belongs to cannot be sent to the pool. Make it a "
                "function outside of the class, with all that it needs as parameters."
            )
        # Prefect would send the name of its class in the place of a future, and of any other value that is no JSON.
        args, kwargs = resolve_futures_to_results((args, kwargs))
        must_be_sendable(self, get_call_parameters(self.fn, args, kwargs))
        with one_client():
            future = super(GpuFlow, self.ready()).submit_to_work_pool(*args, **kwargs)
        return RunFuture(future.flow_run_id)

    def ready(self) -> GpuFlow[P, R]:
        """A copy that has looked at its pool. Many runs of it can be submitted, and the pool is asked for once.

        Raises:
            ValueError: There is no such pool, or the launcher is of another Python. The message says what to do.
            ConnectionError: No server is set, none answers, or it lets nobody in. The message says what to do.
        """
        from prefect_gpu.bundles.storage import launcher_for, must_be_of_this_python, read_pool_to_submit_to

        if self._ready:
            return self
        must_be_of_this_python(self.launcher)
        work_pool = read_pool_to_submit_to(self.work_pool)
        if words := said_in_vain(self.job_variables, work_pool):
            logger.warning("Flow %r: %s", self.name, words)
        _say_if_nothing_starts(work_pool)
        found = copy(self)
        storage = work_pool.storage_configuration
        results = storage.default_result_storage_block_id
        found.launcher = self.launcher or launcher_for(storage)
        if self.result_storage is None and results is not None and not _results_go_elsewhere():
            # What Prefect does for each run, by making the flow anew.
            block = resolve_result_storage(results, _sync=True)  # type: ignore[call-arg]
            found.result_storage = cast(WritableFileSystem, block)
            found.persist_result = True
        found._ready = True
        return found

    def start(self, **parameters: Any) -> PrefectFlowRunFuture[R]:
        """Start a run of the flow's deployment if there is one, and else submit the flow as it is here.

        The deployment is the one that is named after the pool, such as ``train/gpus``. Its runs can be started
        again from the UI, which Prefect does not offer for submitted flows.

        Args:
            parameters: The flow's parameters, by name. Futures among them are waited for.

        Returns:
            A future; ``.result()`` waits for what the flow returns. Of a deployment's run, Prefect keeps that only with
            ``@flow(persist_result=True)``.

        Raises:
            TypeError: A parameter cannot be sent to the pool: parameters travel as JSON.
        """
        parameters = resolve_futures_to_results(parameters)
        must_be_sendable(self, parameters)
        return run_coro_as_sync(self._start(parameters))  # type: ignore[return-value]

    async def _start(self, parameters: dict[str, Any]) -> PrefectFlowRunFuture[R]:
        from prefect.deployments import arun_deployment

        try:
            with server_needed():
                client = get_client()
                ask_again_soon(client)
                # With a key: Prefect's client asks again where no answer came, and would start it a second time.
                run = await arun_deployment(
                    f"{self.name}/{self.work_pool}",
                    client=client,
                    parameters=parameters,
                    timeout=0,
                    idempotency_key=str(uuid4()),
                )
        except ObjectNotFound:
            return await anyio.to_thread.run_sync(partial(self.submit, **parameters))  # type: ignore[arg-type]
        return RunFuture(run.id)

    def with_options(self, **options: Any) -> GpuFlow[P, R]:  # type: ignore[override]
        """A copy with other options; those of Prefect's flows, and ``job_variables``."""
        if options.get("job_variables", NotSet) is None:
            del options["job_variables"]  # Prefect's way to say "as they are"
        if options.keys() == {"job_variables"} and options["job_variables"] is not NotSet:
            found = copy(self)  # to make a flow anew takes 30 ms, and a sweep does so for each trial
            found.job_variables = options["job_variables"]
            return found
        binding = {
            name: options.pop(name) if options.get(name, NotSet) is not NotSet else getattr(self, name)
            for name in _BINDING
        }
        return GpuFlow.bind(Flow.with_options(self, **options), work_pool=self.work_pool, **binding)

    def to_deployment(self, name: str, **options: Any) -> Any:  # type: ignore[override]
        """A deployment in the flow's own pool, with what the decorator asks for."""
        return super().to_deployment(name, **self._deployment_options(options))

    async def ato_deployment(self, name: str, **options: Any) -> Any:  # type: ignore[override]
        """A deployment in the flow's own pool, with what the decorator asks for."""
        return await super().ato_deployment(name, **self._deployment_options(options))

    def deploy(  # type: ignore[override]
        self, name: str, work_pool_name: str | None = None, *args: Any, **options: Any
    ) -> Any:
        """Deploy the flow, in its own pool unless another one is named."""
        return super().deploy(name, work_pool_name or self.work_pool, *args, **options)

    async def adeploy(  # type: ignore[override]
        self, name: str, work_pool_name: str | None = None, *args: Any, **options: Any
    ) -> Any:
        """Deploy the flow, in its own pool unless another one is named."""
        return await super().adeploy(name, work_pool_name or self.work_pool, *args, **options)

    def serve(self, *args: Any, **options: Any) -> None:
        """Refused: Prefect's ``serve`` runs flows where it is called, beside all pools.

        Raises:
            RuntimeError: Always. Deploy the flow.
        """
        raise RuntimeError(
            f"Flow {self.name!r} cannot be served: serve() runs flows where it is called, beside all pools. Deploy it, "
            f"and the worker of work pool {self.work_pool!r} runs it."
        )

    def _deployment_options(self, options: dict[str, Any]) -> dict[str, Any]:
        variables = self.job_variables | (options.get("job_variables") or {})
        return {"work_pool_name": self.work_pool, **options, "job_variables": variables}


def _results_go_elsewhere() -> bool:
    """Whether the flow that submits keeps its results where others can read them; then this run's go there, too."""
    storage = get_result_store().result_storage
    return storage is not None and not isinstance(storage, LocalFileSystem)


def _say_if_nothing_starts(work_pool: WorkPool) -> None:
    """Say once that a pool has no worker, or is paused: its runs would wait without a word."""
    status, name = work_pool.status.name if work_pool.status else "", work_pool.name
    if _status.get(name) == status:
        return
    _status[name] = status
    if status == "NOT_READY":
        logger.warning(
            "Work pool %r has no worker that is online, so runs wait. Start one: `prefect worker start --pool %s`.",
            name,
            quote(name),
        )
    elif status == "PAUSED":
        remedy = f"prefect work-pool resume {quote(name)}"
        logger.warning("Work pool %r is paused, so runs wait. Resume it: `%s`.", name, remedy)


def _range_of(asked: Any) -> tuple[Any, Any]:
    """The least and the most of what may be a range; one number has no most."""
    return tuple(asked) if isinstance(asked, (tuple, list)) and len(asked) == 2 else (asked, None)


def _listed(names: Any) -> Any:
    return list(names) if isinstance(names, tuple) else names


def _check_env(env: Mapping[str, Any]) -> dict[str, str | None]:
    if not isinstance(env, Mapping):
        raise ValueError(f"env={shown(env)} is not allowed: give names and values, such as {{'NAME': 'value'}}.")
    for name, value in env.items():
        if not isinstance(name, str) or isinstance(value, bool) or not isinstance(value, str | int | float | None):
            raise ValueError(f"env={{{name!r}: {value!r}}} is not allowed: give names and values as text.")
    return {name: value if value is None else str(value) for name, value in env.items()}
