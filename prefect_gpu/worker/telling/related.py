"""What events name beside what they are about: the related resources of Prefect's events, in Prefect's own words."""

from __future__ import annotations

from collections.abc import Iterable

from prefect.client.schemas.objects import WorkPool
from prefect.events import RelatedResource
from prefect.events.related import object_as_related_resource, tags_as_related_resources
from prefect.settings import get_current_settings

_BESIDE_TAGS = 10  # at the most: pool, queue, flow, deployment, run, and what Prefect adds


def related(kind: str, its_id: str, name: str = "") -> RelatedResource:
    """Something of Prefect's of which only the id, and perhaps the name, is known."""
    named = {"prefect.resource.name": name} if name else {}
    return RelatedResource({"prefect.resource.id": f"prefect.{kind}.{its_id}", "prefect.resource.role": kind, **named})


def related_pool(pool: WorkPool) -> RelatedResource:
    """A work pool."""
    return object_as_related_resource(kind="work-pool", role="work-pool", object=pool)


def related_tags(tags: Iterable[str]) -> list[RelatedResource]:
    """The tags, as far as an event may name so many things: Prefect drops one that names more."""
    most = max(0, get_current_settings().server.events.maximum_related_resources - _BESIDE_TAGS)
    return tags_as_related_resources(sorted(set(tags))[:most])
