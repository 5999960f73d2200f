"""What every driver does when the disk of a launch's folder is full: subclass it with a fixture ``driver``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_gpu.runtime.drivers.base import Driver, LaunchError
from prefect_gpu.runtime.drivers.conformance import MakeSpec, until
from tests.small_disk import SmallDisk, mounted

# It ends in its own way once it is told. (One that prints to a full disk gets that error from its print.)
UNTIL_TOLD = """
import os, sys, time
open("begun", "w").close()
while not os.path.exists("go"):
    time.sleep(0.02)
sys.exit(3)
"""


class FullDisk:
    @pytest.fixture
    def small_disk(self, tmp_path: Path) -> Iterator[SmallDisk]:
        with mounted(tmp_path / "disk", 1 << 20) as disk:
            yield disk

    async def test_the_end_of_a_run_is_reported(
        self, driver: Driver, make_spec: MakeSpec, small_disk: SmallDisk
    ) -> None:
        spec = dataclasses.replace(make_spec(UNTIL_TOLD), run_dir=small_disk.folder / "run")
        handle = await driver.launch(spec)
        await until((Path(spec.cwd) / "begun").exists)
        small_disk.fill()
        (Path(spec.cwd) / "go").touch()
        assert (await handle.wait()).returncode == 3

    @pytest.mark.parametrize("pages", [0, 2])
    async def test_a_run_that_finds_no_room_is_not_to_blame(
        self, driver: Driver, make_spec: MakeSpec, small_disk: SmallDisk, pages: int
    ) -> None:
        """With two pages, there is room for its claim and its exit, and not for process.json."""
        spec = dataclasses.replace(make_spec("pass"), run_dir=small_disk.folder / "run")
        spec.run_dir.mkdir()
        small_disk.fill(but_pages=pages)
        with pytest.raises(LaunchError, match="No space left") as failed:
            await driver.launch(spec)
        assert failed.value.no_room
        small_disk.make_room()
        again = await driver.launch(dataclasses.replace(spec, run_dir=small_disk.folder / "again"))
        assert (await again.wait()).returncode == 0
