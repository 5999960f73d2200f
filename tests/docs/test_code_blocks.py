"""What stands in boxes on the pages works, or says why it is not run (see :mod:`tests.docs.pages`).

Python of a page is run from its top to its end, as somebody would type it. Documents are read by what reads them.
Commands are given to the parser of their program here: one that is misspelt, or has an option that does not exist,
fails. Nothing here carries them out: ``walk.py`` is to do that, and does not get to the end yet.
"""

from __future__ import annotations

import configparser
import contextlib
import io
import json
import re
import shlex
import sqlite3
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from prefect.cli.deploy._models import PrefectYamlModel

from prefect_gpu.blocks.files import read_file
from prefect_gpu.storage.history import History
from prefect_gpu.worker.configuration import GpuVariables
from tests.docs.pages import COMMANDS, PAGES, ROOT, Block, blocks, commands, name
from tests.training.callbacks.restarted import OFFLINE

_FRAMEWORKS = re.compile(
    r"^ *(?:from|import) (?:torch|lightning|transformers|keras|prefect_gpu.training.callbacks.gradient_noise)\b",
    re.MULTILINE,
)
LANGUAGES = {*COMMANDS, "python", "yaml", "json", "ini", "sql", "text"}
"""Each but ``text``, which is what something prints or a drawing, has a test below."""
# fmt: off
SHELL = {
    ".", "apt-get", "aws", "cd", "chmod", "cp", "createdb", "curl", "df", "dmesg", "do", "docker", "done", "dropdb",
    "echo", "export", "for", "free", "fuser", "grep", "hostname", "jq", "kill", "ls", "lspci", "mkdir", "modprobe",
    "mv", "nvidia-ctk", "nvidia-smi", "opentelemetry-instrument", "pg_dump", "pg_isready", "pip", "poweroff", "psql",
    "reboot", "rm", "rsync",
    "sbatch", "scancel", "scontrol", "sh", "sinfo", "sleep", "source", "sqlite3", "squeue", "srun", "ssh", "ssh-keygen",
    "ssh-keyscan", "systemctl", "ubuntu-drivers", "unset", "usermod",
}
# fmt: on
"""Programs of the system: nothing of ours, or of Prefect's, can be wrong with them."""


def of(language: str, *, frameworks: bool | None = None) -> list[Path]:
    """Pages that have such blocks; with frameworks: those whose Python imports one, without: all others.

    Code of the reference is read from files as the site is built.
    """
    found = []
    for page in PAGES:
        text = "\n".join(block.text for block in blocks(page) if block.language == language)
        fits = frameworks is None or bool(_FRAMEWORKS.search(text)) == frameworks
        if text and "reference" not in page.parts and fits:
            found.append(page)
    return found


def all_of(*languages: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.language in languages]


def where(block: Block) -> str:
    return block.where


def run_python(page: Path) -> None:
    """All of its Python, in one session that begins as the page's imports do."""
    names: dict[str, object] = {"__name__": "a page"}
    for block in blocks(page):
        if block.language == "python" and block.is_run:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block.text, block.where, "exec"), names)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page writes goes into a folder of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("page", of("python", frameworks=False), ids=name)
def test_python_runs(page: Path) -> None:
    run_python(page)


@pytest.mark.needs("frameworks")
@pytest.mark.parametrize("page", of("python", frameworks=True), ids=name)
def test_python_with_frameworks_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name_, value in OFFLINE.items():
        monkeypatch.setenv(name_, value)
    run_python(page)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_is_run_or_says_why_not(page: Path) -> None:
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{block.where}: nothing runs {block.language or 'a block of no language'}"
        typed = [one.text for one in commands(block)] if block.language in COMMANDS else []
        for start, why in block.reasons.items():
            assert len(why.split()) >= 5, f"{block.where}: say more exactly why it is not run than {why!r}"
            assert not start or any(one.startswith(start) for one in typed), f"{block.where}: no command is {start!r}"


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_who_trains_in_the_checkout_has_installed_the_checkout_itself(page: str) -> None:
    """Runs find prefect-gpu in their folder. Of another copy than the worker's, each of them started cold."""
    installs = [one.text for block in blocks(ROOT / page) for one in commands(block) if "'.[worker" in one.text]
    assert installs and all(" -e " in one for one in installs)


@pytest.mark.parametrize("block", all_of("yaml"), ids=where)
def test_yaml_is_what_its_reader_takes(block: Block, tmp_path: Path) -> None:
    said = yaml.safe_load(block.text)
    assert said, "there is nothing in it"
    if not block.is_run:  # it is for another program
        return
    if "deployments" in said:
        for deployment in PrefectYamlModel.model_validate(said).deployments:
            assert deployment.entrypoint and deployment.work_pool
            GpuVariables.model_validate(deployment.work_pool.job_variables)
            assert deployment.work_pool.job_variables.keys() <= GpuVariables.model_fields.keys()
        return
    for path in re.findall(r"from_file: ([\w./-]+)", block.text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("what the file holds")
    file = tmp_path / "block.yaml"  # a part of one is told by its fields
    file.write_text(block.text if "block" in said else f"block: gpu-cluster\nname: ours\n{block.text}")
    assert read_file(file)


@pytest.mark.parametrize("block", all_of("json"), ids=where)
def test_json_can_be_read(block: Block) -> None:
    """The one that there is is an Engine's; tests/live/cluster starts Engines with these settings."""
    assert json.loads(block.text)


@pytest.mark.parametrize("block", all_of("ini"), ids=where)
def test_a_unit_starts_a_command_that_exists(block: Block) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(block.text)
    check(shlex.split(unit["Service"]["ExecStart"]))


@pytest.mark.parametrize("block", all_of("sql"), ids=where)
def test_sql_is_answered_by_the_history(block: Block, tmp_path: Path) -> None:
    History(f"sqlite:///{tmp_path}/history.db").close()
    with contextlib.closing(sqlite3.connect(tmp_path / "history.db")) as database:
        assert database.execute(block.text).description


@pytest.mark.parametrize("page", [*of("console"), *of("bash")], ids=name)
def test_commands_exist_and_have_these_options(page: Path) -> None:
    for block in blocks(page):
        for command in commands(block) if block.language in COMMANDS else ():
            for words in parts(command.text):
                check(words)


def parts(command: str) -> Iterator[list[str]]:
    """The words of each program that a command starts. Variables in front are left out."""
    lexer = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars=";&|<>()\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, "#"
    words: list[str] = []
    for word in [*lexer, ";"]:
        if not word or not set(word) <= set(";&|()\n"):
            words.append(word)
            continue
        while words and (re.match(r"^[A-Z_]+=", words[0]) or words[0] in ("sudo", "do")):
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
        assert program in SHELL or (ROOT / words[0]).exists(), f"{words}: what is {program}?"


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
