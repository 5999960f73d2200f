"""What a warm interpreter imports for its runs. Anything missing here costs a run the time of its import."""

from __future__ import annotations

from collections.abc import Iterable

PREFECT_MODULES = (
    "prefect.main",
    "prefect.flow_engine",
    "prefect.task_engine",
    "prefect.client.orchestration",
    "prefect.deployments.steps.core",
    "prefect.deployments.steps.pull",
    "prefect.events.clients",
    "prefect.events.worker",
    "prefect.logging.handlers",
    "prefect.results",
    "prefect.runner.storage",
    "prefect.telemetry.run_telemetry",
    "anyio._backends._asyncio",
    "anyio.streams.stapled",
    "anyio.streams.tls",
    "pydantic.v1",  # Prefect looks whether a flow's parameters are models of pydantic 1
    "encodings.idna",
    "rich._emoji_codes",
    "websockets.asyncio.client",
    "prefect_gpu.training",
    "prefect_gpu.training.channel.client",
    "prefect_gpu.training.channel.outbox",
    "prefect_gpu.training.limits.usage",
    "prefect_gpu.training.channel.wire",
    "prefect_gpu.decorators",
    "prefect_gpu.run_start",
)
_LATER = {
    "torch": ("torch._dynamo",),
    "optuna": (
        *("alembic.command", "alembic.config", "alembic.migration", "alembic.script"),
        *("sqlalchemy.orm", "sqlalchemy.dialects.sqlite"),
    ),
}
"""What a module imports only when it is used.

PyTorch as the first optimizer is made, which takes a second; Optuna as a trial opens its study, half a second.
"""

AFTER_FORK = "prefect_gpu.run_start:refresh_prefect"
BEFOREHAND = (("PREFECT_API_URL", "http://warm.invalid/api"),)
"""In a container: without any, Prefect would start a server for the rehearsal. Nothing is asked there."""
LABELS_OF_RUNS = ("prefect.io/flow-", "prefect.io/deployment-")
"""Labels that Prefect gives to containers, and that name the run and its flow: another flow may have the same image."""


def completed(preload: Iterable[str]) -> list[str]:
    """The modules that the user wants imported ahead, and what these would import in each run all the same.

    Example:
        >>> completed(["torch", "xgboost"])
        ['torch', 'torch._dynamo', 'xgboost']
    """
    return list(dict.fromkeys(one for name in preload for one in (name, *_LATER.get(name.partition(".")[0], ()))))
