"""Tell a webhook (of Slack, Teams, Mattermost ...) what happens to the runs of a pool.

    python deployments/automations.py --pool gpus --url https://hooks.example.com/services/T000/B000
    python deployments/automations.py --pool gpus --url ... --on ended --outcome crashed --outcome failed

It makes a Webhook block and an automation in the server that PREFECT_API_URL names. Run again, it changes both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Annotated

import httpx
import typer
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import get_client
from prefect.events.actions import CallWebhook
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectNotFound
from pydantic import SecretStr

from prefect_gpu.server_needed import server_needed

WHAT = ["waiting", "granted", "preparing", "training", "saving", "demoted", "wasting", "converged"]
WHAT += ["preempted", "moved", "resized", "suspended", "ended"]
OUTCOMES = ["completed", "failed", "crashed", "cancelled"]
WHY = "[event.payload.outcome, event.payload.message or event.payload.reason] | select | join(': ')"
SAID = f"event.resource.name ~ ': ' ~ event.event ~ ' ' ~ ({WHY})"
WORDS = f'{{"text": {{{{ ({SAID}) | tojson }}}}}}'


def notify(
    pool: Annotated[str, typer.Option(help="Name of the work pool.")],
    url: Annotated[str, typer.Option(help="What is to be called, with a POST of {text: ...}.")],
    on: Annotated[list[str], typer.Option(help="What happens to a run, such as ended or preempted.")] = ["ended"],  # noqa: B006
    outcome: Annotated[list[str], typer.Option(help="Of those that ended, only these.")] = [],  # noqa: B006
) -> None:
    """Make the automation, or change it."""
    _check("--on", on, WHAT)
    _check("--outcome", outcome, OUTCOMES)
    if outcome and set(on) != {"ended"}:
        raise typer.BadParameter(f"--outcome {outcome[0]}: only runs that ended have one. Leave --on out.")
    if not pool:
        raise typer.BadParameter("--pool is empty: give the name of a work pool.")
    if not re.match(r"https?://[^/\s]", url):
        raise typer.BadParameter(f"--url {url!r} is no address of a webhook: it begins with http:// or https://.")
    try:
        with server_needed(), get_client(sync_client=True) as client:
            client.read_work_pool(pool)
    except ObjectNotFound:
        raise typer.BadParameter(f"--pool {pool!r}: {client.api_url} has no such work pool.") from None
    except ConnectionError as error:
        raise typer.BadParameter(str(error)) from None
    block = Webhook(method="POST", url=SecretStr(url))
    document = block.save(_block_of(pool), overwrite=True)
    match = {"prefect-gpu.pool": pool, **({"prefect-gpu.outcome": outcome} if outcome else {})}
    automation = AutomationCore(
        name=f"prefect-gpu: {pool}",
        description="Made by deployments/automations.py of prefect-gpu.",
        trigger=EventTrigger(
            expect={f"prefect-gpu.run.{what}" for what in on},
            match=match,
            for_each={"prefect.resource.id"},
            posture=Posture.Reactive,
            threshold=1,
        ),
        actions=[CallWebhook(block_document_id=document, payload=WORDS)],
    )
    with get_client(sync_client=True) as client:
        for old in client.read_automations_by_name(automation.name):
            client.delete_automation(old.id)
        client.create_automation(automation)
    print(f"{httpx.URL(url).host} is told of {', '.join(on)} in the pool {pool!r}.")


def _check(option: str, given: Iterable[str], known: list[str]) -> None:
    for one in given:
        if one not in known:
            raise typer.BadParameter(f"{option} {one} is none of {', '.join(known)}.")


def _block_of(pool: str) -> str:
    """A name that blocks may have, and no other pool's."""
    plain = re.sub("[^a-z0-9]+", "-", pool.lower()).strip("-")
    return f"prefect-gpu-{plain}" if plain == pool else f"prefect-gpu-{plain}-{sha256(pool.encode()).hexdigest()[:8]}"


if __name__ == "__main__":
    typer.run(notify)
