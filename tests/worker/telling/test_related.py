"""What events name beside what they are about."""

from __future__ import annotations

from uuid import uuid4

from prefect.client.schemas.objects import Flow, FlowRun
from prefect.events import Event

from prefect_gpu.worker.telling.launch_events import Told
from prefect_gpu.worker.telling.related import related_tags


def test_an_event_of_a_run_with_very_many_tags_can_be_sent() -> None:
    """Prefect drops what names more than a hundred things, and says so in its own log alone."""
    flow_run = FlowRun(id=uuid4(), flow_id=uuid4(), name="run", tags=[f"tag-{number}" for number in range(300)])
    about = Told(flow_run, Flow(id=uuid4(), name="train"), None).about
    Event(event="prefect-gpu.run.training", resource={"prefect.resource.id": "a"}, related=about)
    assert {"flow-run", "flow", "tag"} == {one.role for one in about}


def test_few_tags_are_all_named() -> None:
    assert [one.id for one in related_tags({"b", "a"})] == ["prefect.tag.a", "prefect.tag.b"]
