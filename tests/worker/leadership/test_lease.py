"""At most one leads, whoever is frozen, slow, cut off or overtaken, and in the end somebody does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_gpu.worker.leadership.lease import SLOTS, Lease, Term
from tests.runtime.stand_ins import until
from tests.support import examples

LEASE_S = 10.0


class Clock:
    """A time that only the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Kept:
    """Terms in memory. Between its question and the change, and between that and the answer, anything may happen.

    Attributes:
        pending: Contenders that wait for their question to arrive, or for their answer.
        slow: Off, every call is carried out at once.
    """

    def __init__(self, *, slow: bool = False) -> None:
        self.terms: dict[int, int] = {}
        self.pending: list[asyncio.Future[bool]] = []
        self.slow = slow

    async def _travel(self) -> None:
        if self.slow:
            arrives: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self.pending.append(arrives)
            if not await arrives:
                raise httpx.ConnectError("lost on its way")

    async def newest(self) -> Term | None:
        await self._travel()
        number = max(self.terms, default=None)
        found = None if number is None else Term(number, self.terms[number], self.terms[number] >= SLOTS)
        await self._travel()
        return found

    async def make(self, number: int) -> bool:
        await self._travel()
        made = number not in self.terms
        self.terms.setdefault(number, 0)
        await self._travel()
        return made

    async def occupy(self, number: int, slots: int) -> bool:
        await self._travel()
        done = number in self.terms and self.terms[number] + slots <= SLOTS
        if done:
            self.terms[number] += slots
        await self._travel()
        return done

    async def forget_before(self, number: int) -> None:
        await self._travel()
        for old in [known for known in self.terms if known < number]:
            del self.terms[old]
        await self._travel()


def lease(terms: Kept, clock: Clock) -> Lease:
    return Lease(terms, lease_s=LEASE_S, renew_s=1.0, clock=clock)


async def test_the_first_leads_and_the_second_once_it_is_not_heard_of_any_more() -> None:
    clock, terms = Clock(), Kept()
    first, second = lease(terms, clock), lease(terms, clock)
    await first.step()
    await second.step()
    assert first.held and not second.held
    for _ in range(5):
        clock.now += LEASE_S / 2
        await first.step()
        await second.step()
        assert first.held and not second.held, "as long as it renews"
    clock.now += LEASE_S * 1.2
    assert not first.held, "it must stop by itself: nobody tells it"
    await second.step()
    assert second.held
    await first.step()
    assert not first.held and second.held and list(terms.terms) == [2]


async def test_who_was_cut_off_for_long_leads_on_if_nobody_else_came() -> None:
    clock, terms = Clock(), Kept()
    only = lease(terms, clock)
    await only.step()
    clock.now += 100 * LEASE_S
    assert not only.held
    await only.step()
    assert only.held and terms.terms == {1: 1}


async def test_who_leaves_is_followed_at_once() -> None:
    clock, terms = Clock(), Kept()
    first, second = lease(terms, clock), lease(terms, clock)
    await first.step()
    await second.step()
    await first.release()
    await second.step()
    assert second.held and not first.held


async def test_a_term_that_cannot_be_sealed_is_not_followed() -> None:
    """Somebody has switched the limit off in Prefect: every renewal seems to succeed then, and so does sealing."""
    clock, terms = Clock(), Kept()
    first, second = lease(terms, clock), lease(terms, clock)
    await first.step()

    async def occupy(number: int, slots: int) -> bool:
        return True

    terms.occupy = occupy  # type: ignore[method-assign]
    for _ in range(5):
        await second.step()
        clock.now += LEASE_S
    assert not second.held


async def test_who_slept_while_terms_came_and_went_does_not_lead_in_an_old_one() -> None:
    terms = Kept()
    terms.terms = {4: 3}  # 2 and 3 are over, and removed
    sleeper, answers = lease(terms, Clock()), [Term(1, SLOTS, sealed=True)]
    newest = terms.newest

    async def newest_before_it_slept() -> Term | None:
        return answers.pop() if answers else await newest()

    terms.newest = newest_before_it_slept  # type: ignore[method-assign]
    await sleeper.step()
    assert 2 in terms.terms and not sleeper.held


async def test_keeping_it_ends_when_it_is_lost() -> None:
    clock, terms = Clock(), Kept()
    only = Lease(terms, lease_s=LEASE_S, renew_s=0.001, clock=clock)
    await only.acquire(lambda: None)
    kept = asyncio.ensure_future(only.keep())
    while terms.terms[1] < 3:
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
    terms.terms[1] = SLOTS
    await kept
    assert not only.held


def refusal(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://prefect/api")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, request=request))


# What Prefect, or a proxy before it, says instead of an answer.
NO_ANSWERS: dict[str, Callable[[], Exception]] = {
    **{str(status): partial(refusal, status) for status in (401, 403, 404, 500)},
    "away": lambda: httpx.ConnectError("away"),
    "nonsense": lambda: ValueError("no JSON"),
}


@pytest.mark.parametrize("failure", NO_ANSWERS)
async def test_one_failed_look_costs_nothing_and_many_cost_the_lead_until_prefect_answers(failure: str) -> None:
    clock, terms, fails = Clock(), Kept(), 1
    only = Lease(terms, lease_s=LEASE_S, renew_s=0.001, clock=clock)
    await only.acquire(lambda: None)
    occupy, newest = terms.occupy, terms.newest

    async def fail() -> None:
        nonlocal fails
        fails -= 1
        if fails >= 0:
            clock.now += 1.0
            raise NO_ANSWERS[failure]()

    async def occupy_or_fail(number: int, slots: int) -> bool:
        await fail()
        return await occupy(number, slots)

    async def newest_or_fail() -> Term | None:
        await fail()
        return await newest()

    terms.occupy, terms.newest = occupy_or_fail, newest_or_fail  # type: ignore[method-assign]
    kept = asyncio.ensure_future(only.keep())
    await until(lambda: terms.terms[1] >= 3 or kept.done())
    assert not kept.done() and only.held, "one failed look costs nothing"
    fails = int(LEASE_S) + 5
    await kept
    assert not only.held
    said: list[None] = []
    await asyncio.wait_for(only.acquire(lambda: said.append(None)), 60)
    assert only.held and not said, "nobody else leads: there is nothing to say of standing by"


@settings(max_examples=examples(3), deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 4))
def test_never_do_two_lead_at_once(seed: int, contenders: int) -> None:
    """Questions and answers of all contenders travel for any time, arrive in any order, or are lost."""
    asyncio.run(asyncio.wait_for(compete(random.Random(seed), contenders), 60))


async def compete(chance: random.Random, contenders: int) -> None:
    clock, terms = Clock(), Kept(slow=True)
    leases = [lease(terms, clock) for _ in range(contenders)]
    doing: dict[int, asyncio.Task[None]] = {}
    impatient = chance.random() < 0.5  # time runs fast against the requests

    def look() -> None:
        assert sum(one.held for one in leases) <= 1

    for _ in range(400):
        what = chance.random()
        if what < 0.15:
            clock.now += chance.choice([0.1, 1.0, LEASE_S / 2] + [LEASE_S * 1.1] * impatient)
            look()
        elif what < 0.5:
            number = chance.randrange(contenders)
            if number not in doing or doing[number].done():
                work = leases[number].release() if chance.random() < 0.03 else leases[number].step()
                doing[number] = asyncio.ensure_future(quietly(work))
        elif terms.pending:
            arrives = terms.pending.pop(chance.randrange(len(terms.pending)))
            arrives.set_result(chance.random() > 0.05)
        for _ in range(4):
            await asyncio.sleep(0)
            look()
    for task in doing.values():
        task.cancel()
    await asyncio.gather(*doing.values(), return_exceptions=True)
    terms.slow = False
    for _ in range(8):  # whatever has happened, somebody leads at last
        for one in leases:
            await one.step()
            look()
        if any(one.held for one in leases):
            return
        clock.now += LEASE_S * 0.9
    raise AssertionError(f"nobody leads: {terms.terms}")


async def quietly(work: Coroutine[Any, Any, None]) -> None:
    with suppress(httpx.ConnectError):
        await work
