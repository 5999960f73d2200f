from __future__ import annotations

import json
from importlib import import_module

import pytest

from prefect_gpu.papers.comparison import Comparison
from tests.cli.conftest import InProcess

command = import_module("prefect_gpu.cli.papers")  # the package has a function of that name


def compare(quick: bool = False) -> list[Comparison]:
    """One figure that holds and one that does not."""
    holds = Comparison("paper-x", "one node", "JCT", "fifo", 100.0, 60.0, 0.4, 200.0, 100.0, 80.0, assumed="That.")
    fails = Comparison("paper-x", "two nodes", "use", "fifo", None, None, 0.3, 0.5, 0.6, 0.55, True, "That.")
    return [holds, fails]


@pytest.fixture
def two_papers(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"paper_x": compare, "other": lambda quick: []}
    monkeypatch.setattr(command, "workloads", lambda: found)


def test_a_json_object_for_each_figure(run_cli: InProcess, two_papers: None) -> None:
    done = run_cli("papers", "--quick", "--json")
    assert done.exit_code == 0
    first, second = json.loads(done.stdout)
    assert first["improvement"] == pytest.approx(0.5) and first["holds"] is True
    assert first["adaptive_improvement"] == pytest.approx(0.6) and first["adaptive_holds"] is True
    assert second["holds"] is False and second["adaptive_holds"] is False
    assert second["paper_baseline"] is None


def test_the_table_marks_what_does_not_hold(run_cli: InProcess, two_papers: None) -> None:
    done = run_cli("papers")
    lines = [line for line in done.stdout.splitlines() if "one node" in line or "two nodes" in line]
    assert "100 → 60 (40.0%)" in lines[0] and "200 → 100 (50.0%) ✓" in lines[0] and "80 (60.0%) ✓" in lines[0]
    assert "30.0%" in lines[1] and "0.5 → 0.6 (20.0%) ✗" in lines[1] and "0.55 (10.0%) ✗" in lines[1]
    assert "1 of 2 figures hold; adaptive is at least as good in 1." in done.stdout
    assert done.stdout.count("- That.") == 1


def test_one_paper_only(run_cli: InProcess, two_papers: None) -> None:
    assert json.loads(run_cli("papers", "--only", "other", "--json").stdout) == []
    assert len(json.loads(run_cli("papers", "--only", "Paper-X", "--json").stdout)) == 2
    done = run_cli("papers", "--only", "nature")
    assert done.exit_code == 2 and "--only nature is none of paper_x, other." in done.stderr


def test_the_papers_are_found_by_themselves() -> None:
    assert set(command.workloads()) <= {"liquid", "specon", "fscheduling", "f_scheduling", "deepshare", "coda"}
