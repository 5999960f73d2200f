from __future__ import annotations

import subprocess
import sys

import typer

from prefect_gpu.cli import app
from prefect_gpu.cli.common import plural, ranges
from tests.cli.conftest import Cli

SLOW = ("prefect", "sqlalchemy", "pynvml", "psutil", "rich.table")


def test_help_names_the_commands(cli: Cli) -> None:
    done = cli("--help")
    assert done.returncode == 0
    assert all(command in done.stdout for command in ("doctor", "devices", "history"))


def test_help_shows_all_that_was_written() -> None:
    """Square brackets are markup there, and vanish: a default that is no value has an argument of its own."""
    command = typer.main.get_command(app)
    texts = [command.help, *(one.help for one in command.commands.values())]
    texts += [getattr(parameter, "help", None) for one in command.commands.values() for parameter in one.params]
    assert [text for text in texts if "[" in (text or "")] == []


def test_the_command_is_defined_without_importing_what_is_slow() -> None:
    script = f"import prefect_gpu.cli, sys; print([name for name in {SLOW!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_version(cli: Cli) -> None:
    from prefect_gpu import __version__

    assert cli("--version").stdout.strip() == f"prefect-gpu {__version__}"


def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "prefect_gpu", "--help"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "Error: The output cannot be written: No space left on device.\n"


def test_an_unknown_command_ends_with_2(cli: Cli) -> None:
    assert cli("nonsense").returncode == 2


def test_bad_settings_are_one_line_each_with_field_value_and_remedy(cli: Cli) -> None:
    done = cli(
        "history",
        PREFECT_INTEGRATIONS_GPU_VIRTUAL_DEVICES="-1",
        PREFECT_INTEGRATIONS_GPU_VIRTUAL_DEVICE_MEMORY="8Gx",
    )
    assert done.returncode == 2
    assert done.stdout == ""
    first, second = done.stderr.strip().splitlines()
    assert "virtual_devices='-1'" in first
    assert "PREFECT_INTEGRATIONS_GPU_VIRTUAL_DEVICES" in first
    assert "virtual_device_memory='8Gx'" in second


def test_a_bad_setting_of_prefect_itself_is_no_traceback(cli: Cli) -> None:
    done = cli("history", PREFECT_API_REQUEST_TIMEOUT="soon")
    assert done.returncode == 2
    assert "request_timeout='soon'" in done.stderr


def test_ranges() -> None:
    assert ranges([0, 1, 2, 3, 8]) == "0–3, 8"
    assert ranges([8, 1]) == "1, 8"
    assert ranges([0, 1]) == "0–1"
    assert ranges([]) == ""


def test_plural() -> None:
    assert (plural(0, "run"), plural(1, "run"), plural(2, "run")) == ("0 runs", "1 run", "2 runs")
