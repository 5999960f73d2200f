"""What makes a run start sooner from a warm interpreter.

Importing this module, in the warm interpreter, rehearses what every run does first: Prefect and pydantic put much of
their work off until something is used, and what is done before the fork need not be done after it. What a run must do
for itself, because its environment may differ, is :func:`refresh_prefect`.
"""

from __future__ import annotations

import os
import ssl
from contextlib import ExitStack
from functools import lru_cache
from typing import Any

import prefect.client.orchestration
from prefect import flow
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import SettingsContext, get_settings_context, refresh_global_settings_context
from prefect.logging.configuration import setup_logging
from prefect.settings import Settings, get_current_settings
from prefect.states import Completed, Pending, Running

from prefect_gpu.runtime.drivers.fork_compatibility import identity
from prefect_gpu.training.forks import end_children_well
from prefect_gpu.training.limits.cpus import use_threads
from prefect_gpu.training.protocol import ENV_CPUS

_NOT_SETTINGS = ("PREFECT__", "PREFECT_GPU_")  # what tells one run from another: its id, its devices, its channel
_FILES = (".env", "prefect.toml", "pyproject.toml")  # in the working directory, where Prefect looks for settings

_for_the_process = ExitStack()


def refresh_prefect() -> None:
    """Make Prefect forget the environment that it was imported in, and read the run's own.

    Reading takes a fifth of a second, and is left out where it would give the same again.
    """
    before = get_current_settings().logging
    if _sources() != _read_at_import:
        refresh_global_settings_context()
    context = get_settings_context()
    if context.settings.logging != before:
        setup_logging(incremental=False)
    _for_the_process.enter_context(SettingsContext(profile=context.profile, settings=_quick(context.settings)))
    _share_certificates(context.settings)
    cores = os.environ.get(ENV_CPUS, "")
    if cores:
        # A numerical library that was imported beforehand has counted the cores of the whole machine.
        use_threads(len(cores.split(",")))
    end_children_well()


def _sources() -> tuple[Any, ...]:
    """All that Prefect's settings come from: variables and files."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if name.upper().startswith("PREFECT") and not name.upper().startswith(_NOT_SETTINGS)
    }
    profiles = get_current_settings().profiles_path
    return variables, os.environ.get("HOME"), [identity(str(path)) for path in (*_FILES, profiles)]


def _quick(settings: Settings) -> Settings:
    """The settings, but that Prefect's engine starts and ends sooner, and does nothing less that matters here.

    Copied, not read again as ``temporary_settings`` does.
    """
    # Each client would ask for the server's version first; the worker has done so.
    client = settings.client.model_copy(update={"server_version_check_enabled": False})
    # Ending the engine's heartbeats takes up to a second in which the run's device is taken and idle. The worker,
    # which watches the process, sends them instead.
    flows = settings.flows.model_copy(update={"heartbeat_frequency": None})
    return settings.model_copy(update={"client": client, "flows": flows})


class _Ssl:
    """Python's ``ssl`` module, but that reading the same certificates twice gives the same context."""

    create_default_context = staticmethod(lru_cache(maxsize=4)(ssl.create_default_context))

    def __getattr__(self, name: str) -> Any:
        return getattr(ssl, name)


_shared_ssl = _Ssl()


def _share_certificates(settings: Settings) -> None:
    """Let Prefect's clients share one set of certificates instead of each reading all those of the machine.

    Not when verification is switched off: Prefect then changes its contexts, which must not be shared.
    """
    if not settings.api.tls_insecure_skip_verify:
        prefect.client.orchestration.ssl = _shared_ssl  # type: ignore[assignment]


def _rehearse() -> None:
    """Let Prefect's models and schemas be built: the first use of each is the slow one."""

    @flow(name="rehearsal")
    def rehearsal(number: int = 1, text: str = "", flag: bool = False, values: list[float] | None = None) -> None:
        pass

    rehearsal.validate_parameters({"number": 2})
    rehearsal.serialize_parameters({"number": 2})
    states: list[State] = [Pending(), Running(name="Training"), Completed()]
    run = FlowRun(flow_id="00000000-0000-0000-0000-000000000000", name="rehearsal", state=states[0])  # type: ignore[arg-type]
    FlowRun.model_validate_json(run.model_dump_json())
    prefect.client.orchestration.get_client(sync_client=True)


_read_at_import = _sources()
_share_certificates(get_current_settings())
_rehearse()
