"""What a run asks for, from the pool's template, its deployment and itself; no server is needed."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import Flow, FlowRun, WorkPool
from prefect.client.schemas.responses import DeploymentResponse
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.workers.base import BaseJobConfiguration
from pydantic import ValidationError

from prefect_gpu.request import GpuRequest, explain
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.settings import GpuSettings
from prefect_gpu.worker import GpuWorker
from prefect_gpu.worker.configuration import BadRequestError, GpuJobConfiguration, merge_job_variables, read_request

GIB = 2**30
NOBODY = cast(PrefectClient, SimpleNamespace())
"""In place of a client that is not to be asked. Without one, Prefect would start a server."""


def a_run(**variables: Any) -> FlowRun:
    return FlowRun(flow_id=uuid4(), job_variables=variables)


def a_deployment(**variables: Any) -> DeploymentResponse:
    return DeploymentResponse(id=uuid4(), flow_id=uuid4(), name="d", job_variables=variables)


def a_pool(
    *, defaults: dict[str, Any] | None = None, job: dict[str, Any] | None = None, without: tuple[str, ...] = ()
) -> WorkPool:
    """A gpu pool whose template has been edited."""
    template = GpuWorker.get_default_base_job_template()
    for name, value in (defaults or {}).items():
        template["variables"]["properties"][name]["default"] = value
    template["job_configuration"].update(job or {})
    for name in without:
        del template["job_configuration"][name]
    return WorkPool(name="gpus", type="gpu", base_job_template=template, default_queue_id=uuid4())


said = partial(Request, converged="yield")
asked = partial(said, automatic=True)  # nothing is said of company: the pool decides

# the pool, the deployment's variables, the run's own, and what is asked for in the end
TABLE: dict[str, tuple[WorkPool, dict[str, Any], dict[str, Any], Request]] = {
    "nothing is said": (a_pool(), {}, {}, asked()),
    "the deployment says": (a_pool(), {"gpus": 2, "gpu_memory": "6GiB"}, {}, asked(2, 6 * GIB)),
    "the run says": (a_pool(), {}, {"cpus": 3, "exclusive": False}, said(cpus=3, exclusive=False)),
    "the run has the last word": (a_pool(), {"gpus": 2, "cpus": 4}, {"gpus": 0}, said(0, cpus=4)),
    "the pool has other defaults": (
        a_pool(defaults={"gpus": 4, "gpu_memory": "1GiB", "exclusive": False}),
        {"gpu_memory": "2GiB"},
        {},
        said(4, 2 * GIB, exclusive=False),
    ),
    "the pool fixes a value": (a_pool(job={"gpus": 1, "cpus": 2}), {"gpus": 8}, {"cpus": 8}, asked(1, cpus=2)),
    "the pool fixes a value as text": (a_pool(job={"gpus": "2"}), {}, {}, asked(2)),
    "the pool takes a value from another variable": (
        a_pool(job={"category": "{{ name }}"}),
        {},
        {"name": "cv"},
        asked(category="cv"),
    ),
    "the pool has taken a field out": (a_pool(without=("gpu_memory",)), {"gpu_memory": "6GiB"}, {}, asked()),
    "an emptied field of the form": (a_pool(), {"gpu_memory": ""}, {}, asked()),
    "alone in any case": (a_pool(defaults={"exclusive": False}), {}, {"exclusive": True}, said()),
    "the pool decides, as the form says it": (a_pool(), {"exclusive": None}, {}, asked()),
    "a kind of training": (a_pool(), {"category": "nlp"}, {}, asked(category="nlp")),
    "named features": (a_pool(), {"features": ["lr", " lr", "m.w "]}, {}, asked(features=("lr", "m.w"))),
    "the run names other features": (
        a_pool(defaults={"features": ["a"]}),
        {"features": ["b"]},
        {"features": ["c"]},
        asked(features=("c",)),
    ),
    "no feature is named": (a_pool(), {"features": []}, {}, asked()),
    "an early end": (a_pool(), {"converged": "stop"}, {}, asked(converged="stop")),
    "no matter what the loss does": (a_pool(), {"converged": "ignore"}, {}, asked(converged="")),
    "an emptied choice of the form": (a_pool(), {"converged": None}, {}, asked()),
    "variables that say nothing of the place": (a_pool(), {"env": {"A": "1"}, "image": "x"}, {}, asked()),
}


@pytest.mark.parametrize("pool, deployment, run, expected", TABLE.values(), ids=TABLE.keys())
def test_requests(pool: WorkPool, deployment: dict[str, Any], run: dict[str, Any], expected: Request) -> None:
    assert read_request(a_run(**run), a_deployment(**deployment), pool) == expected


def test_a_run_without_a_deployment_says_all_itself() -> None:
    assert read_request(a_run(gpus=3), None, a_pool()) == asked(3)


@pytest.mark.parametrize(
    "variables, words",
    [
        ({"gpus": -1}, ["gpus=-1 is not allowed", "whole number"]),
        ({"gpus": "two"}, ["gpus='two' is not allowed"]),
        ({"gpus": True}, ["gpus=True is not allowed"]),
        ({"gpus": 1.5}, ["gpus=1.5 is not allowed"]),
        ({"gpu_memory": "much"}, ["gpu_memory='much' is not allowed", "6GiB"]),
        ({"cpus": 0}, ["cpus=0 is not allowed", "from 1 up"]),
        ({"category": "cats"}, ["category='cats' is not allowed", "cv, nlp"]),
        ({"exclusive": "perhaps"}, ["exclusive='perhaps' is not allowed", "True or False"]),
        ({"converged": "later"}, ["converged='later' is not allowed", "yield, stop, ignore"]),
        ({"features": "lr"}, ["features='lr' is not allowed", "a list of parameter names"]),
        ({"features": {"lr": 1}}, ["features={'lr': 1} is not allowed", "or leave it out"]),
        ({"gpus": -1, "cpus": 0}, ["gpus=-1", "cpus=0"]),
    ],
)
def test_a_bad_value_is_refused_with_a_remedy(variables: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(BadRequestError) as caught:
        read_request(a_run(**variables), None, a_pool())
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "variables, words",
    [
        ({"gpus": 9}, "gpus=9 is more than the 8 .* ask for 8 or fewer, .* PREFECT_INTEGRATIONS_GPU_MOST_GPUS=8"),
        ({"max_gpus": 9}, "max_gpus=9 is more than the 8 .*_MOST_GPUS=8"),
        ({"cpus": 5}, "cpus=5 is more than the 4 .*_MOST_CPUS=4"),
        ({"workers": 4}, "workers=4 is more than the 3 .*_MOST_INSTANCES=3"),
        ({"max_workers": 4}, "max_workers=4 is more than the 3 .*_MOST_INSTANCES=3"),
        ({"workers": 2, "ps": 2}, "ps=2 is more than the 1 .*_MOST_INSTANCES=3"),
    ],
)
def test_what_the_operator_does_not_allow_is_refused_with_the_setting_that_says_so(
    variables: dict[str, Any], words: str
) -> None:
    settings = GpuSettings(most_gpus=8, most_cpus=4, most_instances=3)
    with pytest.raises(BadRequestError, match=words):
        read_request(a_run(**variables), None, a_pool(), settings)
    most = {"gpus": 8, "max_gpus": 8, "cpus": 4, "workers": 2, "ps": 1}
    assert read_request(a_run(**most), None, a_pool(), settings).servers == 1


def test_a_range_of_workers_makes_an_elastic_gang_that_may_be_stopped() -> None:
    request = read_request(a_run(workers=2, max_workers=8, gpus=2), None, a_pool())
    assert request.grows and request.is_elastic and request.is_gang and request.preemptible
    assert (request.total_gpus, request.most_gpus) == (4, 16)
    assert request.batch_sizes is None, "the batch is its own affair"
    chosen = read_request(a_run(max_workers=8, batch_size=64, max_batch_size=1024), None, a_pool())
    assert chosen.batch_sizes == (64, 1024)
    fixed = read_request(a_run(workers=2, max_workers=2), None, a_pool())
    assert not fixed.grows and fixed.max_workers is None and not fixed.preemptible


def test_environments_are_merged_key_by_key() -> None:
    deployment = a_deployment(env={"A": "deployment", "B": "deployment"}, gpus=2)
    run = a_run(env={"B": "run", "C": "run"})
    merged = merge_job_variables(run, deployment)
    assert merged == {"env": {"A": "deployment", "B": "run", "C": "run"}, "gpus": 2}
    assert deployment.job_variables["env"] == {"A": "deployment", "B": "deployment"}, "nobody's own is changed"
    assert run.job_variables == {"env": {"B": "run", "C": "run"}}


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"env": "A=1"}, "env='A=1' is not allowed: give names with their values."),
        ({"command": 5}, "command=5 is not allowed: Input should be a valid string."),
    ],
)
async def test_a_template_that_makes_no_configuration_is_said_in_a_sentence(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as refused:
        template = a_pool(job=wrong).base_job_template
        await GpuJobConfiguration.from_template_and_values(base_job_template=template, values={}, client=NOBODY)
    assert explain(refused.value) == said


def test_an_environment_of_the_run_alone_is_taken_as_it_is() -> None:
    assert merge_job_variables(a_run(env={"A": "1"}), a_deployment()) == {"env": {"A": "1"}}
    assert merge_job_variables(a_run(), None) == {}


def test_the_form_in_the_ui_explains_each_field() -> None:
    template = GpuWorker.get_default_base_job_template()
    properties = template["variables"]["properties"]
    for name in (*GpuRequest.model_fields, "stream_output", "working_dir"):
        assert properties[name]["title"] and len(properties[name]["description"]) > 20, name
        assert template["job_configuration"][name] == "{{ " + name + " }}"
    assert not template["variables"].get("required"), "everything has a default"


def test_the_template_is_a_json_schema_that_takes_what_it_should() -> None:
    jsonschema = import_module("jsonschema")  # comes with Prefect
    schema = GpuWorker.get_default_base_job_template()["variables"]
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    for variables in (
        {},
        {"gpus": 2, "gpu_memory": "6GiB", "cpus": 1, "category": "cv", "exclusive": False},
        {"features": ["lr"]},
    ):
        validator.validate(variables)
    for variables in ({"gpus": -1}, {"cpus": 0}, {"category": "cats"}, {"exclusive": "no"}, {"features": [1]}):
        assert not validator.is_valid(variables), variables


ENVIRONMENTS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "the run beside the deployment": ({}, {"env": {"A": "d"}}, {"env": {"B": "r"}}),
    "the deployment over the pool": ({"A": "p", "B": "p"}, {"env": {"B": "d"}}, {}),
    "all three": ({"A": "p"}, {"env": {"A": "d", "C": "d"}}, {"env": {"C": "r"}}),
    "the run over the pool": ({"A": "p"}, {}, {"env": {"A": "r", "N": 1}}),
    "an empty text is a value": ({"A": "p"}, {"env": {"A": ""}}, {}),
    "one is taken away": ({"A": "p", "B": "p"}, {"env": {"A": None}}, {}),
    "with a dot": ({"A": "p"}, {"env.A": "d"}, {"env.B": "r"}),
    "other fields, labels and a name": (
        {},
        {"labels": {"a": "d"}, "name": "{{ ctx.flow.name }}-{{ ctx.flow_run.name }}", "stream_output": False},
        {"labels": {"b": "r"}, "command": "", "image": "r"},
    ),
}


@pytest.mark.parametrize("fixed", [False, True], ids=["default", "fixed"])
@pytest.mark.parametrize("pool, deployment, run", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
async def test_a_run_is_configured_as_prefects_own_function_does_it(
    pool: dict[str, Any], deployment: dict[str, Any], run: dict[str, Any], fixed: bool
) -> None:
    """We read what Prefect's function reads again for each run, and merge it ourselves."""
    work_pool = a_pool(job={"env": pool}) if fixed and pool else a_pool(defaults={"env": pool} if pool else {})
    flow = Flow(id=uuid4(), name="train")

    async def read_flow(_: object) -> Flow:
        return flow

    def fresh() -> tuple[FlowRun, DeploymentResponse]:
        flow_run = a_run(**deepcopy(run)).model_copy(update={"flow_id": flow.id, "name": "calm-owl"})
        return flow_run, a_deployment(**deepcopy(deployment))

    client = cast(PrefectClient, SimpleNamespace(read_flow=read_flow))
    flow_run, of_deployment = fresh()
    expected = await GpuJobConfiguration.resolve_for_flow_run(
        flow_run.model_copy(deep=True),
        client=client,
        work_pool=work_pool,
        worker_name="w",
        deployment=of_deployment.model_copy(deep=True),
    )
    ours = await GpuJobConfiguration.from_template_and_values(
        base_job_template=work_pool.base_job_template,
        values=merge_job_variables(flow_run, of_deployment),
        client=client,
    )
    ours.prepare_for_flow_run(flow_run, of_deployment, flow, work_pool, "w")
    assert ours.model_dump() == expected.model_dump()
    assert expected.env["PREFECT__WORKER_NAME"] == "w" and expected.labels["prefect.io/worker-name"] == "w"
    assert expected.name == ("train-calm-owl" if "name" in deployment else "calm-owl")


def test_deadlines_and_limits() -> None:
    pool = a_pool()
    run = a_run(time_limit="2h", deadline="6h", deadline_kind="promise")
    request = read_request(run, None, pool, due=1000.0)
    assert (request.time_limit_s, request.deadline_at, request.promise) == (7200.0, 22_600.0, True)
    request = read_request(a_run(deadline="1970-01-01T01:00:00+01:00"), None, pool)
    assert (request.deadline_at, request.promise) == (0.0, False)
    for wrong, words in {
        ("deadline", "tomorrow"): "with its time zone",
        ("deadline", "2026-03-01T18:00"): "with its time zone",
        ("deadline", "999999999h"): "with its time zone",
        ("deadline", "9999-12-31T23:59-12:00"): "with its time zone",
        ("time_limit", "long"): "such as 2h",
        ("deadline_kind", "promise"): "without a deadline",
        ("deadline_kind", "maybe"): "best-effort",
    }.items():
        with pytest.raises(BadRequestError, match=words):
            read_request(a_run(**dict([wrong])), None, pool)


def test_prefects_settings_are_written_once_and_anew_where_they_are_others() -> None:
    first = GpuJobConfiguration._base_environment()
    assert first == BaseJobConfiguration._base_environment()
    first["PREFECT_API_URL"] = "spoilt by who got it"
    assert GpuJobConfiguration._base_environment() == BaseJobConfiguration._base_environment()
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        assert GpuJobConfiguration._base_environment()["PREFECT_API_URL"] == "http://127.0.0.1:9/api"
    assert GpuJobConfiguration._base_environment() == BaseJobConfiguration._base_environment()
