"""What the page's server answers, and to whom."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import httpx
import pytest

from prefect_gpu.page.app import is_ours
from prefect_gpu.page.server import PageServer, pages
from tests.page.conftest import Serve
from tests.page.scene import Scene, a_run, crowd

NOW = 1_000_000.0


def client(server: PageServer) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url, trust_env=False)


async def test_the_page_and_all_that_it_loads_is_there_and_nothing_else(serve: Serve) -> None:
    async with client(await serve(Scene(NOW, []))) as ask:
        for path in ("/", "/page.css", "/page.js", "/phases.css", "/phases.js", "/lanes.js", "/curve.js", "/words.js"):
            answer = await ask.get(path)
            assert answer.status_code == 200, path
            assert "http://" not in answer.text.replace("http://www.w3.org/", ""), "it works without a network"
            assert "https://" not in answer.text
        for path in ("/index.html", "/../app.py", "/%2e%2e/app.py", "/static/page.js", "/api", "/api/runs/x", "/docs"):
            assert (await ask.get(path)).status_code == 404, path


async def test_numbers_of_thousands_of_digits_are_no_error_of_ours(serve: Serve) -> None:
    async with client(await serve(Scene(NOW, [a_run(1, NOW)]))) as ask:
        epoch = (await ask.get("/api/overview")).json()["epoch"]
        told = await ask.get("/api/overview", params={"since": "9" * 5000, "epoch": epoch, "queue": "9" * 5000})
        assert told.status_code == 200 and told.json()["runs"] == []
        assert (await ask.get("/api/runs/1")).status_code == 200
        for odd in ("9" * 5000, "²", "-1", "1.0"):
            assert (await ask.get(f"/api/runs/{odd}")).status_code == 404, odd[:4]


async def test_it_can_only_be_read(serve: Serve) -> None:
    async with client(await serve(Scene(NOW, [a_run(1, NOW)]))) as ask:
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            for path in ("/", "/api/overview", "/api/runs/1"):
                assert (await ask.request(method, path)).status_code == 405


async def test_every_answer_forbids_foreign_code_and_foreign_readers(serve: Serve) -> None:
    async with client(await serve(Scene(NOW, []))) as ask:
        for path in ("/", "/api/overview", "/nothing"):
            headers = (await ask.get(path, headers={"Origin": "http://evil.example"})).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
            assert "access-control-allow-origin" not in headers
            assert headers["cross-origin-resource-policy"] == "same-origin"
            assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "name", ["evil.example", "evil.example:4280", "localhost.evil.example", "127.0.0.1.evil.example", ""]
)
async def test_a_name_that_is_not_ours_is_refused(serve: Serve, name: str) -> None:
    async with client(await serve(Scene(NOW, [a_run(1, NOW)]))) as ask:
        answer = await ask.get("/api/overview", headers={"Host": name})
        assert answer.status_code in (400, 421) and "quick-fox" not in answer.text


def test_our_own_names_are_answered() -> None:
    names = {"localhost", "desk"}
    for name in ("localhost", "LOCALHOST:4280", "desk:1", "localhost.", "127.0.0.1:4280", "[::1]:4280", "192.168.1.7"):
        assert is_ours(name, names), name
    for name in ("", ":4280", "desk.evil.example", "1.2.3", "[evil]:80"):
        assert not is_ours(name, names), name


async def test_who_does_not_know_the_token_is_told_nothing(serve: Serve) -> None:
    server = await serve(Scene(NOW, [a_run(1, NOW)]), token="s3cr/t+")
    paths = ("/", "/page.js", "/phases.css", "/api/overview", "/api/runs/1", "/metrics", "/nothing")
    async with client(server) as ask:
        for path in paths:
            for wrong in (
                {},
                {"Authorization": "Bearer wrong"},
                {"Authorization": "Bearer"},
                {"Cookie": "token=s3cr/t+"},
            ):
                answer = await ask.get(path, headers=wrong)
                assert answer.status_code == 401 and "quick-fox" not in answer.text, (path, wrong)
            assert (await ask.get(path, params={"token": "s3cr/t"})).status_code == 401
        assert "PREFECT_INTEGRATIONS_GPU_PAGE_TOKEN" in answer.text
        shown = {"Authorization": "Bearer s3cr/t+"}
        assert "quick-fox" in (await ask.get("/api/overview", headers=shown)).text
        assert "quick-fox" in (await ask.get("/api/overview", params={"token": "s3cr/t+"})).text
        assert (await ask.get("/nothing", headers=shown)).status_code == 404
    async with client(server) as browser:  # it keeps a cookie, and its address bar does not show the token
        entered = await browser.get(server.entry, follow_redirects=True)
        assert entered.status_code == 200 and "token" not in str(entered.url)
        assert "quick-fox" in (await browser.get("/api/overview")).text


async def test_the_note_of_a_page_is_for_its_user_only_and_has_the_token(serve: Serve, tmp_path: Path) -> None:
    await serve(Scene(NOW, []), token="abc")
    [note] = (tmp_path / "pages").iterdir()
    assert note.stat().st_mode & 0o077 == 0
    assert pages(tmp_path / "pages")[0]["token"] == "abc"


async def test_a_page_is_served_though_its_note_cannot_be_written(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "pages" / "gpus.json" / "a-folder").mkdir(parents=True)
    server = await serve(Scene(NOW, []))
    assert isinstance(server.unnoted, IsADirectoryError)
    async with client(server) as ask:
        assert (await ask.get("/api/overview")).json()["pool"] == "gpus"


async def test_only_what_changed_is_sent_and_another_worker_begins_anew(serve: Serve) -> None:
    scene = crowd(5, NOW)
    async with client(await serve(scene)) as ask:
        first = (await ask.get("/api/overview")).json()
        assert [run["n"] for run in first["runs"]] == [1, 2, 3, 4, 5]
        scene.change(4, step=30)
        seen = {"since": first["version"], "epoch": first["epoch"]}
        second = (await ask.get("/api/overview", params=seen)).json()
        assert [(run["n"], run["step"]) for run in second["runs"]] == [(4, 30)]
        for odd in (
            {"since": "x", "epoch": first["epoch"]},
            {"since": "-1", "epoch": first["epoch"]},
            {"since": "7", "epoch": "old"},
        ):
            assert len((await ask.get("/api/overview", params=odd)).json()["runs"]) == 5


async def test_one_run_is_told_with_its_story(serve: Serve) -> None:
    async with client(await serve(Scene(NOW, [a_run(1, NOW)]))) as ask:
        found = (await ask.get("/api/runs/1")).json()
        assert found["name"] == "quick-fox-1" and found["story"][0][1] == "submitted"
        assert (await ask.get("/api/runs/2")).status_code == 404


async def test_a_loss_that_is_no_number_is_still_json(serve: Serve) -> None:
    run = a_run(1, NOW, loss=float("nan"), best_loss=float("inf"), losses=[(1, 2.0), (2, float("nan"))])
    async with client(await serve(Scene(NOW, [run]))) as ask:

        def refuse(name: str) -> float:
            raise AssertionError(f"{name} is no JSON")

        [told] = json.loads((await ask.get("/api/overview")).text, parse_constant=refuse)["runs"]
        assert told["loss"] is None and told["losses"] == [[1, 2.0], [2, None]]


async def test_a_taken_port_is_passed_over_and_notes_tell_where_pages_are(serve: Serve, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = await serve(Scene(NOW, []), port=port)
        assert not server.url.endswith(f":{port}")
        async with client(server) as ask:
            assert (await ask.get("/api/overview")).json()["pool"] == "gpus"
    folder = tmp_path / "pages"
    (folder / "broken.json").write_text("{")
    (folder / "empty.json").write_text("[]")
    assert pages(folder) == pages(folder, "gpus") == [{"pool": "gpus", "url": server.url}]
    assert pages(folder, "others") == [] and pages(tmp_path / "nowhere") == []
    await server.close()
    assert pages(folder) == []


async def test_an_address_that_is_not_this_machines_is_an_error(serve: Serve) -> None:
    with pytest.raises(OSError):
        await serve(Scene(NOW, []), host="192.0.2.1")
