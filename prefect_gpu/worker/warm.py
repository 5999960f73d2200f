"""What a warm interpreter imports for its runs. Anything missing here costs a run the time of its import."""

from __future__ import annotations

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
    "prefect_gpu.training.client",
    "prefect_gpu.training.outbox",
    "prefect_gpu.training.usage",
    "prefect_gpu.training.wire",
    "prefect_gpu.decorators",
    "prefect_gpu.run_start",
)
AFTER_FORK = "prefect_gpu.run_start:refresh_prefect"
