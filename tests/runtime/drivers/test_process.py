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


async def test_what_is_ours_in_the_folder_of_a_run_is_closed_to_others(make_spec: MakeSpec) -> None:
    """Also where runs have a umask that closes nothing."""
    driver = ProcessDriver(warm=False, echo=lambda label, line: None, logger=LOGGER, umask=0)
    spec = make_spec("print('said')")
    await (await driver.launch(spec)).wait()
    await driver.close()
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in spec.run_dir.iterdir()}
    assert modes.keys() >= {"claim", "exit.json", "output.log", "process.json"}
    assert set(modes.values()) == {"0o600"}, modes
