"""What a run's page in Prefect shows: progress, losses, estimate, story; and what the pool shows of itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.client.schemas.filters import ArtifactCollectionFilter, ArtifactCollectionFilterKey
from prefect.utilities.slugify import slugify

from prefect_gpu.reporting.losses import losses_markdown
from prefect_gpu.runtime.clock import CLOCK
from prefect_gpu.runtime.launch.launch import Launch
from prefect_gpu.runtime.learning.estimates import Estimates
from prefect_gpu.units import plural
from prefect_gpu.worker.telling.estimate_words import estimate_markdown, estimate_of, to_go
from prefect_gpu.worker.telling.story_words import story_markdown

# Between two updates, at least this part of the time since the first, up to so many seconds.
_PART, _RARELY_S = 0.02, 60.0


class RunArtifacts:
    """The artifacts of one run; they are made when there is something to show and then kept up to date.

    Args:
        every_s: The shortest time between two updates, in seconds; of the estimate and the story, five times that. It
            grows with the time since the first one, up to a minute: who has trained for hours is looked at less often.
        story: What happened to the run so far, as (Unix seconds, sentence).
        page: Address of the pool's page; empty if there is none.
    """

    def __init__(
        self,
        client: PrefectClient,
        run: Launch,
        estimates: Estimates,
        *,
        every_s: float = 2.0,
        story: Callable[[], Sequence[tuple[float, str]]] = tuple,
        page: str = "",
    ) -> None:
        self._run = run
        self._story_of = story
        self._page = page
        self._estimates = estimates
        # One key for all runs of a flow: Prefect's page of artifacts then shows them as one series.
        flow, run_id = slugify(str(run.record.known.get("flow_name", "run"))), UUID(run.run_id)
        self._progress = _Artifact(client, f"{flow}-progress", "progress", run_id, every_s)
        self._losses = _Artifact(client, f"{flow}-losses", "markdown", run_id, every_s)
        self._estimate = _Artifact(client, f"{flow}-estimate", "markdown", run_id, 5 * every_s)
        self._story = _Artifact(client, f"{flow}-story", "markdown", run_id, 5 * every_s)

    async def show(self, *, final: bool = False, measured: Mapping[str, float] | None = None) -> float:
        """Bring the artifacts up to date, except for those that were a moment ago.

        Args:
            final: It is the last time: bring all of them up to date.
            measured: By target of the estimates, what the run needed; None: it is not over.

        Returns:
            Seconds after which to try again; 0 if they are up to date.
        """
        losses = losses_markdown(self._run.losses, self._run.best_loss)
        waits = [
            await self._progress.show(self._percent(), self._description(), now=final),
            await self._losses.show(losses, "The loss as it comes", now=final),
            await self._estimate.show(self._estimate_markdown(measured), "What it was expected to need", now=final),
            await self._story.show(self._story_markdown(), "What happened to it, and why", now=final),
        ]
        return min((wait for wait in waits if wait), default=0.0)

    def _story_markdown(self) -> str:
        return story_markdown(self._run, self._story_of(), now=CLOCK(), page=self._page)

    def _percent(self) -> float | None:
        progress = self._run.record.progress
        step, steps = progress.get("step"), progress.get("steps")
        if not isinstance(step, (int, float)) or not steps:
            return None
        return round(min(100.0, 100.0 * step / steps), 1)

    def _description(self) -> str:
        progress, now = self._run.record.progress, CLOCK()
        said = [f"step {progress.get('step')} of {progress.get('steps')}"]
        if progress.get("steps_per_s"):
            said.append(f"{progress['steps_per_s']:.3g} steps/s")
        if self._run.record.batch_size:
            said.append(f"batches of {plural(self._run.record.batch_size, 'sample')}")
        outlook = self._estimates.outlook(self._run.run_id, now)
        if outlook is not None:
            said.append(to_go(outlook, now))
        return ", ".join(part for part in said if part)

    def _estimate_markdown(self, measured: Mapping[str, float] | None) -> str:
        run_id, now = self._run.run_id, CLOCK()
        speeds, own = self._estimates.throughput(run_id)
        apart, own_apart = self._estimates.throughput(run_id, apart=True)
        return estimate_markdown(
            estimate_of(self._run.record.known.get("estimate", {}), self._estimates.of(run_id)),
            now=now,
            outlook=self._estimates.outlook(run_id, now),
            drift=self._estimates.drift(run_id),
            measured=measured,
            speeds=speeds,
            own=own,
            apart=apart,
            own_apart=own_apart,
        )


class PoolArtifact:
    """Something about a pool: one artifact, which a worker that comes later goes on with.

    Args:
        key: The pool's name is added to it.
        description: What it is about.
    """

    def __init__(self, client: PrefectClient, pool: str, key: str, description: str) -> None:
        self._client = client
        self._key = f"{key}-{slugify(pool)}"
        self._description = description
        self._artifact: _Artifact | None = None

    async def show(self, text: str) -> None:
        """Bring it up to date; nothing happens if the text is empty, or the same as before."""
        if self._artifact is None:
            found = await self._client.read_latest_artifacts(
                artifact_filter=ArtifactCollectionFilter(key=ArtifactCollectionFilterKey(any_=[self._key]))
            )
            self._artifact = _Artifact(self._client, self._key, "markdown", None, 0.0)
            self._artifact.id = found[0].latest_id if found else None
        await self._artifact.show(text, self._description, now=True)


def accuracy_artifact(client: PrefectClient, pool: str) -> PoolArtifact:
    """How good a pool's estimates have been."""
    return PoolArtifact(client, pool, "gpu-estimates", "How good the pool's estimates have been")


def page_artifact(client: PrefectClient, pool: str) -> PoolArtifact:
    """Where the pool's own page is."""
    return PoolArtifact(client, pool, "gpu-page", "Where the pool's own page is")


class _Artifact:
    """One artifact, which is written when what it shows has changed, and not too often."""

    def __init__(self, client: PrefectClient, key: str, kind: str, run_id: UUID | None, every_s: float) -> None:
        self.id: UUID | None = None
        self._client, self._key, self._kind, self._run_id, self._every_s = client, key, kind, run_id, every_s
        self._shown: float | str | None = None
        self._shown_at = float("-inf")
        self._first_at = float("inf")

    async def show(self, data: float | str | None, description: str, *, now: bool) -> float:
        """Seconds after which to try again; 0 if it is up to date."""
        if data is None or data == "" or data == self._shown:
            return 0.0
        at = time.monotonic()
        every_s = max(self._every_s, min(_RARELY_S, _PART * (at - self._first_at)))
        early = every_s - (at - self._shown_at)
        if early > 0 and not now:
            return early
        self._first_at = min(self._first_at, at)
        self._shown_at = at  # before it is tried: what fails is not tried again at once
        if self.id is None or not await self._update(self.id, ArtifactUpdate(data=data, description=description)):
            artifact = await self._client.create_artifact(
                ArtifactCreate(
                    type=self._kind, key=self._key, data=data, description=description, flow_run_id=self._run_id
                )
            )
            self.id = artifact.id
        self._shown = data
        return 0.0

    async def _update(self, identity: UUID, changes: ArtifactUpdate) -> bool:
        """False: it is not there any more, as somebody has deleted it."""
        try:
            await self._client.update_artifact(identity, changes)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.NOT_FOUND:
                raise
            return False
        return True
