"""What a launch's files look like after a power loss, and what a driver makes of them."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from prefect_gpu.runtime.drivers import supervisor
from prefect_gpu.runtime.drivers.conformance import MakeSpec, alive, until
from prefect_gpu.runtime.drivers.process import ProcessDriver
from tests.runtime.drivers.test_process_survival import UNTIL_TOLD

LOGGER = logging.getLogger("test.torn")
TORN = [b"", b"{", b"null", b"[]", b"{}", b'{"pid": "x"}', b"\xff\xfe\x00", b"[" * 100_000, b'{"returncode": 1e999}']


@pytest.fixture
async def later() -> AsyncIterator[ProcessDriver]:
    """The driver of the next worker."""
    driver = ProcessDriver(warm=False, echo=lambda label, line: None, logger=LOGGER)
    yield driver
    await driver.close()


@pytest.mark.parametrize("content", TORN, ids=range(len(TORN)))
async def test_a_torn_exit_file_ends_the_run(
    later: ProcessDriver, make_spec: MakeSpec, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    spec = make_spec("")
    spec.run_dir.mkdir()
    facts = {"pid": 2, "start_ticks": 1, "supervisor_pid": 2, "supervisor_start_ticks": 1, "boot": "before"}
    (spec.run_dir / supervisor.PROCESS).write_text(json.dumps(facts | {"warm": False, "by_a_newer_version": [1]}))
    (spec.run_dir / supervisor.EXIT).write_bytes(content)
    adopted = await later.adopt(spec.run_id, spec.run_dir)
    assert adopted is not None
    assert (await adopted.wait()).returncode is None
    assert "exit.json cannot be read, and counts as absent" in caplog.text


@pytest.mark.parametrize("content", TORN, ids=range(len(TORN)))
@pytest.mark.parametrize("claim", [b"", b"{}", b'{"pid": 1e400}', None], ids=range(4))
async def test_a_launch_whose_files_are_all_torn_has_no_process(
    later: ProcessDriver, make_spec: MakeSpec, content: bytes, claim: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    spec = make_spec("")
    spec.run_dir.mkdir()
    (spec.run_dir / supervisor.PROCESS).write_bytes(content)
    if claim is not None:
        (spec.run_dir / supervisor.CLAIM).write_bytes(claim)
    assert await later.adopt(spec.run_id, spec.run_dir) is None
    assert "process.json cannot be read" in caplog.text
    assert not supervisor.claim(str(spec.run_dir), {}), "and it can never start"


@pytest.mark.parametrize(("warm", "torn"), [(False, "process.json"), (False, "all"), (True, "all")])
async def test_a_living_process_whose_file_is_torn_is_found(
    later: ProcessDriver, make_spec: MakeSpec, warm: bool, torn: str
) -> None:
    """A broken disk may tear files without ending processes: its devices must not be granted again."""
    driver = ProcessDriver(warm=warm, echo=lambda label, line: None, logger=LOGGER)
    await driver.start()
    spec = make_spec(UNTIL_TOLD)
    handle = await driver.launch(spec)
    await until((spec.cwd / "ready").exists)
    (spec.run_dir / supervisor.PROCESS).write_bytes(b"")
    if torn == "all":
        (spec.run_dir / supervisor.CLAIM).write_bytes(b"")
    adopted = await later.adopt(spec.run_id, spec.run_dir)
    assert adopted is not None and adopted.pid == handle.pid
    await adopted.stop(grace_seconds=60)
    assert (await adopted.wait()).returncode == -15
    assert not alive(handle.pid)
    await driver.close()


async def test_what_a_launch_writes_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk stands in for itself: what it is told, and in which order, is all that a power loss can leave."""
    told: list[str] = []

    def name_of(fd: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{fd}")).name.partition(".")[0]

    for call in ("replace", "link"):
        kept = getattr(os, call)
        monkeypatch.setattr(os, call, lambda a, b, call=call, kept=kept: (told.append(call), kept(a, b)))
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (told.append(name_of(fd)), fsync(fd)))
    folder = tmp_path / "folder"
    folder.mkdir()
    supervisor.write_json(str(folder / supervisor.PROCESS), {"pid": 1})
    supervisor.write_json(str(folder / supervisor.EXIT), {"returncode": 0})
    assert supervisor.claim(str(folder), {"pid": 1})
    assert told == ["process", "replace", "folder", "exit", "replace", "folder", "claim", "link", "folder"]
