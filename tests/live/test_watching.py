"""``watch``: what it shows of runs in a real pool, from what Prefect knows."""

from __future__ import annotations

import asyncio
import io
import sys
from itertools import count
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from benchmarks._host.served import using
from prefect_gpu import watch
from prefect_gpu.watching import Watch, Watched, _Lines
from prefect_gpu.watching import look as look_now
from tests.live.pool import LivePool


async def test_runs_are_shown_until_they_are_over_with_their_losses(
    served: LivePool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where Prefect does not answer for a while, as while its server is started anew."""
    looks = count()

    def look(*asked: Any) -> Watch:
        if next(looks) in (1, 2):
            raise httpx.ConnectError("All connection attempts failed")
        return look_now(*asked)

    monkeypatch.setattr(sys.modules[watch.__module__], "look", look)
    good = await served.submit(steps=6, step_s=0.2)
    bad = await served.submit("crash")
    with using(served.sandbox):
        first, second = await asyncio.to_thread(watch, [good, bad], every_s=0.2)
    assert (first.id, first.state, first.over, first.percent) == (good, "Completed", True, 100.0)
    assert len(first.losses) == 6 and first.losses[-1][0] == 6
    assert second.state == "Crashed" and second.message and not second.losses
    shown = capsys.readouterr().out
    assert shown.count("Prefect is out of reach (All connection attempts failed). The runs go on") == 1
    assert f"{first.name}: Completed, loss {first.losses[-1][1]:.4g}" in shown
    assert f"{second.name}: Crashed: {second.message}" in shown
    with using(served.sandbox), pytest.raises(ValueError, match="knows no such flow run"):
        await asyncio.to_thread(watch, [uuid4()])


@pytest.mark.parametrize("wrong", ["train", 7, None])
def test_what_is_no_run_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="is no run: give what `submit` returned"):
        watch([wrong])


@pytest.mark.parametrize("wrong", [str(UUID(int=1)), UUID(int=1)])
def test_a_run_that_is_in_no_list_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^runs=.* is no list: .* watch\(\[future\]\)"):
        watch(wrong)


def test_a_terminal_is_given_what_it_can_show_and_no_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, "ascii"))
    _Lines().show(Watch([Watched(uuid4(), "\N{ROCKET} \x1b[2Jfast", {}, "Training", False)]))
    assert shown.getvalue() == b"? ?[2Jfast: Training\n"


def test_a_notebook_shows_no_markup_of_a_runs(served: LivePool) -> None:
    named = Watched(uuid4(), "<b>x</b>", {"lr": "<i>"}, "Training", False, "<u>", 40.0, "<s>", [(1.0, 2.0)])
    html = Watch([named])._repr_html_()
    assert "width:40%" in html and not any(tag in html for tag in ("<b>", "<i>", "<u>", "<s>"))
