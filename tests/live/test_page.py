"""The page, the terminal view, and what Prefect links to them, from a real pool."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from playwright.async_api import async_playwright, expect
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, ArtifactFilterKey

from benchmarks._chromium import CHROMIUM, FLAGS
from prefect_gpu.page.server import pages
from tests.live.pool import COLD, LivePool, eventually


async def told(pool: LivePool) -> dict[str, Any]:
    """What the page of the pool's worker is told."""
    [page] = pages(pool.state_dir / "pages")
    async with httpx.AsyncClient(trust_env=False) as client:
        return dict((await client.get(f"{page['url']}/api/overview")).json())


async def artifact(pool: LivePool, ending: str, run: UUID | None = None) -> str:
    """The newest artifact whose key ends so."""
    of = ArtifactFilterFlowRunId(any_=[run]) if run else None
    chosen = ArtifactFilter(key=ArtifactFilterKey(like_=f"%{ending}"), flow_run_id=of)
    found = await pool.client.read_artifacts(artifact_filter=chosen)
    return str(found[0].data) if found else ""


async def status(pool: LivePool, *arguments: str) -> tuple[int, str]:
    """What `prefect-gpu status` prints."""
    command = [sys.executable, "-c", "from prefect_gpu.cli import app; app()", "status", *arguments]
    env = pool.sandbox.env | {"PREFECT_INTEGRATIONS_GPU_STATE_DIR": str(pool.state_dir), "COLUMNS": "200"}
    pipe = asyncio.subprocess.PIPE
    done = await asyncio.create_subprocess_exec(*command, env=env, stdout=pipe, stderr=pipe)
    out, err = await done.communicate()
    return done.returncode or 0, (out + err).decode()


@pytest.mark.needs("chromium")
async def test_the_page_and_the_terminal_show_what_the_pool_does(pool: LivePool, tmp_path: Path) -> None:
    assert (await status(pool))[0] == 1, "there is no worker yet"
    worker = pool.start_worker(virtual_devices="1", page_port="0")
    first = await pool.submit("train", steps=4, hold=str(tmp_path / "go"))
    await pool.until_noted(first)
    second = await pool.submit("train", steps=4)
    await pool.until(second, "AwaitingGpu")
    names = [(await pool.read(run)).name for run in (first, second)]
    [page] = pages(pool.state_dir / "pages", pool.name)
    worker.wait_for_output(f"Watch the pool at {page['url']}")
    assert page["url"] in await eventually(lambda: artifact(pool, f"gpu-page-{pool.name}"), "the link to the page")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        seen = await browser.new_page()
        complaints: list[str] = []
        seen.on("pageerror", lambda error: complaints.append(str(error)))
        await seen.goto(f"{page['url']}/#run={first}")
        await expect(seen.locator("dialog h2")).to_have_text(names[0])
        await expect(seen.locator("dialog")).to_contain_text("Granted virtual-0")
        await seen.keyboard.press("Escape")
        await expect(seen.locator("#running .run")).to_contain_text("Training")
        await expect(seen.locator("#queue tbody tr")).to_contain_text("1 of 1 is in use")
        code, text = await status(pool, "--once", "--pool", pool.name)
        assert code == 0 and re.search(rf"virtual-0.*{names[0]}.*training", text), text
        assert re.search(rf"{names[1]} .*1 of 1 is in use", text), text
        (tmp_path / "go").touch()
        for run in (first, second):
            await pool.until(run, "Completed")
        await expect(seen.locator("#finished tbody tr")).to_have_count(2)
        await expect(seen.locator("#running")).to_contain_text("Nothing runs")
        assert complaints == []
        await browser.close()
    [shown] = json.loads((await status(pool, "--json"))[1])
    both = {run["id"]: run for run in shown["runs"]}
    assert both[str(first)]["outcome"] == both[str(second)]["outcome"] == "completed"
    assert "training" in [span[0] for span in both[str(first)]["spans"]] and shown["devices"][0]["gaps"] == 1
    story = await eventually(lambda: artifact(pool, "-story", second), "the second run's story")
    order = [story.index(words) for words in ("submitted", "waits: ", "granted virtual-0", "is training")]
    assert order == sorted(order) and f"{page['url']}/#run={second}" in story
    await asyncio.to_thread(pool.stop_workers)
    assert pages(pool.state_dir / "pages") == [] and (await status(pool))[0] == 1


async def test_beyond_this_machine_the_page_wants_its_token_and_state_is_for_its_user_only(pool: LivePool) -> None:
    """The state folder lies outside of PREFECT_HOME, and an earlier version left notes, rows and results readable."""
    for name in ("pages", "spool", "results", "of-somebody-else"):
        (pool.state_dir / name).mkdir(parents=True, mode=0o755)
    (pool.state_dir / "results" / "of-a-run").write_bytes(b"pickled")
    umask = os.umask(0)
    os.umask(umask)
    arguments = {"virtual_devices": "1", "page_port": "0", "page_host": "0.0.0.0"}
    worker = pool.start_worker(**arguments, **COLD)
    run = await pool.submit("touch", path=str(pool.folder / "made-by-run"))
    await pool.until(run, "Completed")
    [page] = pages(pool.state_dir / "pages")
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"{page['url']}/api/overview")).status_code == 401
        worker.wait_for_output(f"{page['url']}/?token={page['token']}")
        shown = {"Authorization": f"Bearer {page['token']}"}
        assert (await client.get(f"{page['url']}/api/overview", headers=shown)).status_code == 200
    assert (await status(pool, "--once"))[0] == 0
    readable = [path.name for path in pool.state_dir.iterdir() if path.stat().st_mode & 0o077]
    assert readable == ["of-somebody-else"]
    files = [path for path in pool.state_dir.rglob("*") if path.is_file() and path.stat().st_mode & 0o077]
    assert [path.name for path in files] == ["of-a-run"], "in closed folders, and closed themselves if they are new"
    assert (pool.folder / "made-by-run").stat().st_mode & 0o777 == 0o666 & ~umask, "runs keep their umask"
    await asyncio.to_thread(pool.stop_workers)
    pool.start_worker(**arguments, **COLD).wait_for_output(f"/?token={page['token']}")  # bookmarks stay good


async def test_a_worker_that_takes_over_shows_what_it_found(pool: LivePool, tmp_path: Path) -> None:
    worker = pool.start_worker(virtual_devices="1", page_port="0", **COLD)
    run = await pool.submit("train", steps=4, hold=str(tmp_path / "go"))
    await pool.until_noted(run)
    await pool.until(run, "Training")
    await asyncio.to_thread(worker.kill)
    assert (await status(pool))[0] == 1, "the note is there still, but nobody answers"
    pool.start_worker(virtual_devices="1", page_port="0", **COLD).wait_for_output("Watch the pool at")
    [found] = (await told(pool))["runs"]
    assert found["phase"] == "training" and found["spans"][0][0] == "launching"
    (tmp_path / "go").touch()
    await pool.until(run, "Completed")
