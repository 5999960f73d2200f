"""Whether the Prefect that is installed has what is used of it beside its public interface.

Nothing of that has a public counterpart: docs/prefect-standards.md says what each is for. A test searches our code for
private parts of Prefect that are not in the tables here.
"""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import Any

from packaging.specifiers import SpecifierSet
from prefect.client.orchestration import PrefectClient

TESTED = ">=3.8.8,<3.9"
"""The versions of Prefect that prefect-gpu is tested with; pyproject.toml says the same."""

_PRIVATE = (
    "prefect._flow_run_suspension:FlowRunSuspensionRequest.mark_requested",
    "prefect.bundles:_deserialize_bundle_object",
    "prefect.runner._control_channel:ControlChannel.register",
    "prefect.runner._control_channel:ControlChannel.signal",
    "prefect.runner._control_channel:ControlChannel.unregister",
    "prefect.workers.base:BaseJobConfiguration._base_environment",
    "prefect.workers.base:BaseWorker._setup_cancellation_observer",
    "prefect.workers.base:BaseWorker._submit_adhoc_run",
)
_OF_A_WORKER = (
    "_has_successfully_synced",
    "_limit",
    "_logger",
    "_prefetch_seconds",
    "_work_pool_name",
    "_work_queues",
)
_OF_A_CLIENT = ("_client",)  # of httpx, whose hooks see each answer


def lacking(worker: Any) -> list[str]:
    """What this Prefect has not, or has elsewhere.

    Args:
        worker: A worker of Prefect's.
    """
    client = PrefectClient("http://127.0.0.1/api")  # it is asked nothing
    return [
        *(name for name in _PRIVATE if not _is_there(name)),
        *(f"prefect.workers.base:BaseWorker.{name}" for name in _OF_A_WORKER if not hasattr(worker, name)),
        *(f"prefect.client.orchestration:PrefectClient.{name}" for name in _OF_A_CLIENT if not hasattr(client, name)),
    ]


def must_fit(worker: Any) -> None:
    """Refuse a Prefect with which runs would go wrong later.

    Raises:
        ValueError: It lacks something. The message says what, and which version to install.
    """
    if missing := lacking(worker):
        raise ValueError(
            f"Prefect {metadata.version('prefect')} is installed, and lacks what prefect-gpu uses of it: "
            f"{', '.join(missing)}. Install a version that prefect-gpu is tested with: pip install 'prefect{TESTED}'"
        )


def is_tested(version: str) -> bool:
    """Whether this version of Prefect is one that prefect-gpu is tested with.

    Example:
        >>> is_tested("3.8.8"), is_tested("3.9.0")
        (True, False)
    """
    return SpecifierSet(TESTED).contains(version, prereleases=True)


def _is_there(name: str) -> bool:
    module, _, attributes = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError):
        return False
    return True
