"""``prefect-gpu init``: what it writes works, and nothing is overwritten."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml

from prefect_gpu.blocks.files import read_file
from prefect_gpu.cli.init import Kind
from tests.cli.conftest import InProcess
from tests.docs.test_code_blocks import check, parts


@pytest.mark.parametrize("kind", Kind)
def test_what_is_written_can_be_read_and_names_the_pool(run_cli: InProcess, tmp_path: Path, kind: Kind) -> None:
    folder = tmp_path / "made" / "anew"
    done = run_cli("init", str(folder), "--kind", kind.value, "--pool", "mine")
    assert done.exit_code == 0, done.output
    [decorator, _] = next(
        node.decorator_list
        for node in ast.walk(ast.parse((folder / "train.py").read_text()))
        if hasattr(node, "returns")
    )
    assert "work_pool='mine'" in ast.unparse(decorator)
    written = yaml.safe_load((folder / "prefect.yaml").read_text())
    [deployment] = written["deployments"]
    assert (deployment["name"], deployment["work_pool"]["name"]) == ("mine", "mine")
    assert (
        ("image" in deployment["work_pool"]["job_variables"])
        == (kind is Kind.docker)
        == (folder / "Dockerfile").exists()
    )
    assert (folder / "slurm.yaml").exists() == (kind is Kind.slurm)
    if kind is Kind.slurm:
        [block] = read_file(folder / "slurm.yaml")
        assert block.reference == "gpu-slurm/mine"
    assert "$PWD" in str(written["pull"]) or kind is Kind.docker, "a placeholder of Prefect's, which is kept"
    for line in done.output.splitlines():
        if line.startswith("  "):
            for words in parts(line.strip()):
                check(words)


def test_nothing_is_overwritten(run_cli: InProcess, tmp_path: Path) -> None:
    (tmp_path / "prefect.yaml").write_text("mine")
    done = run_cli("init", str(tmp_path))
    assert done.exit_code == 2
    assert f"prefect.yaml is in {tmp_path} already: name another folder" in done.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["prefect.yaml"]
    assert (tmp_path / "prefect.yaml").read_text() == "mine"


def test_a_name_that_is_too_long_or_has_blanks(
    run_cli: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_cli("init", "x" * 300)
    assert done.exit_code == 1 and "cannot be written: File name too long" in done.output
    assert "cd 'my trainings'\n" in run_cli("init", "my trainings").output


def test_a_folder_that_cannot_be_written_is_named(run_cli: InProcess, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run_cli("init", str(tmp_path / "file" / "below"))
    assert done.exit_code == 1 and "cannot be written" in done.output
