"""A container that ends before its run began: whether that says anything of the run."""

from __future__ import annotations

import asyncio

import pytest

from prefect_gpu.runtime.drivers.base import ExitReport, LaunchError
from prefect_gpu.runtime.drivers.docker.handle import ContainerHandle

OF_MEMORY = "The run used more memory than its container's limit"


@pytest.mark.parametrize(
    ("report", "says_nothing_of_the_run"),
    [
        (ExitReport(None, cause="Somebody has removed its container."), True),
        (ExitReport(None, cause="Its node lost its power.", lost=True), True),
        (ExitReport(-9), True),  # somebody killed it
        (ExitReport(-9, cause=OF_MEMORY), False),
        (ExitReport(1, tail=("python3: not found",)), False),
    ],
)
async def test_a_run_may_start_elsewhere_if_its_container_was_ended_by_others(
    report: ExitReport, says_nothing_of_the_run: bool
) -> None:
    async def ended() -> ExitReport:
        return report

    handle = ContainerHandle.__new__(ContainerHandle)  # without an Engine: only what its end was is looked at
    handle._begun = asyncio.get_running_loop().create_future()
    handle._watcher = asyncio.ensure_future(ended())  # type: ignore[assignment]
    with pytest.raises(LaunchError) as raised:
        await handle.begin()
    assert raised.value.away is says_nothing_of_the_run
    assert (report.cause or "before the run began") in str(raised.value)


async def test_a_run_whose_node_is_given_up_as_it_starts_is_not_forgotten() -> None:
    """Nobody follows its container any more then. To end as if its launch had been cancelled would lose the run."""
    handle = ContainerHandle.__new__(ContainerHandle)
    handle._begun = asyncio.get_running_loop().create_future()
    handle._watcher = asyncio.ensure_future(asyncio.sleep(3600))  # type: ignore[assignment, arg-type]
    asyncio.get_running_loop().call_soon(handle._watcher.cancel)
    with pytest.raises(LaunchError) as raised:
        await handle.begin()
    assert raised.value.away
