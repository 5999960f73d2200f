"""What a run's page shows while it trains: a progress artifact and the losses as they come."""

from __future__ import annotations

import time
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.utilities.slugify import slugify

from prefect_gpu.reporting.sparkline import sparkline
from prefect_gpu.runtime.tracked import TrackedRun
from prefect_gpu.units import format_seconds

_WORDS = {"progress": "progress", "markdown": "losses"}


class RunArtifacts:
    """The artifacts of one run; they are made when there is something to show and then kept up to date.

    Args:
        every_s: The shortest time between two updates, in seconds.
    """

    def __init__(self, client: PrefectClient, run: TrackedRun, *, every_s: float = 1.0) -> None:
        self._client = client
        self._run = run
        self._every_s = every_s
        self._shown_at = 0.0
        self._shown: tuple[float | None, str] | None = None
        self._progress_id: UUID | None = None
        self._losses_id: UUID | None = None

    async def show(self, *, final: bool = False) -> float:
        """Bring the artifacts up to date, unless that was done a moment ago.

        Returns:
            Seconds after which to try again; 0 if they are up to date.
        """
        early = self._every_s - (time.monotonic() - self._shown_at)
        if not final and early > 0:
            return early
        self._shown_at = time.monotonic()
        percent, losses = self._percent(), self._losses_markdown()
        if (percent, losses) == self._shown:
            return 0.0
        if percent is not None:
            self._progress_id = await self._write(self._progress_id, "progress", percent, self._description())
        if losses:
            self._losses_id = await self._write(self._losses_id, "markdown", losses, "The loss as it comes")
        self._shown = (percent, losses)
        return 0.0

    async def _write(self, artifact_id: UUID | None, kind: str, data: float | str, description: str) -> UUID:
        if artifact_id is not None:
            await self._client.update_artifact(artifact_id, ArtifactUpdate(data=data, description=description))
            return artifact_id
        # One key for all runs of a flow: Prefect's page of artifacts then shows them as one series.
        key = f"{slugify(str(self._run.record.known.get('flow_name', 'run')))}-{_WORDS[kind]}"
        artifact = await self._client.create_artifact(
            ArtifactCreate(type=kind, key=key, data=data, description=description, flow_run_id=UUID(self._run.run_id))
        )
        return artifact.id

    def _percent(self) -> float | None:
        progress = self._run.record.progress
        step, steps = progress.get("step"), progress.get("steps")
        if not isinstance(step, (int, float)) or not steps:
            return None
        return round(min(100.0, 100.0 * step / steps), 1)

    def _description(self) -> str:
        progress = self._run.record.progress
        text = f"step {progress.get('step')} of {progress.get('steps')}"
        rate = progress.get("steps_per_s")
        if rate:
            left = (progress["steps"] - progress["step"]) / rate
            text += f", {rate:.3g} steps/s, about {format_seconds(left)} to go" if left > 0 else f", {rate:.3g} steps/s"
        return text

    def _losses_markdown(self) -> str:
        points = self._run.losses
        if not points:
            return ""
        recent = points[:: max(1, len(points) // 12)][-12:]
        if recent[-1] != points[-1]:
            recent.append(points[-1])
        rows = "\n".join(f"| {step:g} | {loss:.6g} |" for step, loss in recent)
        best = self._run.best_loss
        return f"`{sparkline([loss for _, loss in points])}`  best {best:.6g}\n\n| step | loss |\n|---:|---:|\n{rows}\n"
