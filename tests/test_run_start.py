"""A run that starts warm has its own settings of Prefect, which are read again only if they may be others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import prefect.context
import pytest
from prefect.settings import PREFECT_API_URL, get_current_settings, temporary_settings


@pytest.fixture
def run_start() -> Iterator[ModuleType]:
    """The module, which is imported by a warm interpreter that knows where its server is."""
    with temporary_settings({PREFECT_API_URL: "http://nowhere.invalid/api"}):
        from prefect_gpu import run_start

        yield run_start


@pytest.fixture
def begin(run_start: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Do what a fork does. Returns how often the settings were read for it."""
    reads: list[int] = []
    real = run_start.refresh_global_settings_context

    def counted() -> None:
        reads.append(1)
        real()

    with ExitStack() as entered:
        monkeypatch.setattr(run_start, "_for_the_process", entered)
        monkeypatch.setattr(run_start, "refresh_global_settings_context", counted)
        monkeypatch.setattr(run_start, "_read_at_import", run_start._sources())
        monkeypatch.setattr(prefect.context, "GLOBAL_SETTINGS_CONTEXT", prefect.context.GLOBAL_SETTINGS_CONTEXT)

        def fork() -> int:
            run_start.refresh_prefect()
            return len(reads)

        yield fork


def test_settings_that_are_the_same_are_not_read_again(
    begin: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = get_current_settings()
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "7")
    monkeypatch.setenv("PREFECT_GPU_DEVICES", "[]")
    assert begin() == 0
    after = get_current_settings()
    assert (after.client.server_version_check_enabled, after.flows.heartbeat_frequency) == (False, None)
    assert after.api == before.api
    assert before.client.server_version_check_enabled, "others keep theirs"


@pytest.mark.parametrize("name", ["PREFECT_RESULTS_PERSIST_BY_DEFAULT", "prefect_results_persist_by_default"])
def test_a_run_s_own_variables_count(begin: Callable[[], int], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "true")
    assert begin() == 1
    assert prefect.context.GLOBAL_SETTINGS_CONTEXT.settings.results.persist_by_default


@pytest.mark.parametrize("file", [".env", "prefect.toml", "pyproject.toml"])
def test_files_in_the_working_directory_count(
    run_start: ModuleType, begin: Callable[[], int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_start, "_read_at_import", run_start._sources())
    (tmp_path / file).write_text("")
    assert begin() == 1
