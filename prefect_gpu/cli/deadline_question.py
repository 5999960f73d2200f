"""``prefect-gpu estimate FLOW --deadline``: asks a worker whether it would promise a deadline, and submits nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import typer

from prefect_gpu.cli import common
from prefect_gpu.units import format_seconds

_TIMEOUT_S = 10.0
REFUSED = 3
"""The exit code where a deadline would be refused."""


def answer_for(flow: str, parameters: Mapping[str, Any], variables: Mapping[str, Any], *, as_json: bool) -> None:
    """Show what the worker of this machine's pool would answer; ends the command with code 3 if that is no promise."""
    import httpx

    from prefect_gpu.cli.status import ask, fail_without
    from prefect_gpu.page.server import pages

    folder = common.load_settings().resolved_state_dir / "pages"
    asked = json.dumps({"flow": flow, "parameters": parameters, "job_variables": variables})
    found: list[dict[str, Any]] = []
    refused: list[str] = []  # by pools for which the question makes no sense
    served = {told["pool"] for told in ask(folder, None)}  # another pool's worker may listen where a killed one did
    with httpx.Client(trust_env=False, timeout=_TIMEOUT_S) as client:
        for page in pages(folder):
            if page["pool"] not in served:
                continue
            shown = {"Authorization": f"Bearer {page['token']}"} if "token" in page else {}
            try:
                answer = client.post(f"{page['url']}/api/promise", content=asked, headers=shown)
            except (httpx.HTTPError, httpx.InvalidURL):
                continue
            if answer.status_code == httpx.codes.BAD_REQUEST:
                refused.append(answer.text.strip())
            if answer.is_success:
                found.append({"pool": page["pool"], **answer.json()})
    if not found and refused:
        common.fail("\n       ".join(dict.fromkeys(refused)), code=2)
    if not found:
        fail_without(folder, None)
    if as_json:
        common.print_json(found)
    else:
        for one in found:
            common.console().print(_in_words(one), markup=False)
    if all(one["probability"] is None for one in found):
        raise typer.Exit(REFUSED)


def _in_words(told: Mapping[str, Any]) -> str:
    by, why = _moment(told["deadline"]), f"{told['reason'][0].upper()}{told['reason'][1:]}."
    if told["probability"] is not None:
        spare_s = max(0.0, told["starts_by"] - datetime.now().timestamp())
        return (
            f"Pool {told['pool']} would promise {by} with {told['probability']:.0%}. {why} It would have them in "
            f"{format_seconds(spare_s)} at the latest. Nothing was submitted."
        )
    if told["earliest"] is None:
        return f"Pool {told['pool']} would refuse {by}. {why}"
    earliest = _moment(told["earliest"])
    return f"Pool {told['pool']} would refuse {by}. The earliest that it would promise now is {earliest}. {why}"


def _moment(unix_s: float) -> str:
    return f"{datetime.fromtimestamp(unix_s).astimezone():%Y-%m-%d %H:%M:%S %Z}"
