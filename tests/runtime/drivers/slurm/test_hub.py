"""Agents that are no more: whoever asks one learns it at once, and waits for nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from prefect_gpu.runtime.drivers import supervisor
from prefect_gpu.runtime.drivers.base import LaunchSpec
from prefect_gpu.runtime.drivers.slurm import runs as module
from prefect_gpu.runtime.drivers.slurm.handle import SlurmHandle, lost
from prefect_gpu.runtime.drivers.slurm.hub import AgentHub, AgentLost
from prefect_gpu.runtime.drivers.slurm.place import take
from prefect_gpu.runtime.drivers.slurm.runs import Runs

LOGGER = logging.getLogger("tests.slurm.hub")
AGENT = "pool.0"

pytestmark = pytest.mark.timeout(30)  # what is looked for here is a wait without an end


@pytest_asyncio.fixture
async def hub() -> AsyncIterator[AgentHub]:
    """It knows one agent, which does not connect."""
    hub = AgentHub(lambda *_: None, host="127.0.0.1", port=0, advertise=None, logger=LOGGER)
    await hub.start()
    hub.admit(AGENT, "token")
    yield hub
    await hub.close()


def launching(hub: AgentHub, folder: Path) -> tuple[Runs, Any, LaunchSpec]:
    """What starts a run on the agent's node, which does not see the worker's folders."""
    record = SimpleNamespace(shared=False)
    lent = SimpleNamespace(
        agent=AGENT, adjustable=False, node=SimpleNamespace(id="n1.7"), pilot=SimpleNamespace(record=record)
    )
    runs = Runs(
        hub,
        lent=lambda _: lent,  # type: ignore[arg-type, return-value]
        connecting=lambda _: (),
        is_lent=lambda _: True,
        loss_of=lambda *_: asyncio.sleep(0, lost("")),
        echo=lambda *_: None,
        comes_back_s=0.0,
        logger=LOGGER,
    )
    return runs, lent, LaunchSpec("run", folder, ("python",), {}, Path())


async def test_what_is_given_to_a_run_whose_allocation_is_over_keeps_nobody_waiting(
    hub: AgentHub, tmp_path: Path
) -> None:
    """Its end may still be told to Prefect, for long; the others need their credentials meanwhile."""
    assert take(tmp_path, "n1.7", sent=True)
    started = {"pid": 1, "warm": False}
    handle = SlurmHandle(
        "run", tmp_path, "n1.7", started, hub=hub, agent=AGENT, adjustable=False, echo=None, offset=0, logger=LOGGER
    )
    hub.drop(AGENT)
    handle.lose(lost("Its allocation has ended."))
    await handle.give("credentials.json", b"{}")
    await handle.announce_cancellation()
    assert (await handle.wait()).lost


async def test_a_run_is_not_started_where_the_allocation_ends_before_it_is_sent(
    hub: AgentHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taking(*arguments: Any, **more: Any) -> bool:
        hub.drop(AGENT)
        return take(*arguments, **more)

    monkeypatch.setattr(module, "take", taking)
    runs, lent, spec = launching(hub, tmp_path)
    with pytest.raises(AgentLost):
        await runs.launch(lent, spec, tmp_path)


async def test_a_run_is_not_followed_whose_allocation_ends_as_its_start_is_written_down(
    hub: AgentHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = supervisor.write_json

    async def answered(*_: Any, **__: Any) -> dict[str, Any]:
        return {"pid": 1, "warm": False}

    def writing(path: str, content: dict[str, Any]) -> None:
        if path.endswith(supervisor.PROCESS):
            hub.drop(AGENT)
        write(path, content)

    monkeypatch.setattr(hub, "ask", answered)
    monkeypatch.setattr(supervisor, "write_json", writing)
    runs, lent, spec = launching(hub, tmp_path)
    with pytest.raises(AgentLost):
        await runs.launch(lent, spec, tmp_path)
    assert not runs.of({AGENT})
