"""A schedule makes runs: Prefect's part, which an installation with a SQLAlchemy that is too new silently lacks."""

from __future__ import annotations

from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.schedules import CronSchedule

from tests.live.pool import LivePool, eventually


async def test_a_deployment_with_a_schedule_gets_runs_that_are_due_then(served: LivePool) -> None:
    deployment = await served.deploy("plain")
    [schedule] = await served.client.create_deployment_schedules(
        deployment, [(CronSchedule(cron="0 3 * * *", timezone="Etc/UTC"), True)]
    )
    its = DeploymentFilter(id=DeploymentFilterId(any_=[deployment]))

    async def planned() -> list[FlowRun]:
        return [run for run in await served.client.read_flow_runs(deployment_filter=its) if run.auto_scheduled]

    try:
        runs = await eventually(planned, "a run of the schedule", 150.0)
        assert {run.expected_start_time.hour for run in runs if run.expected_start_time} == {3}
    finally:
        await served.client.delete_deployment_schedule(deployment, schedule.id)
