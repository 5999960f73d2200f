"""The door of job variables: a run is taken in as it asks, or refused in a sentence; the scheduler goes on."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefect.utilities.templating import apply_values

from prefect_gpu.request import GpuRequest, check_request
from prefect_gpu.runtime.controller import ABILITIES
from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model import instructions as do
from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.codec import fields_of
from prefect_gpu.settings import GpuSettings
from prefect_gpu.worker import GpuWorker
from prefect_gpu.worker.configuration import BadRequestError, GpuJobConfiguration, container_of, read_request
from tests.doors.nonsense import door, numbers, tables
from tests.worker.test_configuration import a_deployment, a_pool, a_run

NODE = Node("here", tuple(Device(f"virtual-{n}", "virtual", 8 << 30, virtual=True) for n in range(2)), (0, 1))
POOL, SETTINGS = a_pool(), GpuSettings()
LONGEST = 2_000  # characters of an error: it is shown in Prefect
FIELDS = tuple(GpuWorker.get_default_base_job_template()["variables"]["properties"])
asked = tables(*GpuRequest.model_fields) | st.dictionaries(
    st.sampled_from(["gpus", "workers", "ps", "cpus", "max_gpus", "max_workers", "batch_size", "max_batch_size"]),
    st.integers(0, 5) | numbers,
)


@door
@given(asked, asked)
def test_what_a_run_asks_for(deployment: dict[str, Any], run: dict[str, Any]) -> None:
    try:
        request = read_request(a_run(**run), a_deployment(**deployment), POOL, SETTINGS)
    except BadRequestError as error:
        assert 10 < len(str(error)) < LONGEST
        return
    scheduler = Scheduler("adaptive", ABILITIES)
    scheduler.handle(ev.NodesChanged((NODE,)), 0.0)
    decided = scheduler.handle(ev.JobSubmitted("odd", request, "q", 0.0, 0.0), 1.0)
    assert len(decided) == 1 and isinstance(decided[0], (do.Launch, do.Hold))
    assert len(getattr(decided[0], "reason", "")) < LONGEST
    scheduler.handle(ev.JobSubmitted("next", fine(), "q", 0.0, 0.0), 2.0)
    if "odd" in scheduler.state.running:
        scheduler.handle(ev.JobEnded("odd", "a test"), 3.0)
    else:
        scheduler.handle(ev.JobWithdrawn("odd", "a test"), 3.0)
    assert "next" in scheduler.state.running
    scheduler.state.check_invariants()
    assert fields_of(request)


def fine() -> Any:
    """What any run asks for."""
    return read_request(a_run(), None, POOL, SETTINGS)


@door
@given(tables(*GpuRequest.model_fields))
def test_what_the_decorator_is_given(given_values: dict[str, Any]) -> None:
    try:
        check_request(**given_values)
    except ValueError as error:
        assert 10 < len(str(error)) < LONGEST


@door
@given(tables(*FIELDS))
def test_what_a_launch_is_made_of(variables: dict[str, Any]) -> None:
    """As Prefect fills in the template, without a server that it could look blocks up at."""
    template = POOL.base_job_template["job_configuration"]
    try:
        configuration = GpuJobConfiguration.model_validate(apply_values(template, variables, remove_notset=True))
        container_of(configuration, "image")
    except ValueError as error:  # pydantic's are such
        assert str(error)


@pytest.mark.parametrize("value", [10**400, "x" * 10**6, ["x"] * 10**5], ids=["number", "text", "list"])
def test_an_error_is_not_as_long_as_the_value(value: Any) -> None:
    for field in ("gpus", "gpu_memory", "category", "converged", "features"):
        with pytest.raises(BadRequestError) as caught:
            read_request(a_run(**{field: {"a": value} if field == "features" else value}), None, POOL, SETTINGS)
        assert len(str(caught.value)) < 500
