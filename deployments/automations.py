"""Tell a webhook (of Slack, Teams, Mattermost ...) what happens to the runs of a pool.

    python deployments/automations.py --pool gpus --url https://hooks.example.com/services/T000/B000
    python deployments/automations.py --pool gpus --url ... --on ended --outcome crashed --outcome failed

It makes a Webhook block and an automation in the server that PREFECT_API_URL names. Run again, it changes both.
"""

from __future__ import annotations

from typing import Annotated

import typer
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import get_client
from prefect.events.actions import CallWebhook
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from pydantic import SecretStr

SAID = "event.resource.name ~ ': ' ~ event.event ~ ' ' ~ (event.payload.message or event.payload.reason or '')"
WORDS = f'{{"text": {{{{ ({SAID}) | tojson }}}}}}'


def notify(
    pool: Annotated[str, typer.Option(help="Name of the work pool.")],
    url: Annotated[str, typer.Option(help="What is to be called, with a POST of {text: ...}.")],
    on: Annotated[list[str], typer.Option(help="What happens to a run, such as ended or preempted.")] = ["ended"],  # noqa: B006
    outcome: Annotated[list[str], typer.Option(help="Of those that ended, only these.")] = [],  # noqa: B006
) -> None:
    """Make the automation, or change it."""
    block = Webhook(method="POST", url=SecretStr(url))
    document = block.save(f"prefect-gpu-{pool}".lower().replace("_", "-"), overwrite=True)
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
    print(f"{url.split('//')[-1].split('/')[0]} is told of {', '.join(on)} in the pool {pool!r}.")


if __name__ == "__main__":
    typer.run(notify)
