"""The pictures."""

from __future__ import annotations

import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from prefect_gpu.reporting import style
from prefect_gpu.reporting.figure import MissingLibrary, new_figure
from prefect_gpu.reporting.html import _x
from prefect_gpu.reporting.spans import Outage, build_timeline
from prefect_gpu.reporting.timeline import write_timeline
from prefect_gpu.storage.history import HistoryRow
from tests.reporting.rows import BEGIN, finished

ODD = finished(
    "</script><b>$x^2$</b> {tag}", 8, outcome="failed", message="<img src=x>\nmore", parameters={"<i>": "</script>"}
)


def test_both_files_are_written(tmp_path: Path) -> None:
    png, html = tmp_path / "t.png", tmp_path / "t.html"
    timeline = write_timeline([finished("a", 0), ODD], png=png, html=html)
    assert timeline is not None and timeline.run_count == 2
    assert png.read_bytes().startswith(b"\x89PNG\r\n")
    page = html.read_text()
    assert "Plotly.newPlot" in page and "Virtual devices are not GPUs" in page


def test_the_page_needs_no_network_and_takes_no_markup_from_names(tmp_path: Path) -> None:
    write_timeline([ODD], html=tmp_path / "t.html", title="<b>mine")
    page = (tmp_path / "t.html").read_text()
    assert "<script src" not in page and "<link" not in page.partition("<body>")[0]
    own = page.rpartition("Plotly.newPlot")[2]
    assert "</script><b>" not in own and "<img" not in page.rpartition("Plotly.newPlot")[2]
    assert "&lt;b&gt;mine" in page


@pytest.mark.parametrize(
    "rows",
    [
        [finished("one", 0)],
        [finished("no time at all", 0, ended_at=0.0, waited_s=None, prepared_s=None, trained_s=None, saved_s=None)],
        [finished("plain", 0, prepared_s=None, trained_s=None, saved_s=None, run_name=None)],
        [finished(str(n), n / 3, on=(f"GPU-{n % 8}",)) for n in range(300)],
        [finished("a", 0), finished("weeks later", 3e6, node="other")],
        [finished("light", 0, on=())],
    ],
    ids=["one run", "no time", "no phases", "many", "weeks", "no device"],
)
def test_any_history_can_be_drawn(tmp_path: Path, rows: list[HistoryRow]) -> None:
    assert write_timeline(rows, png=tmp_path / "t.png", html=tmp_path / "t.html", without_device=True) is not None
    assert (tmp_path / "t.png").exists() and (tmp_path / "t.html").exists()


def test_a_picture_of_thousands_of_devices_is_coarser_and_not_too_long_to_be_drawn() -> None:
    assert new_figure(13, 40).get_dpi() == 110
    figure = new_figure(13, 2200)
    assert 60_000 < figure.get_dpi() * 2200 < 2**16


def test_an_hour_that_clocks_repeat_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Berlin, on 25 October 2026, an hour after 02:30 it is 02:30 again."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        begin = datetime(2026, 10, 25, 0, 30, tzinfo=timezone.utc).timestamp()
        timeline = build_timeline([finished("a", begin - BEGIN), finished("b", begin - BEGIN + 3600)])
        times = [_x(timeline.start + later, timeline, True) for later in (0.0, 3600.0)]
        assert [str(one)[11:16] for one in times] == ["02:29", "03:29"]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_node_that_was_down_is_marked(tmp_path: Path) -> None:
    rows = [finished("a", 0, node="n1"), finished("b", 0, on=("n2/virtual-0",), node="n2", virtual=True)]
    drawn = {}
    cases = {"never": [], "once": [Outage("n2", BEGIN + 3, BEGIN + 5)], "still": [Outage("n2", BEGIN)]}
    for name, outages in cases.items():
        png, html = tmp_path / f"{name}.png", tmp_path / f"{name}.html"
        assert write_timeline(rows, png=png, html=html, outages=outages) is not None
        drawn[name] = png.read_bytes()
        page = html.read_text()
        assert ("n2 is down" in page) == bool(outages)
        assert "2 runs on 2 virtual devices of 2 nodes" in page and "n2: virtual-0" in page
    assert len(set(drawn.values())) == 3


def test_nothing_to_show_writes_nothing(tmp_path: Path) -> None:
    assert write_timeline([finished("light", 0, on=())], png=tmp_path / "t.png") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("library", "asked"), [("matplotlib", "png"), ("plotly", "html")])
def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, asked: str) -> None:
    for name in [name for name in sys.modules if name == library or name.startswith(f"{library}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    files: dict[str, Any] = {asked: tmp_path / "file"}
    with pytest.raises(MissingLibrary, match=rf"{library}.*pip install 'prefect-gpu\[(demo|plot)\]'"):
        write_timeline([finished("a", 0)], **files)


def test_the_words_around_the_picture() -> None:
    timeline = build_timeline([finished("a", 0), finished("b", 0, on=("GPU-1",))])
    assert timeline is not None
    assert style.summary(timeline).startswith("2 runs on 2 devices, 1 of them virtual in 8.5 s, from ")
    lane = timeline.lanes[0]
    assert style.lane_title(lane, several_nodes=True) == "box: GPU-1"
    assert style.lane_note(lane, timeline) == "47% training\n12% preparing\n24% idle"
