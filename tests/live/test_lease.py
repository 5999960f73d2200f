"""The lease against a real Prefect server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate, GlobalConcurrencyLimitUpdate

from prefect_gpu.lab.sandbox import Sandbox
from prefect_gpu.worker.leadership.lease import Lease, PrefectTerms
from tests.postgres import PostgresServer, for_prefect
from tests.worker.leadership.test_lease import LEASE_S, Clock


@pytest.fixture(scope="session")
def on_postgres(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A private Prefect server that keeps everything in PostgreSQL."""
    with Sandbox(Path(tmp_path_factory.mktemp("on-postgres")), for_prefect(postgres)) as box:
        assert not (box.home / "prefect.db").exists(), "it is the other database after all"
        yield box


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.needs("postgresql"))])
def server(request: pytest.FixtureRequest, sandbox: Sandbox) -> Sandbox:
    """A server on each of the two databases."""
    on_postgres: Sandbox | None = request.getfixturevalue("on_postgres") if request.param != "sqlite" else None
    return on_postgres or sandbox


@pytest_asyncio.fixture
async def client(server: Sandbox) -> AsyncIterator[PrefectClient]:
    """A client of it."""
    async with PrefectClient(server.api_url) as client:
        yield client


def lease(client: PrefectClient, name: str, clock: Clock) -> Lease:
    return Lease(PrefectTerms(client, name), lease_s=LEASE_S, renew_s=1.0, clock=clock)


async def test_of_many_who_begin_together_one_leads(client: PrefectClient) -> None:
    leases = [lease(client, "together", Clock()) for _ in range(8)]
    await asyncio.gather(*(one.step() for one in leases))
    assert sum(one.held for one in leases) == 1


async def test_of_many_who_stand_by_one_follows_and_the_old_one_learns_it(client: PrefectClient) -> None:
    clock = Clock()
    old, *others = [lease(client, "follow", clock) for _ in range(6)]
    await old.step()
    await asyncio.gather(*(one.step() for one in others))
    clock.now += 2 * LEASE_S
    assert not old.held
    await asyncio.gather(*(one.step() for one in others))
    assert sum(one.held for one in others) == 1
    await old.step()
    assert not old.held
    terms = await PrefectTerms(client, "follow")._all()
    assert [term.number for term in terms] == [2], "what is over is removed"


async def test_a_renewal_and_a_seal_at_the_same_moment_do_not_both_succeed(client: PrefectClient) -> None:
    clock = Clock()
    for number in range(20):
        name = f"moment {number}"
        leader, other = lease(client, name, clock), lease(client, name, clock)
        await leader.step()
        await other.step()
        clock.now += 2 * LEASE_S
        await asyncio.gather(leader.step(), other.step())
        assert leader.held + other.held == 1


async def test_limits_that_somebody_has_named_so_or_changed_keep_nobody_from_leading(client: PrefectClient) -> None:
    clock = Clock()
    for name in ("odd, term \u00b2", "odd, term 1", "odd, term next"):
        await client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=5))
    first, second = lease(client, "odd", clock), lease(client, "odd", clock)
    await first.step()
    assert first.held
    await client.update_global_concurrency_limit("odd, term 000001", GlobalConcurrencyLimitUpdate(limit=100))
    await second.step()
    clock.now += 2 * LEASE_S
    await second.step()
    assert second.held


async def test_two_never_lead_at_once_and_a_name_is_not_another_ones(client: PrefectClient) -> None:
    chance, clock = random.Random(5), Clock()
    leases = [lease(client, "chance", clock) for _ in range(3)]
    beside = lease(client, "chance, too", clock)
    await beside.step()
    doing: set[asyncio.Task[None]] = set()
    busy: dict[Lease, asyncio.Task[None]] = {}
    for _ in range(150):
        one = chance.choice(leases)
        if one not in busy or busy[one].done():  # a contender does one thing at a time
            busy[one] = asyncio.ensure_future(one.release() if chance.random() < 0.05 else one.step())
            doing.add(busy[one])
        clock.now += chance.choice([0.0, 0.5, LEASE_S * 0.6])
        assert sum(lease.held for lease in leases) <= 1
        await asyncio.sleep(chance.choice([0.0, 0.01]))
        assert sum(lease.held for lease in leases) <= 1
    for task in doing:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(task, 30)
    await beside.step()
    assert beside.held
