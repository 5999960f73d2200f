"""The examples in docstrings, which the reference shows, give what they say."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_FRAMEWORKS = re.compile(r"^(?:try:\n    )?(?:from|import) (?:torch|lightning|transformers|keras)\b", re.MULTILINE)


def modules(*, frameworks: bool) -> list[str]:
    """Those that have examples, by whether they import a framework."""
    found = []
    for path in sorted((ROOT / "prefect_gpu").rglob("*.py")):
        text = path.read_text()
        if "    >>> " in text and bool(_FRAMEWORKS.search(text)) == frameworks:
            found.append(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    return found


@pytest.mark.parametrize("module", modules(frameworks=False))
def test_examples_give_what_they_say(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0, "see the output above"


@pytest.mark.needs("frameworks")
@pytest.mark.parametrize("module", modules(frameworks=True))
def test_those_with_frameworks_do(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    test_examples_give_what_they_say(module, tmp_path, monkeypatch)
