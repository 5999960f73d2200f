"""Whose a run is, by the rules that the operator has set."""

from __future__ import annotations

from collections.abc import Sequence

from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse

_TAG = "owner:"
_NO_PERSONS = ("DEPLOYMENT", "SCHEDULE", "AUTOMATION")  # what Prefect also calls creators


def owner_of(said: str, flow_run: FlowRun, deployment: DeploymentResponse | None, rules: Sequence[str]) -> str:
    """The owner of a run; empty: nobody is found.

    Args:
        said: The job variable ``owner``.
        rules: See the setting ``owner_from``; the first that finds an owner counts.
    """
    for rule in rules:
        match rule:
            case "variable":
                found = said
            case "tag":
                found = _tagged(flow_run.tags) or _tagged(deployment.tags if deployment is not None else ())
            case "creator":
                found = _creator(flow_run)
            case _:
                found = flow_run.work_queue_name or ""
        if found:
            return found
    return ""


def _tagged(tags: Sequence[str]) -> str:
    """The owner that a tag names; of several, the first by its name, as tags have no order."""
    return min((tag.removeprefix(_TAG).strip() for tag in tags if tag.startswith(_TAG)), default="")


def _creator(flow_run: FlowRun) -> str:
    by = flow_run.created_by
    return (by.display_value or "") if by is not None and by.type not in _NO_PERSONS else ""
