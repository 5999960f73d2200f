"""``prefect-gpu train-policy``: what it writes, and what it says of bad input."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prefect_gpu.cli import app
from prefect_gpu.cli.train_policy import _draw


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--out", "weights.bin"], "does not end in .npz"),
        (["--out", "nowhere/weights.npz"], "is in no folder that exists"),
        (["--out", "weights.npz", "--unseen", "0"], "--unseen 0"),
        (
            ["--out", "weights.npz", "--tables", "none"],
            "none/isolated_thp.csv cannot be read: No such file",
        ),
    ],
)
def test_bad_input_is_named(options: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, ["train-policy", *options])
    assert found.exit_code == 2
    assert said in found.output


def test_without_the_extra_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sb3_contrib", None)
    monkeypatch.delitem(sys.modules, "prefect_gpu.papers.deepshare.learning.train", raising=False)
    found = CliRunner().invoke(app, ["train-policy", "--out", str(tmp_path / "a.npz")])
    assert found.exit_code == 1
    assert "pip install 'prefect-gpu[rl]'" in found.output


def test_what_a_picture_needs_is_named_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Trained:
        def record(self) -> dict[str, object]:
            return {"validation": []}

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    _draw(Trained(), tmp_path / "curve.png")  # type: ignore[arg-type]
    assert "pip install 'prefect-gpu[plot]'" in capsys.readouterr().out


@pytest.mark.needs("rl")
def test_a_small_training_writes_weights_and_a_record(tmp_path: Path) -> None:
    out = tmp_path / "small.npz"
    options = ["--episodes", "4", "--jobs", "4", "--sets", "1", "--unseen", "1", "--w1", "0.3", "--mix", "low"]
    found = CliRunner().invoke(app, ["train-policy", "--out", str(out), *options])
    assert found.exit_code == 0, found.output
    done = re.findall(r"(\d+)/4", found.stderr)
    assert done and max(map(int, done)) <= 4, "never more than all"
    from prefect_gpu.papers.deepshare.shipped import policy_of

    policy_of(out.read_bytes())
    record = json.loads((tmp_path / "small.json").read_text())
    assert (record["mix"], record["w1"], record["table"]) == ("low", 0.3, "predicted")
    assert record["curve"] and record["scores"]["deepshare-base"]["unfinished"] == 0
    assert record["weights_at_step"] in [one["steps"] for one in record["validation"]]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["small.json", "small.npz", "small.png"]
    assert (tmp_path / "small.png").read_bytes().startswith(b"\x89PNG")
