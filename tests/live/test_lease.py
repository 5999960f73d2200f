"""The lease against a real Prefect server."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

from prefect.client.orchestration import PrefectClient, get_client

from prefect_gpu.sandbox import Sandbox
from prefect_gpu.worker.lease import Lease, PrefectTerms
from tests.worker.test_lease import LEASE_S, Clock


def lease(client: PrefectClient, name: str, clock: Clock) -> Lease:
    return Lease(PrefectTerms(client, name), lease_s=LEASE_S, renew_s=1.0, clock=clock)


async def test_of_many_who_begin_together_one_leads(sandbox: Sandbox) -> None:
    async with get_client() as client:
        leases = [lease(client, "together", Clock()) for _ in range(8)]
        await asyncio.gather(*(one.step() for one in leases))
        assert sum(one.held for one in leases) == 1


async def test_of_many_who_stand_by_one_follows_and_the_old_one_learns_it(sandbox: Sandbox) -> None:
    clock = Clock()
    async with get_client() as client:
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


async def test_a_renewal_and_a_seal_at_the_same_moment_do_not_both_succeed(sandbox: Sandbox) -> None:
    clock = Clock()
    async with get_client() as client:
        for number in range(20):
            name = f"moment {number}"
            leader, other = lease(client, name, clock), lease(client, name, clock)
            await leader.step()
            await other.step()
            clock.now += 2 * LEASE_S
            await asyncio.gather(leader.step(), other.step())
            assert leader.held + other.held == 1


async def test_two_never_lead_at_once_and_a_name_is_not_another_ones(sandbox: Sandbox) -> None:
    chance, clock = random.Random(5), Clock()
    async with get_client() as client:
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
