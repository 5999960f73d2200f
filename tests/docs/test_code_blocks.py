"""What stands in boxes on the pages works: Python is run, documents are read, commands and their options exist.

Python of a page is run from its top to its end, as somebody would type it. A command is not carried out, but is given
to the parser of its program: one that is misspelt, or has an option that does not exist, fails. A block below the line
``<!-- not run: why -->``, which readers do not see, is left out, and programs in ``NOT_LOOKED_AT`` are.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.training.callbacks.restarted import OFFLINE

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")] + sorted((ROOT / "docs").rglob("*.md"))
_BLOCK = re.compile(
    r"^(?P<left_out><!-- not run: .+ -->\n)?(?P<indent> *)```(?P<language>\w*)\n(?P<body>.*?)^ *```",
    re.MULTILINE | re.DOTALL,
)
_FRAMEWORKS = re.compile(
    r"^ *(?:from|import) (?:torch|lightning|transformers|keras|prefect_gpu.training.callbacks.gradient_noise)\b",
    re.MULTILINE,
)

NOT_LOOKED_AT = {
    "docker": "needs an Engine; tests/live/cluster and tests/deployments use one",
    "pip": "changes the environment; tests/test_wheel.py and tests/live/test_installed.py install our package",
}
# fmt: off
SHELL = {
    ".", "apt-get", "aws", "cd", "chmod", "cp", "createdb", "curl", "df", "dmesg", "do", "done", "dropdb", "echo",
    "export", "for", "free", "fuser", "grep", "jq", "kill", "ls", "lspci", "mkdir", "modprobe", "mv", "nvidia-ctk",
    "nvidia-smi", "pg_dump", "pg_isready", "poweroff", "psql", "reboot", "rm", "rsync", "sh", "sleep", "source",
    "sqlite3", "ssh", "ssh-keygen", "ssh-keyscan", "systemctl", "ubuntu-drivers", "unset", "usermod",
}
# fmt: on
"""Programs of the system: nothing of ours, or of Prefect's, can be wrong with them."""


class Block(NamedTuple):
    """What stands between two fences."""

    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """In order, without those that say that they are not run. In a list, a block is indented with its item."""
    found = (one for one in _BLOCK.finditer(page.read_text()) if not one["left_out"])
    return [Block(one["language"], re.sub(f"^{one['indent']}", "", one["body"], flags=re.M)) for one in found]


def of(language: str, *, frameworks: bool = False) -> list[Path]:
    """Pages that have such blocks; with frameworks: those whose Python imports one, without: all others.

    Those of the reference are signatures, and examples of docstrings, which are run where they stand.
    """
    found = []
    for page in PAGES:
        text = "\n".join(block.text for block in blocks(page) if block.language == language)
        if text and "reference" not in page.parts and bool(_FRAMEWORKS.search(text)) == frameworks:
            found.append(page)
    return found


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def run_python(page: Path) -> None:
    """All of its Python, in one session that begins as the page's imports do."""
    names: dict[str, object] = {"__name__": "a page"}
    for number, block in enumerate(blocks(page)):
        if block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block.text, f"{name(page)}, block {number}", "exec"), names)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page writes goes into a folder of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("page", of("python"), ids=name)
def test_python_runs(page: Path) -> None:
    run_python(page)


@pytest.mark.needs("frameworks")
@pytest.mark.parametrize("page", of("python", frameworks=True), ids=name)
def test_python_with_frameworks_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name_, value in OFFLINE.items():
        monkeypatch.setenv(name_, value)
    run_python(page)


@pytest.mark.parametrize("language", ["yaml", "json"])
def test_documents_can_be_read(language: str) -> None:
    read = {"yaml": yaml.safe_load, "json": json.loads}[language]
    for page in of(language):
        for block in blocks(page):
            if block.language == language:
                assert read(block.text), page


@pytest.mark.parametrize("page", [*of("console"), *of("bash")], ids=name)
def test_commands_exist_and_have_these_options(page: Path) -> None:
    for block in blocks(page):
        if block.language in ("console", "bash"):
            for words in commands(block.text):
                check(words)


def commands(text: str) -> Iterator[list[str]]:
    """The commands of a box: all lines, or those with a prompt if there is any. Variables in front are left out."""
    prompted, lines = "$ " in text, iter(text.replace("\\\n", " ").splitlines())
    for line in lines:
        if prompted and not line.startswith("$ "):
            continue
        command = line.removeprefix("$ ")
        while command.count('"') % 2:  # a quotation goes on
            command += " " + next(lines)
        lexer = shlex.shlex(command, posix=True, punctuation_chars=";&|<>()")
        lexer.whitespace_split, lexer.commenters = True, "#"
        words: list[str] = []
        for word in [*lexer, ";"]:
            if not word or not set(word) <= set(";&|()"):
                words.append(word)
                continue
            while words and (re.match(r"^[A-Z_]+=", words[0]) or words[0] == "sudo"):
                del words[0]
            if words:
                yield words
            words = []


def check(words: list[str]) -> None:
    """Fail if a program, or what it is asked, does not exist."""
    if {">", "<", ">>"} & {*words}:
        words = words[: min(words.index(sign) for sign in (">", "<", ">>") if sign in words)]
    program, rest = Path(words[0]).name, words[1:]
    if program == "prefect-gpu":
        _check_ours(rest)
    elif program == "prefect":
        _check_prefects(rest)
    elif program == "make":
        targets = re.findall(r"^([\w-]+(?: [\w-]+)*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        known = {target for group in targets for target in group.split()}
        assert all(word in known or "=" in word for word in rest), f"make {rest}: there is no such target"
    elif program in ("python", "python3"):
        _check_python(rest)
    else:
        assert program in SHELL | {*NOT_LOOKED_AT} or (ROOT / words[0]).exists(), f"{words}: what is {program}?"


def _check_ours(words: list[str]) -> None:
    import typer.main

    from prefect_gpu.cli import app

    command, context, left = typer.main.get_command(app), None, words
    while True:  # a group leaves the words that are its command's
        context = command.make_context(command.name, list(left), parent=context)
        if not hasattr(command, "resolve_command"):
            return
        _, command, left = command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None


def _check_prefects(words: list[str]) -> None:
    from prefect.cli._app import _app  # the public name is a function that carries the command out

    words = [word for word in words if word not in ("--prompt", "--no-prompt")]
    _app.parse_args(words, exit_on_error=False, print_error=False)


def _check_python(words: list[str]) -> None:
    if words[:1] == ["-m"]:
        assert find_spec(words[1]) is not None, f"python -m {words[1]}: there is no such module"
    elif words and words[0].startswith(("docs/", "flows/", "benchmarks/")):
        assert (ROOT / words[0]).is_file(), f"python {words[0]}: there is no such file"


@pytest.mark.parametrize(
    "wrong",
    [
        "prefect-gpu histori",
        "prefect-gpu history --limitt 3",
        "prefect work-pool creat gpus",
        "make tests",
        "pyton x.py",
    ],
)
def test_a_command_that_is_wrong_is_found(wrong: str) -> None:
    with pytest.raises(BaseException):  # each parser has an error of its own
        check(wrong.split())
