"""A phase's word and colour are said in one place: whoever shows a phase shows what is said there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from prefect.states import Cancelling, Running
from rich.console import Console

from prefect_gpu.cli import accuracy_tables, estimate_tables, status_view
from prefect_gpu.cli.history import _table as history_table
from prefect_gpu.demo import closing
from prefect_gpu.demo.board import Board, Seen
from prefect_gpu.estimation.runs import TRAINING_S, Interval, RunEstimate
from prefect_gpu.page.app import page_app
from prefect_gpu.phases import FAILED, PHASES, Phase
from prefect_gpu.reporting import png
from prefect_gpu.reporting.html import write_html
from prefect_gpu.reporting.spans import TOLD, build_timeline
from prefect_gpu.runtime import activity_log
from prefect_gpu.runtime.drivers.base import ExitReport
from prefect_gpu.scheduling.model.instructions import OpenGate
from prefect_gpu.scheduling.model.jobs import Status
from prefect_gpu.training import protocol
from prefect_gpu.worker.endings.finalisation import Finalisation
from prefect_gpu.worker.telling import estimate_words
from tests.page.scene import Scene, a_run
from tests.reporting.rows import finished
from tests.scheduling.prescheduling.test_successor import prepared
from tests.worker.prefect_stand_in import OneRun, asking

WORD, PAST, COLOUR, DARK = "Exercising", "exercised", "#123456", "#654321"


@pytest.fixture
def another(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a contributor would edit in that one file: training has another word and other colours."""
    edited = replace(PHASES["training"], word=WORD, past=PAST, colour=COLOUR, dark=DARK, style="bold #abcdef")
    monkeypatch.setitem(PHASES, "training", edited)


def drawn(*shown: object) -> str:
    screen = Console(width=200, force_terminal=True, color_system="truecolor", record=True)
    with screen.capture() as capture:
        for one in shown:
            screen.print(one)
    return capture.get()


def test_there_is_a_word_for_everything_that_a_run_can_be_in() -> None:
    live = {*protocol.PHASES, activity_log.LAUNCHING, activity_log.GATE, activity_log.ENDING} - {protocol.FINISHED}
    assert {*live, *TOLD} == set(PHASES)
    assert len({phase.word for phase in PHASES.values()}) == len(PHASES)


async def test_the_page_has_them(another: None) -> None:
    app = page_app(Scene(0.0, []))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as ask:
        css, js = (await ask.get("/phases.css")).text, (await ask.get("/phases.js")).text
        light, dark = css.split("@media")
        assert f"--training: {COLOUR};" in light and f"--training: {DARK};" in dark
        assert f'"training": "{WORD}"' in js and f'"training": "{PAST}"' in js
        for name, phase in {**PHASES, "failed": FAILED}.items():
            assert f"--{name}: {phase.colour};" in light and f"--{name}: {phase.dark};" in dark
        index = (await ask.get("/")).text
        assert 'href="phases.css"' in index
        # Nobody says it again: not the page's own style, nor its words.
        for path in ("/page.css", "/words.js", "/page.js", "/lanes.js", "/curve.js"):
            said = (await ask.get(path)).text
            assert not [name for name in PHASES if f"--{name}:" in said], path
            assert not [name for name in PHASES if f'"{PHASES[name].word}"' in said], path


def test_the_pictures_have_them(another: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.colors import to_hex
    from matplotlib.figure import Figure

    timeline = build_timeline([finished("one", 0.0)])
    assert timeline is not None
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    png.write_png(timeline, tmp_path / "timeline.png")
    (legend,) = figures[0].legends
    told = {text.get_text(): patch for text, patch in zip(legend.get_texts(), legend.get_patches(), strict=True)}
    assert to_hex(told[WORD].get_facecolor()) == COLOUR
    assert PHASES["preparing"].legend in told
    page = tmp_path / "timeline.html"
    write_html(timeline, page)
    assert f'"name":"{WORD}"' in page.read_text() and f'"color":"{COLOUR}"' in page.read_text()
    assert f"{PAST} " in page.read_text()


def test_the_commands_tables_have_them(another: None) -> None:
    told = Scene(10.0, [a_run(1, 0.0, over=False)]).overview(0)
    shown = drawn(status_view.screen_of({**told, "pool": "gpus", "url": "", "now": 10.0}))
    assert f"\x1b[1;38;2;171;205;239m{WORD.lower()}" in shown
    assert PAST.capitalize() in drawn(history_table([finished("one", 0.0)], 200))
    estimate = RunEstimate({TRAINING_S: Interval(1.0, 0.5, 2.0)})
    assert WORD in drawn(estimate_tables._intervals(estimate))
    assert WORD.lower() in estimate_words._table(estimate, None)
    assert accuracy_tables.named("training") == WORD


def test_the_demo_has_them(another: None) -> None:
    seen = Seen("r", "run", "flow", "Training", final=False, devices=("virtual-0",))
    board = Board(Console(), devices=["virtual-0"], trainings=1, quiet_flows=[])
    assert f"\x1b[1;38;2;171;205;239m{WORD}" in drawn(board._picture([seen]))
    assert PAST.capitalize() in drawn(closing.results_table([finished("one", 0.0)], 200))


def test_what_happened_to_a_run_is_told_with_them(another: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PHASES, "saving", replace(PHASES["saving"], word="Keeping"))
    world = prepared()
    (said,) = world.phase("a", Status.SAVING, 100.0)
    assert isinstance(said, OpenGate) and said.reason.endswith(" is keeping")
    told = [words for _, words in world.scheduler.state.story("a")]
    assert told[-2:] == [f"is {WORD.lower()}", "is keeping"]


async def test_the_message_of_a_cancelled_run_has_them(another: None) -> None:
    prefect = OneRun(Running(), Cancelling())
    launch = prefect.launch()
    launch.phase = "training"
    finalisation = Finalisation(asking(prefect))
    _, message = await finalisation.finalise(launch, ExitReport(-9), api_was_away=False)
    assert message.startswith(f"Cancelled while {WORD.lower()};")


@pytest.mark.parametrize("phase", [*PHASES.values(), FAILED], ids=lambda phase: phase.word)
def test_what_is_written_on_a_phase_s_colour_can_be_read(phase: Phase) -> None:
    """4.5 to 1, as the guidelines for the web want it (WCAG 2, 1.4.3)."""

    def light(colour: str) -> float:
        parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
        red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05

    for ink, paper in ((phase.ink, phase.colour), (phase.dark_ink, phase.dark)):
        dark, bright = sorted((light(ink), light(paper)))
        assert bright / dark >= 4.5, (ink, paper)
