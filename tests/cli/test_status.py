"""`prefect-gpu status`, from pages of made-up pools; tests/live/test_page.py has a real one."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest
from rich.console import Console

from prefect_gpu.cli.status_view import screen_of
from prefect_gpu.page.server import PageServer, pages, unreadable
from tests.cli.conftest import InProcess
from tests.page.scene import Scene, a_run, large_pool, three_nodes, waiting


@contextmanager
def served(state: Path, scene: Scene, pool: str = "gpus") -> Iterator[str]:
    """The page of a pool, served by a thread as a worker does; its address."""
    loop, server = asyncio.new_event_loop(), None
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        note = state / "pages" / f"{pool}.json"
        server = PageServer(scene, host="127.0.0.1", port=0, note=note, pool=pool)
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(30)
        yield server.url
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def a_scene() -> Scene:
    now = time.time()
    demoted = a_run(1, now - 20, over=False, name="gives-way", weights=[[now - 5, 0.25]])
    gate = a_run(
        2, now - 4, over=False, name="next-one", phase="gate", gated=True, behind="gives-way", step=None, steps=None
    )
    paused = a_run(3, now - 4, device="virtual-1", over=False, name="pauses", weights=[[now, 0.0]], finishing="enough")
    opaque = a_run(4, now - 4, device="virtual-2", over=False, name="opaque", steps=None, loss=None, losses=[])
    over = [a_run(5, now - 60, name="early-bird"), a_run(6, now - 60, name="unlucky", outcome="failed")]
    return Scene(now, [demoted, gate, paused, opaque, *over], [waiting(n, now) for n in range(1, 15)])


def test_what_ended_on_another_day_has_its_date(run_cli: InProcess, state: Path) -> None:
    scene = Scene(time.time(), [a_run(1, 1_000_000_000.0, name="early-bird")])
    with served(state, scene):
        assert re.search(r"2001-09-\d\d \d\d:\d\d +early-bird", run_cli("status").stdout)


def test_it_shows_devices_runs_the_queue_and_what_has_finished(run_cli: InProcess, state: Path) -> None:
    scene = a_scene()
    scene.unwell = ["Prefect has not answered as it should for 42 s"]
    with served(state, scene) as url:
        done = run_cli("status")
    assert done.exit_code == 0
    assert "Not well: Prefect has not answered as it should for 42 s" in done.stdout

    def line(word: str) -> str:
        return next(line for line in done.stdout.splitlines() if word in line)

    assert url in done.stdout and "Pool gpus on desk, profile adaptive" in done.stdout
    assert "virtual-0 8 GiB" in line("gives-way") and "training" in line("gives-way") and "25%" in line("gives-way")
    assert "at the gate behind gives-way" in line("next-one")
    assert "paused" in line("pauses") and "ends early" in line("pauses")
    assert "step 20" in line("opaque") and "nobody" in line("virtual-3")
    assert "4 of 4 devices are in use" in line("patient-ox-1") and "and 2 more" in done.stdout
    assert "completed" in line("early-bird") and "failed" in line("unlucky")


def test_a_run_on_a_device_that_is_gone_is_shown(run_cli: InProcess, state: Path) -> None:
    """A worker that finds a device missing adopts the run that trains on it. It was in no row."""
    now = time.time()
    with served(state, Scene(now, [a_run(1, now - 20, device="virtual-9", over=False, name="left-over")], [])):
        lines = run_cli("status").stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if "left-over" in line)
    assert "virtual-9" in lines[at] and "training" in lines[at] and "is not there any more" in lines[at + 1]


def test_nodes_stand_above_their_devices_and_a_gang_is_on_all_of_its(run_cli: InProcess, state: Path) -> None:
    with served(state, three_nodes(time.time())):
        done = run_cli("status")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "Pool gpus on a, b, c (closed), d (gone)" in done.stdout
    heads = [lines.index(head) for head in ("a, rack r1", "b, rack r1", "c (closed), rack r2", "d (gone), rack r2")]
    assert heads == sorted(heads)
    a, b, c = (lines[start:end] for start, end in itertools.pairwise(heads))
    assert a[1].startswith("virtual-0 8 GiB large-gang worker 0") and a[2].startswith("virtual-1 8 GiB nobody")
    assert a[3].startswith("no device reads-data")
    assert "large-gang worker 1" in b[1] and "beside-it" in b[2] and "large-gang server 3" in b[3]
    assert "large-gang worker 2" in c[1]
    assert "virtual" not in lines[heads[3] + 1], "nothing runs on what is gone"


def test_json_is_what_the_page_is_told(run_cli: InProcess, state: Path) -> None:
    with served(state, a_scene()) as url:
        [told] = json.loads(run_cli("status", "--json").stdout)
    assert told["url"] == url and told["queued"] == 14 and {run["n"] for run in told["runs"]} == set(range(1, 7))


def test_a_worker_of_another_version_is_said_to_be_one(
    run_cli: InProcess, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = import_module("prefect_gpu.cli.status")
    heard = command.ask
    monkeypatch.setattr(command, "ask", lambda *about: [{**one, "runs": [{"n": 1}]} for one in heard(*about)])
    with served(state, a_scene()) as url:
        done = run_cli("status", "--once")
    assert done.exit_code == 0 and "another version" in done.stdout and url in done.stdout


def test_a_pool_can_be_chosen(run_cli: InProcess, state: Path) -> None:
    with served(state, a_scene()):
        assert run_cli("status", "--once", "--pool", "gpus").exit_code == 0
        other = run_cli("status", "--once", "--pool", "others")
    assert other.exit_code == 1 and "No worker of pool 'others' answers" in other.stderr


def test_without_a_worker_it_says_what_to_do(run_cli: InProcess, state: Path) -> None:
    done = run_cli("status")
    assert done.exit_code == 1 and str(state / "pages") in done.stderr
    assert "prefect worker start" in done.stderr and "PREFECT_INTEGRATIONS_GPU_PAGE" in done.stderr


def test_a_note_of_a_worker_that_was_killed_is_no_worker(run_cli: InProcess, state: Path) -> None:
    with served(state, a_scene()) as url:
        note = state / "pages" / "gpus.json"
        (state / "pages" / "older.json").write_text(json.dumps({"pool": "older", "url": url}))
        kept = note.read_text()
        done = run_cli("status", "--json")
        assert len(json.loads(done.stdout)) == 1, "another pool's worker listens there now"
    note.write_text(kept)
    assert run_cli("status").exit_code == 1


def test_who_follows_a_worker_waits_for_one_that_is_busy_and_ends_with_one_that_has_ended(
    run_cli: InProcess, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = import_module("prefect_gpu.cli.status")
    monkeypatch.setattr(command, "_EVERY_S", 0.0)
    monkeypatch.setattr(command.common, "console", lambda: Console(force_terminal=True, file=io.StringIO()))
    asks, note = list[int](), state / "pages" / "gpus.json"

    def ask(folder: Path, pool: str | None) -> list[dict[str, object]]:
        asks.append(len(asks))
        if len(asks) in (2, 3):
            return []  # it is busy
        if len(asks) == 5:
            note.unlink()
            return []
        return heard(folder, pool)

    heard = command.ask
    monkeypatch.setattr(command, "ask", ask)
    with served(state, a_scene()):
        kept = note.read_text()
        done = run_cli("status")
        note.write_text(kept)
    assert done.exit_code == 1 and "The worker has ended" in done.stderr and len(asks) == 5


def test_names_are_no_markup(run_cli: InProcess, state: Path) -> None:
    now = time.time()
    scene = Scene(now, [a_run(1, now - 9, over=False, name="[red]x[/blue]")], [waiting(1, now) | {"name": "[/]"}])
    with served(state, scene):
        done = run_cli("status")
    assert "[red]x[/blue]" in done.stdout and "[/]" in done.stdout


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_narrow_terminal_leaves_out_columns_and_says_which_and_cuts_off_nothing(width: int) -> None:
    """A share of 25% read "2…", and why a run waits was in no column any more."""
    told = {"pool": "gpus", "url": "http://desk", **a_scene().overview(0)}
    told["queue"][0] |= {"name": "train-lr=0.01-hidden=128-dropout=0.5-seed=17", "reason": "2 devices are in use"}
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=width, file=nowhere)
        console.print(screen_of(told))
    shown = console.export_text()
    assert "…" not in shown and all(len(line) <= width for line in shown.splitlines())
    devices, queue = (part.partition("\n\n")[0] for part in shown.partition("Devices")[2].split("Queue: "))
    assert "gives-way" in devices and "training" in devices and "virtual-3" in devices
    assert "Left out, as there is no room: " in devices and "Device idle" in " ".join(devices.split())
    assert ("25%" in devices) == (width == 80)
    assert "Why it waits" in queue and "=17" in queue
    assert all(word in queue for word in ("devices", "are", "in", "use"))


@pytest.mark.parametrize(("width", "curve"), [(140, 16), (105, 8), (100, 0)])
def test_curves_are_as_long_as_there_is_room_for_beside_whole_words(width: int, curve: int) -> None:
    told = {"pool": "gpus", "url": "http://desk", **large_pool(time.time()).overview(0)}
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=width, file=nowhere)
        console.print(screen_of(told))
    lines = console.export_text().splitlines()
    titles, run = (next(line for line in lines if word in line) for word in ("Device idle", "quick-fox-13"))
    assert "Share  Cores  Loss" in titles and "…" not in run and run.rstrip().endswith("50 ms × 10")
    assert sum(run.count(bar) for bar in "▁▂▃▄▅▆▇█") == curve, run


def test_whoever_may_not_read_the_notes_of_workers_is_told_so(
    run_cli: InProcess, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = state / "pages"
    folder.mkdir(parents=True)
    as_root = os.getuid() == 0
    state.chmod(0o000)
    if as_root:
        os.setresuid(65534, 65534, 0)
    try:
        found = pages(folder), unreadable(folder)
    finally:
        if as_root:
            os.setresuid(0, 0, 0)
        state.chmod(0o700)
    assert found == ([], folder) and unreadable(folder) is None
    monkeypatch.setattr("prefect_gpu.page.server.unreadable", lambda folder: folder)
    done = run_cli("status")
    assert done.exit_code == 1 and f"{folder} cannot be read" in done.stderr


def test_a_file_that_cannot_be_changed_is_named(run_cli: InProcess, state: Path) -> None:
    state.write_text("a file where the folder should be")
    done = run_cli("cordon", "virtual-0", PREFECT_INTEGRATIONS_GPU_VIRTUAL_DEVICES="1")
    assert done.exit_code == 1 and "cordoned.json cannot be changed: " in done.stderr
