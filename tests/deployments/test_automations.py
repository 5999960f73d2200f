"""The sample that makes an automation, with what would make one that never does anything."""

from __future__ import annotations

import json
import re
import runpy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import typer
from prefect.server.utilities.user_templates import render_user_template
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from prefect_gpu.worker.telling.run_events import RunEvents

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "deployments" / "automations.py"))
URL = "https://hooks.example.com/services/T000"


@pytest.mark.parametrize(
    "wrong, named",
    [
        ({"on": ["endet"]}, "--on endet is none of waiting"),
        ({"outcome": ["broken"]}, "--outcome broken is none of completed"),
        ({"on": ["training"], "outcome": ["failed"]}, "Leave --on out"),
        ({"pool": ""}, "--pool is empty"),
        ({"url": "hooks.example.com"}, "begins with http"),
        ({"url": "https:// hooks.example.com"}, "begins with http"),
    ],
)
def test_what_would_never_be_told_is_refused(wrong: dict[str, Any], named: str) -> None:
    given = {"pool": "gpus", "url": URL, "on": ["ended"], "outcome": []} | wrong
    with pytest.raises(typer.BadParameter, match=re.escape(named)):
        SCRIPT["notify"](**given)


@pytest.mark.parametrize("status, named", [(401, r"answers 401\. Give PREFECT_API_KEY"), (502, r"answers 502\. Is it")])
def test_a_server_that_lets_nobody_in_is_named(status: int, named: str) -> None:
    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    Thread(target=server.serve_forever, daemon=True).start()
    with temporary_settings(
        {PREFECT_API_URL: f"http://127.0.0.1:{server.server_port}/api", PREFECT_CLIENT_MAX_RETRIES: 0}
    ):
        with pytest.raises(typer.BadParameter, match=named):
            SCRIPT["notify"](pool="gpus", url=URL, on=["ended"], outcome=[])
    server.shutdown()
    server.server_close()


def test_without_a_server_there_is_nothing_to_make_an_automation_in() -> None:
    """Prefect started one for this process, which had no such pool, and began with one to fill."""
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        with pytest.raises(typer.BadParameter, match=r"PREFECT_API_URL is not set\. Say where Prefect's server is"):
            SCRIPT["notify"](pool="gpus", url=URL, on=["ended"], outcome=[])


@pytest.mark.parametrize(
    "payload, said",
    [
        ({"outcome": "completed", "message": ""}, "ended completed"),
        ({"outcome": "failed", "message": 'it\'s a "test"'}, 'ended failed: it\'s a "test"'),
        ({"reason": "another comes first"}, "ended another comes first"),
        ({}, "ended "),
    ],
)
async def test_what_is_told_says_how_a_run_ended(payload: dict[str, str], said: str) -> None:
    event = {"resource": {"name": "my-run"}, "event": "prefect-gpu.run.ended", "payload": payload}
    told = await render_user_template(SCRIPT["WORDS"], {"event": event})
    assert json.loads(told) == {"text": f"my-run: prefect-gpu.run.{said}"}


def test_it_knows_the_events_that_there_are() -> None:
    said = (RunEvents.__doc__ or "").partition("named")[2].partition("Its resource")[0]
    assert set(SCRIPT["WHAT"]) == set(re.findall("``([a-z]+)``", said))


def test_each_pool_has_a_block_of_its_own() -> None:
    names = [SCRIPT["_block_of"](pool) for pool in ("gpus", "team-a", "team_a", "Team A", "Labor für Bilder")]
    assert names[:2] == ["prefect-gpu-gpus", "prefect-gpu-team-a"] and len({*names}) == 5
    assert all(re.fullmatch("[a-z0-9-]+", name) for name in names)
