"""The process driver: the conformance suite, cold and warm, and what only processes of this machine can show."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from prefect_gpu.runtime.drivers.base import Driver
from prefect_gpu.runtime.drivers.conformance import DriverConformance, Echo, MakeDriver, MakeSpec
from prefect_gpu.runtime.drivers.process import ProcessDriver

LOGGER = logging.getLogger("test.driver")


class TestCold(DriverConformance):
    @pytest.fixture
    def make_driver(self) -> MakeDriver:
        return lambda echo: ProcessDriver(warm=False, echo=echo, logger=LOGGER)


class TestWarm(DriverConformance):
    @pytest.fixture
    def make_driver(self, caplog: pytest.LogCaptureFixture) -> Iterator[MakeDriver]:
        def make(echo: Echo) -> Driver:
            return ProcessDriver(warm=True, preload=["json", "subprocess"], echo=echo, logger=LOGGER)

        yield make
        # Every run of the suite that can be warm is: a fallback would test the cold start twice.
        assert [record.message for record in caplog.get_records("call") if record.levelno >= logging.WARNING] == []

    async def test_python_modules_start_warm_and_commands_do_not(self, driver: Driver, make_spec: MakeSpec) -> None:
        assert (await driver.launch(make_spec("print()"))).warm
        assert not (await driver.launch(make_spec("", argv=("bash", "-c", "true")))).warm
