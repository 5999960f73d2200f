"""``prefect-gpu init``: what it writes works, and nothing is overwritten."""

from __future__ import annotations

import ast
import errno
from pathlib import Path
from shlex import quote
from typing import Any

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


@pytest.mark.parametrize("pool", ["on", "my pool: 'a'", "12", "größe #1$pool", 'a "b"'])
def test_any_name_of_a_pool_is_the_name_in_all_files(run_cli: InProcess, tmp_path: Path, pool: str) -> None:
    folder = tmp_path / "made"
    done = run_cli("init", str(folder), "--kind", "slurm", "--pool", pool)
    assert f"--pool {quote(pool)}" in done.output
    [deployment] = yaml.safe_load((folder / "prefect.yaml").read_text())["deployments"]
    assert deployment["name"] == deployment["work_pool"]["name"] == pool
    assert yaml.safe_load((folder / "slurm.yaml").read_text())["name"] == pool
    assert f"work_pool={pool!r}" in ast.unparse(ast.parse((folder / "train.py").read_text()))


@pytest.mark.parametrize("pool", ["a/b", " ", "", "50%"])
def test_a_name_that_prefect_refuses_is_refused_before_anything_is_written(
    run_cli: InProcess, tmp_path: Path, pool: str
) -> None:
    done = run_cli("init", str(tmp_path), "--pool", pool)
    remedy = "leave out" if pool.strip() else "give it one"
    assert done.exit_code == 2 and f"--pool {pool!r} is no name of a work pool: {remedy}" in done.output
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_up_leaves_no_half(
    run_cli: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_text

    def fills_up(self: Path, text: str, *more: Any, **options: Any) -> int:
        if self.name == "prefect.yaml":
            write(self, text[:10])
            raise OSError(errno.ENOSPC, "No space left on device", str(self))
        return write(self, text, *more, **options)

    monkeypatch.setattr(Path, "write_text", fills_up)
    done = run_cli("init", str(tmp_path))
    assert done.exit_code == 1 and "cannot be written: No space left on device" in done.output
    assert not list(tmp_path.iterdir())


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
