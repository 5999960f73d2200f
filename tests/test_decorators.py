"""``@gpu`` and the way of a flow into the pool and back, with real commands and a real server."""

from __future__ import annotations

import asyncio
import contextvars
import os
import shlex
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from prefect import Flow, flow, get_client, task
from prefect.blocks.system import Secret
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.objects import WorkPoolStorageConfiguration
from prefect.exceptions import FailedRun
from prefect.futures import PrefectFlowRunFuture, as_completed
from prefect.settings import PREFECT_API_URL
from prefect.states import Crashed, Failed, Pending
from pydantic import SecretStr

from benchmarks._host.served import using
from prefect_gpu import run_future
from prefect_gpu.bundles.execute import read_bundle
from prefect_gpu.bundles.storage import UPLOAD_STEP, api_is_local, closed_folder, ensure_bundle_storage
from prefect_gpu.bundles.upload import main as upload_command
from prefect_gpu.bundles.upload import upload
from prefect_gpu.decorators import GpuFlow, gpu
from prefect_gpu.lab.sandbox import Sandbox
from prefect_gpu.request import CATEGORIES, GpuRequest, check_request
from prefect_gpu.worker import GpuWorker


@flow
def plain(x: int = 1) -> int:
    return x + 1


# --- arguments -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"gpus": -1}, ["gpus=-1", "0 for a flow that needs no GPU"]),
        ({"gpus": 1.5}, ["gpus=1.5", "whole number"]),
        ({"gpus": True}, ["gpus=True"]),
        ({"gpu_memory": "lots"}, ["gpu_memory='lots'", "6GiB"]),
        ({"gpu_memory": 10}, ["gpu_memory=10 is not allowed", "a number and a unit"]),  # no GPU's memory is 10 bytes
        ({"gpu_memory": "0GiB"}, ["gpu_memory='0GiB'"]),
        ({"category": "cvv"}, ["category='cvv'", *CATEGORIES]),
        ({"cpus": 0}, ["cpus=0", "from 1 up"]),
        ({"exclusive": "perhaps"}, ["exclusive='perhaps'", "True or False"]),
        ({"converged": "end"}, ["converged='end'", "yield, stop, ignore"]),
        ({"features": "lr"}, ["features='lr'", "a list of parameter names"]),
        ({"features": ["lr", 3]}, ["features=3", "a list of parameter names"]),
        ({"features": ["lr", " "]}, ["features=['lr', ' ']", "a list of parameter names"]),
        ({"env": {"A": ["b"]}}, ["env", "'A'", "as text"]),
        ({"env": ["A=1"]}, ["env=['A=1']", "{'NAME': 'value'}"]),
        ({"work_pool": " "}, ["work_pool", "name of a work pool"]),
        ({"gpu": 2}, ["'gpu'", "did you mean 'gpus'"]),
        ({"num_gpus": 2}, ["'num_gpus'", "did you mean 'gpus'"]),
        ({"gpu_memroy": "6GiB"}, ["'gpu_memroy'", "did you mean 'gpu_memory'"]),
        ({"gpus": -1, "cpus": 0}, ["gpus=-1", "cpus=0"]),
        ({"workers": (1, "many")}, ["max_workers='many'", "not below `workers`"]),
        ({"workers": (3, 2)}, ["max_workers=2 is below workers=3: give at least as many."]),
        ({"workers": (1, 8), "ps": 1}, ["max_workers=8 with ps=1", "leave one of the two out"]),
        ({"workers": (1, 8), "gpus": (1, 4)}, ["max_workers=8 with max_gpus=4", "leave one of the two out"]),
        ({"gpus": (0, 2)}, ["gpus=(0, 2)", "would never get one", "Give (1, 2), or 0"]),
        ({"workers": (1, 8), "gpus": 0}, ["max_workers=8 with gpus=0", "leave it out"]),
        ({"batch_size": (64, 1024)}, ["batch_size=64 with a fixed number of GPUs", "workers=(1, 8)"]),
        ({"workers": (1, 8), "batch_size": 64}, ["batch_size=64 with max_batch_size=None", "the largest batch"]),
        ({"workers": (1, 8), "batch_size": (64, 32)}, ["max_batch_size=32 is below batch_size=64"]),
        ({"workers": (1, 8), "batch_size": (0, 32)}, ["batch_size=0 is not allowed", "samples of the smallest batch"]),
        ({"workers": (1, 8), "batch_size": (1, True)}, ["max_batch_size=True is not allowed"]),
        ({"workers": (1, 8), "batch_size": (64, 10**10)}, ["max_batch_size=10000000000", "at most a billion"]),
        ({"workers": (4, 8), "batch_size": (1, 3)}, ["batch_size=(1, 3)", "among 4 GPUs", "max_batch_size at least 4"]),
        ({"workers": (1, 8), "preemptible": False}, ["preemptible=False", "Leave preemptible out"]),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_wrong_argument_is_refused_at_once_with_field_value_and_remedy(
    arguments: dict[str, Any], parts: list[str]
) -> None:
    with pytest.raises(ValueError) as error:
        gpu(**arguments)
    for part in parts:
        assert part in str(error.value)


def test_job_variables_hold_what_was_given_and_nothing_else() -> None:
    bound = gpu("pool", gpus=2, gpu_memory="6GiB", category="cv", env={"A": 1}, image="mine")(plain)
    assert bound.work_pool == "pool"
    assert bound.job_variables == {
        "gpus": 2,
        "gpu_memory": "6GiB",
        "category": "cv",
        "env": {"A": "1"},
        "image": "mine",
    }
    assert gpu()(plain).job_variables == {"gpus": 1}
    assert gpu(workers=(1, 8))(plain).job_variables == {"gpus": 1, "workers": 1, "max_workers": 8}
    batches = gpu(gpus=(1, 4), batch_size=(64, 1024))(plain).job_variables
    assert batches == {"gpus": 1, "max_gpus": 4, "batch_size": 64, "max_batch_size": 1024}
    assert gpu(features=("lr", "model.width"))(plain).job_variables == {"gpus": 1, "features": ["lr", "model.width"]}
    assert gpu(converged="stop")(plain).job_variables == {"gpus": 1, "converged": "stop"}
    assert gpu(exclusive=False)(plain).job_variables == {"gpus": 1, "exclusive": False}


def test_a_bound_flow_is_still_a_flow_that_runs_by_itself() -> None:
    bound = gpu()(plain)
    assert isinstance(bound, Flow) and bound.name == plain.name
    assert bound.fn(2) == 3


def test_other_options_keep_the_binding() -> None:
    bound = gpu("pool", gpus=2, include_files=["*.json"])(plain).with_options(name="other", retries=3)
    assert isinstance(bound, GpuFlow)
    assert (bound.name, bound.retries, bound.work_pool) == ("other", 3, "pool")
    assert bound.job_variables == {"gpus": 2} and bound.include_files == ["*.json"]


def test_decorators_in_the_wrong_order_are_explained() -> None:
    with pytest.raises(TypeError, match=r"above @flow"):
        gpu()(lambda: None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="parentheses"):
        gpu(plain)  # type: ignore[arg-type]


def test_a_deployment_takes_pool_and_request_from_the_decorator() -> None:
    deployment = gpu("pool", gpus=2, cpus=4)(plain).to_deployment("gpus", job_variables={"cpus": 8})
    assert deployment.work_pool_name == "pool"
    assert deployment.job_variables == {"gpus": 2, "cpus": 8}


def test_the_request_reads_sizes_and_accepts_an_emptied_form_field() -> None:
    assert check_request(gpu_memory="6GiB").gpu_memory_bytes == 6 * 1024**3
    assert check_request(gpu_memory="").gpu_memory is None
    assert check_request() == GpuRequest(gpus=1, exclusive=None)


def test_the_form_explains_every_field() -> None:
    for name, field in GpuRequest.model_json_schema()["properties"].items():
        assert field["title"] != name and len(field["description"]) > 20


# --- bundles -------------------------------------------------------------------------------------------------


def test_an_uploaded_file_is_whole_and_private(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("code")
    copy = upload(tmp_path / "file", tmp_path / "bundles", "files/abc.zip")
    assert copy == tmp_path / "bundles" / "files" / "abc.zip" and copy.read_text() == "code"
    assert (tmp_path / "bundles").stat().st_mode & 0o077 == 0
    assert [path.name for path in copy.parent.iterdir()] == ["abc.zip"]


@pytest.mark.parametrize("key", ["../out", "/etc/passwd", ".", "a/../../out"])
def test_a_key_cannot_lead_out_of_the_folder(tmp_path: Path, key: str) -> None:
    (tmp_path / "file").write_text("code")
    with pytest.raises(ValueError, match="does not name a file inside"):
        upload(tmp_path / "file", tmp_path / "bundles", key)


def test_a_missing_bundle_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="work-pool storage configure"):
        read_bundle(tmp_path, "missing")


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:4200/api", True),
        ("http://localhost:4200/api", True),
        ("http://[::1]:4200/api", True),
        ("https://api.prefect.cloud/api", False),
        ("http://10.0.0.5:4200/api", False),
        ("http://localhost.example.com/api", False),
    ],
)
def test_whether_the_api_is_on_this_machine(url: str, local: bool) -> None:
    assert api_is_local(url) is local


# --- into the pool and back ----------------------------------------------------------------------------------


@pytest.fixture
def server(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server that this process uses, and every process that it starts."""
    monkeypatch.setenv("PREFECT_HOME", str(sandbox.home))  # where results are
    with using(sandbox):
        yield


@pytest.fixture
def pool(server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A pool without storage, as `prefect work-pool create --type gpu` makes it."""
    monkeypatch.setenv("PREFECT_INTEGRATIONS_GPU_STATE_DIR", str(tmp_path / "state"))
    name = f"pool-{tmp_path.name}".replace("_", "-")
    variables = GpuRequest.model_json_schema()["properties"] | {"env": {}, "command": {}}
    template = {
        "job_configuration": {"command": "{{ command }}"},
        "variables": {"type": "object", "properties": variables},
    }
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name=name, type="gpu", base_job_template=template))
    return name


class StandInWorker:
    """Runs what waits in a pool as the worker's process driver does: one command, in a fresh process."""

    def __init__(self, pool: str) -> None:
        self.pool, self.ran = pool, 0
        self.stop = threading.Event()
        self.environment = os.environ | {"PREFECT_API_URL": PREFECT_API_URL.value()}
        serve = partial(contextvars.copy_context().run, lambda: asyncio.run(self._serve()))  # with these settings
        self.thread = threading.Thread(target=serve)

    async def _serve(self) -> None:
        async with get_client() as client:
            while not self.stop.is_set():
                for response in await client.get_scheduled_flow_runs_for_work_pool(self.pool):
                    run = response.flow_run
                    await client.set_flow_run_state(run.id, Pending())
                    command = shlex.split((run.job_variables or {})["command"])
                    assert command[:3] == [sys.executable, "-m", "prefect_gpu.bundles.execute"]
                    process = await asyncio.create_subprocess_exec(*command, env=self.environment)
                    if await process.wait() != 0:
                        await client.set_flow_run_state(run.id, Crashed(), force=True)
                    self.ran += 1
                await asyncio.sleep(0.1)

    def __enter__(self) -> StandInWorker:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()


def test_submitted_flows_run_in_another_process_and_bring_back_their_results(pool: str) -> None:
    @gpu(pool, gpus=0)
    @flow
    def where(x: int) -> tuple[int, int]:
        return x * 2, os.getpid()

    @gpu(pool, gpus=0)
    @flow
    async def fails() -> None:
        raise ArithmeticError("on purpose")

    with StandInWorker(pool):
        first, broken = where.submit(1), fails.submit()
        second = where(2)
        assert [first.result()[0], second[0]] == [2, 4]
        assert len({first.result()[1], second[1], os.getpid()}) == 3
        with pytest.raises(ArithmeticError, match="on purpose"):
            broken.result()


@pytest.mark.parametrize("name", ["TimedOut", "Given up"])
def test_a_run_whose_last_state_has_a_name_of_its_own_is_waited_for(
    pool: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_future, "_FIRST_LOOK_S", 0.5)
    future = gpu(pool, gpus=0)(plain).submit()

    async def end_it_while_it_is_waited_for() -> None:
        waiting = asyncio.create_task(future.wait_async())
        await asyncio.sleep(1)  # Prefect's future has looked by then, and waits for an event
        async with get_client() as client:
            await client.set_flow_run_state(future.flow_run_id, Failed(name=name), force=True)
        await asyncio.wait_for(waiting, 60)

    called = Queue[Any]()
    future.add_done_callback(called.put)
    asyncio.run(end_it_while_it_is_waited_for())
    with pytest.raises(FailedRun):
        future.result()
    assert called.get(timeout=60) is future and list(as_completed([future])) == [future]


def test_included_files_are_there_and_the_users_own_folder_is_untouched(
    pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "labels.txt").write_text("cat")
    monkeypatch.chdir(tmp_path)

    @gpu(pool, include_files=["labels.txt"], include_files_base_dir=tmp_path)
    @flow
    def read() -> str:
        return Path("labels.txt").read_text()

    future = read.submit()
    (tmp_path / "labels.txt").write_text("newer")
    with StandInWorker(pool):
        assert future.result() == "cat"
    assert (tmp_path / "labels.txt").read_text() == "newer"


def test_a_folder_for_bundles_that_this_user_may_not_write_is_known_before_a_run_is_made(tmp_path: Path) -> None:
    """The run failed, and its user saw a traceback of a command that Prefect had started."""
    step = {UPLOAD_STEP: {"directory": str(tmp_path / "state" / "bundles")}}
    storage = WorkPoolStorageConfiguration(bundle_upload_step=step)
    assert closed_folder(storage) is None and closed_folder(WorkPoolStorageConfiguration()) is None
    (tmp_path / "state").mkdir()
    as_root = os.getuid() == 0
    (tmp_path / "state").chmod(0o000)
    if as_root:
        os.setresuid(65534, 65534, 0)
    try:
        assert closed_folder(storage) == tmp_path / "state" / "bundles"
    finally:
        if as_root:
            os.setresuid(0, 0, 0)
        (tmp_path / "state").chmod(0o700)


def test_a_bundle_for_which_there_is_no_room_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("bundle")
    folder = str(tmp_path / "file" / "bundles")  # below a file, nothing can be made
    with pytest.raises(
        SystemExit, match=r"cannot be put into .*/file/bundles: Not a directory\. See that there is room"
    ):
        upload_command(["--directory", folder, "--key", "abc", str(tmp_path / "file")])


def test_a_missing_pool_says_how_to_make_it(server: None) -> None:
    with pytest.raises(ValueError, match="prefect work-pool create nowhere --type gpu"):
        gpu("nowhere")(plain).submit()


def test_a_pool_of_another_type_is_refused(pool: str) -> None:
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name=f"{pool}-process", type="process"))
    with pytest.raises(ValueError, match=r"of the type 'process', which grants no GPUs"):
        gpu(f"{pool}-process")(plain).submit()


def test_where_the_server_is_elsewhere_a_folder_that_all_see_has_to_be_named(
    pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a cluster, whose home directories are the same on all machines."""
    monkeypatch.setattr("prefect_gpu.bundles.storage.api_is_local", lambda: False)
    bound = gpu(pool, gpus=0)(plain)
    with pytest.raises(ValueError, match=f"{pool!r} has no storage .*`export PREFECT_INTEGRATIONS_GPU_BUNDLES=FOLDER`"):
        bound.submit(x=2)
    monkeypatch.setenv("PREFECT_INTEGRATIONS_GPU_BUNDLES", str(tmp_path / "home"))
    run = bound.submit(x=2)
    assert [path.name for path in (tmp_path / "home" / "bundles").glob("*-*")]
    with StandInWorker(pool):
        assert run.result() == 3


def test_a_flow_is_deployed_in_its_own_pool_and_is_not_served(server: None) -> None:
    bound = gpu("nowhere")(plain)
    with pytest.raises(ValueError, match="'nowhere'"):
        bound.deploy("mine")
    with pytest.raises(ValueError, match="'nowhere'"):
        asyncio.run(bound.adeploy("mine"))
    with pytest.raises(ValueError, match="'elsewhere'"):
        bound.deploy("mine", "elsewhere")
    with pytest.raises(RuntimeError, match=r"'plain' cannot be served.* work pool 'nowhere'"):
        bound.serve("mine")


def test_futures_among_the_parameters_are_waited_for_and_what_cannot_be_sent_is_refused(pool: str) -> None:
    @task
    def count() -> int:
        return 3

    @gpu(pool)
    @flow
    def train(data: Any, rates: Any = None) -> None: ...

    @flow
    def pipeline() -> Any:
        counted = count.submit()
        return train.submit(counted, rates=[counted, {"last": counted}]).flow_run_id

    with get_client(sync_client=True) as client:
        run = client.read_flow_run(pipeline())
    assert run.parameters == {"data": 3, "rates": [3, {"last": 3}]}
    for value in (threading.Lock(), {"deep": [threading.Lock()]}):
        with pytest.raises(TypeError, match=f"^data: this {type(value).__name__} cannot be sent .* path of a file"):
            train(value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (float("nan"), "NaN and infinity cannot be sent"),  # Prefect would send null
        ({"seeds": [2**64]}, "more than 64 bits .* as text"),  # Prefect would list neither it nor others
        ({"deep": [1.0, float("inf")]}, "NaN and infinity cannot be sent"),
        ({"deep": {"caf\udce9.csv": 1}}, "no Unicode .* another name"),  # Prefect's client would say so less clearly
        (SecretStr("hush"), r"the run would get '\*{10}'"),
        ([Secret(value="hush")], "Give the name of a block"),
        (threading.Lock(), "this lock cannot be sent"),
        (lambda: 0.1, "this function cannot be sent"),  # Prefect would send {}
        ({"deep": [partial(int, "1")]}, "this partial cannot be sent"),
        ((rate for rate in (0.1, 0.2)), "this generator cannot be sent"),  # the check itself uses it up
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_would_arrive_as_something_else_is_refused(value: Any, words: str) -> None:
    @gpu()
    @flow
    def train(data: Any) -> None: ...

    for call in (train, train.submit, train.start):
        with pytest.raises(TypeError, match=f"^data: .*{words}"):
            call(data=value)


def test_a_flow_whose_values_nobody_would_get_is_refused() -> None:
    @gpu()
    @flow
    def losses(epochs: int) -> Iterator[int]:
        yield from range(epochs)

    @gpu()
    @flow
    async def later(epochs: int) -> AsyncIterator[int]:
        yield epochs

    for call in (losses, losses.submit, later, later.submit):
        with pytest.raises(TypeError, match=r"yields values, which nobody would get: .* return a list"):
            call(3)
    assert list(losses.fn(3)) == [0, 1, 2]


def test_a_method_whose_object_cannot_be_sent_is_refused() -> None:
    class Trainer:
        @gpu()
        @flow
        def train(self, lr: float) -> float:
            return lr

        @gpu()
        @flow
        @classmethod
        def tune(cls, lr: float) -> float:
            return lr

    trainer = Trainer()
    for call in (trainer.train, trainer.train.submit, Trainer.tune, trainer.tune.submit):
        with pytest.raises(TypeError, match=r"is a method, .* Make it a function"):
            call(lr=0.1)


def test_a_text_that_looks_like_a_masked_secret_is_sent(pool: str) -> None:
    assert gpu(pool)(flow(lambda data: None)).submit(["*" * 10, 1e300])


def test_a_variable_that_the_pool_does_not_know_is_reported(pool: str, caplog: pytest.LogCaptureFixture) -> None:
    gpu(pool, image="mine")(plain).submit()
    assert "no job variable 'image'" in caplog.text


def test_a_pool_that_nobody_serves_or_that_is_paused_is_told_once(pool: str, caplog: pytest.LogCaptureFixture) -> None:
    train = gpu(pool)(plain)
    train.submit()
    train.submit()
    with get_client(sync_client=True) as client:
        client.update_work_pool(pool, WorkPoolUpdate(is_paused=True))
        train.submit()
        client.update_work_pool(pool, WorkPoolUpdate(is_paused=False))
        client.send_worker_heartbeat(pool, "one")
    train.submit()
    told = [record.getMessage() for record in caplog.records if "so runs wait" in record.getMessage()]
    assert told == [
        f"Work pool {pool!r} has no worker that is online, so runs wait. "
        f"Start one: `prefect worker start --pool {pool}`.",
        f"Work pool {pool!r} is paused, so runs wait. Resume it: `prefect work-pool resume {pool}`.",
    ]


def test_storage_that_somebody_configured_is_left_alone(pool: str, tmp_path: Path) -> None:
    async def configure() -> tuple[Any, Any]:
        async with get_client() as client:
            step = {"prefect_aws.experimental.bundles.upload": {"requires": "prefect-aws", "bucket": "b"}}
            mine = WorkPoolStorageConfiguration(bundle_upload_step=step, bundle_execution_step=step)
            await client.update_work_pool(pool, WorkPoolUpdate(storage_configuration=mine))
            before = await client.read_work_pool(pool)
            return before, await ensure_bundle_storage(client, before, tmp_path)

    before, after = asyncio.run(configure())
    assert after.storage_configuration == before.storage_configuration


def test_half_of_a_storage_is_said_before_anything_is_submitted(pool: str) -> None:
    step = {"prefect_aws.experimental.bundles.execute": {"requires": "prefect-aws", "bucket": "b"}}
    half = WorkPoolStorageConfiguration(bundle_execution_step=step)
    with get_client(sync_client=True) as client:
        client.update_work_pool(pool, WorkPoolUpdate(storage_configuration=half))
    with pytest.raises(ValueError, match=f"{pool!r} has only a part of a storage"):
        gpu(pool, gpus=0)(plain).submit(x=2)


def test_a_run_submitted_through_a_worker_object_waits_in_the_pool_and_can_be_repeated(pool: str) -> None:
    async def submit(bound: Any, **arguments: Any) -> Any:
        async with GpuWorker(pool) as worker:  # set up, as Prefect does to submit a flow, and not started
            with pytest.warns(FutureWarning, match="experimental"):
                future = await worker.submit(bound, **arguments)
            return await worker.client.read_flow_run(future.flow_run_id)

    bound = gpu(pool, gpus=0)(plain)
    run = asyncio.run(submit(bound, parameters={"x": 5}, job_variables={"gpus": 0, "cpus": 3}))
    assert run.state.is_scheduled() and run.job_variables["cpus"] == 3

    @gpu(pool, gpus=0)
    @flow(name="plain")
    def changed(x: int = 1) -> int:
        return x * 10

    with StandInWorker(pool) as worker:
        assert PrefectFlowRunFuture(run.id).result() == 6
        again = asyncio.run(submit(changed, flow_run=run))
        assert again.id == run.id and again.state.is_scheduled()
        assert PrefectFlowRunFuture(run.id).result() == 50  # the flow as it is now
    assert worker.ran == 2
