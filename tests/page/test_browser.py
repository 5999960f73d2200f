"""The page in a real browser."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from prefect_gpu.page.server import PageServer
from tests.page.conftest import Serve
from tests.page.scene import Scene, a_run, crowd, divided, large_pool, three_nodes, waiting

pytestmark = pytest.mark.slow


async def visit(browser: Browser, server: PageServer, complaints: list[str], path: str = "/", **more: Any) -> Page:
    """The page, loaded and live; whatever the browser complains of is added to the list."""
    page = await browser.new_page(viewport={"width": 1280, "height": 900}, **more)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on(
        "request", lambda asked: None if asked.url.startswith((server.url, "data:")) else complaints.append(asked.url)
    )
    await page.goto(server.url + path)
    await expect(page.locator("#live")).to_have_class("on")
    return page


async def test_it_shows_who_trains_who_waits_and_what_has_finished(
    serve: Serve, browser: Browser, complaints: list[str]
) -> None:
    now = time.time()
    gate = a_run(
        3, now - 4, device="virtual-1", over=False, name="next-one", phase="gate", gated=True, behind="slow-cat"
    )
    gate["spans"] = [*gate["spans"][:2], ["gate", now - 3, None]]
    demoted = a_run(2, now - 20, over=False, name="gives-way", weights=[[now - 5, 0.25]])
    scene = Scene(now, [a_run(1, now - 60, name="early-bird"), demoted, gate], [waiting(1, now)])
    page = await visit(browser, await serve(scene), complaints)
    await expect(page.locator("#pool")).to_have_text("Pool gpus")
    running = page.locator("#running .run")
    await expect(running).to_have_count(2)
    await expect(running.nth(0)).to_contain_text("gives-wayTraininggives way: 25 %")
    await expect(running.nth(0).locator("svg.curve polyline")).to_have_count(1)
    await expect(running.nth(1)).to_contain_text("At the gate")
    await expect(running.nth(1)).to_contain_text("behind slow-cat")
    await expect(page.locator("#queue tbody tr")).to_contain_text("4 of 4 devices are in use")
    await expect(page.locator("#queue tbody td").nth(3)).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
    await expect(page.locator("#finished tbody tr")).to_contain_text("early-bird")
    await expect(page.locator("#numbers")).to_contain_text("1waiting")
    assert complaints == []


async def test_how_a_pool_is_divided(serve: Serve, browser: Browser, complaints: list[str]) -> None:
    now = time.time()
    scene = Scene(now, [])
    page = await visit(browser, await serve(scene), complaints)
    await expect(page.locator("#shares-panel")).to_be_hidden()
    scene.shares = divided()
    names = page.locator("#shares tbody td.name")
    await expect(names).to_have_text(["nlp", "vision:", "ada", "bob", "zoe"])
    await expect(page.locator("#shares tbody tr").nth(2)).to_contain_text("has all that it asks for")
    await expect(page.locator("#shares")).to_contain_text("counts half after 24 h")
    for width in (1280, 390):
        await page.set_viewport_size({"width": width, "height": 900})
        assert await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), width
    assert complaints == []


async def test_long_words_of_what_is_not_well_break_on_a_telephone(
    serve: Serve, browser: Browser, complaints: list[str]
) -> None:
    scene = Scene(time.time(), [])
    scene.unwell = ["The history postgresql://trainer:***@db.department.example:5432/trainings cannot be used"]
    page = await visit(browser, await serve(scene), complaints)
    await page.set_viewport_size({"width": 320, "height": 640})
    await expect(page.locator("#unwell")).to_contain_text("Not well: The history")
    assert await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert complaints == []


async def test_what_changes_appears_by_itself(serve: Serve, browser: Browser, complaints: list[str]) -> None:
    now = time.time()
    scene = Scene(now, [a_run(1, now - 9, over=False)])
    page = await visit(browser, await serve(scene), complaints)
    await expect(page.locator("#finished")).to_contain_text("No run has finished")
    scene.change(1, **a_run(1, now - 9, over=True))
    await expect(page.locator("#finished tbody tr")).to_have_count(1)
    await expect(page.locator("#running")).to_contain_text("Nothing runs")
    assert scene.asked_since[0] == 0 and scene.asked_since[-1] > 0
    assert complaints == []


async def test_a_click_tells_the_story_and_a_link_from_prefect_does_too(
    serve: Serve, browser: Browser, complaints: list[str]
) -> None:
    now = time.time()
    server = await serve(Scene(now, [a_run(1, now - 60), a_run(2, now - 30, name="other")]))
    page = await visit(browser, server, complaints)
    await page.locator("#finished [data-launch='1']").click()
    dialog = page.locator("dialog")
    await expect(dialog.locator("h2")).to_have_text("quick-fox-1")
    await expect(dialog.locator("svg polyline")).to_have_count(1)
    await expect(dialog.locator("tbody tr").nth(1)).to_contain_text("Granted virtual-0: it comes next")
    await page.keyboard.press("Escape")
    await expect(dialog).to_be_hidden()
    linked = await visit(browser, server, complaints, f"/#run={a_run(2, 0.0)['id']}")
    await expect(linked.locator("dialog h2")).to_have_text("other")
    assert complaints == []


async def test_bars_can_be_pointed_at_and_zoomed(serve: Serve, browser: Browser, complaints: list[str]) -> None:
    now = time.time()
    page = await visit(browser, await serve(Scene(now, [a_run(1, now - 400), a_run(2, now - 100)])), complaints)
    boxes = "() => poolPage.lanes.boxes.map((box) => [box.run.n, box.x + box.w / 2, box.y + box.h / 2])"
    [[first, x, y]] = await page.evaluate(boxes)
    assert first == 2, "the other one is older than five minutes"
    canvas = page.locator("#lanes canvas")
    await canvas.hover(position={"x": x, "y": y})
    await expect(page.locator("#tip")).to_contain_text("quick-fox-2")
    await expect(page.locator("#tip")).to_contain_text("At the gate: 2.0 s")
    await canvas.click(position={"x": x, "y": y})
    await expect(page.locator("dialog h2")).to_have_text("quick-fox-2")
    await page.locator("#close").click()
    await page.get_by_role("button", name="All").click()
    assert sorted(box[0] for box in await page.evaluate(boxes)) == [1, 2]
    assert complaints == []


async def test_names_are_text_and_never_markup(serve: Serve, browser: Browser, complaints: list[str]) -> None:
    now = time.time()
    evil = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    runs = [a_run(1, now - 60, name=evil, message=evil, outcome="failed"), a_run(2, now - 9, name=evil, over=False)]
    page = await visit(
        browser, await serve(Scene(now, runs, [waiting(1, now) | {"name": evil, "reason": evil}])), complaints
    )
    await page.locator("#finished tbody tr").click()
    await expect(page.locator("dialog h2")).to_have_text(evil)
    assert await page.locator("img, body script").count() == 0
    assert complaints == []


async def test_dark_and_light_differ_and_an_ended_worker_is_said(
    serve: Serve, browser: Browser, complaints: list[str]
) -> None:
    server = await serve(crowd(10, time.time()))
    colours = set()
    for scheme in ("light", "dark"):
        page = await visit(browser, server, complaints, color_scheme=scheme)
        colours.add(await page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(colours) == 2 and complaints == []
    await server.close()
    await expect(page.locator("#live")).to_have_class("off")
    await expect(page.locator("#live")).to_contain_text("does not answer")


async def test_a_thousand_runs_are_shown(serve: Serve, browser: Browser, complaints: list[str]) -> None:
    now = time.time()
    scene = crowd(1000, now)
    page = await visit(browser, await serve(scene), complaints)
    await expect(page.locator("#running .run")).to_have_count(8)
    await expect(page.locator("#finished")).to_contain_text("And 967 older ones")
    await page.get_by_role("button", name="All").click()
    assert await page.evaluate("poolPage.lanes.boxes.length") == 1000
    scene.runs.append(a_run(1001, now))
    scene.changed[1001] = scene.version = 2
    for run in scene.runs[992:1000]:
        scene.change(run["n"], **a_run(run["n"], run["spans"][0][1]))
    await expect(page.locator("#running")).to_contain_text("Nothing runs")
    assert await page.evaluate("poolPage.pool.runs.size") == 1000, "the oldest is forgotten here, too"
    assert complaints == []


async def test_devices_stand_below_their_nodes_and_a_gang_is_seen_on_all_of_its(
    serve: Serve, browser: Browser, complaints: list[str]
) -> None:
    scene = three_nodes(time.time())
    page = await visit(browser, await serve(scene), complaints)
    await expect(page.locator("#where")).to_contain_text("4 nodes: a, b, c (closed), d (gone) · 4 cores")
    boxes = await page.evaluate("poolPage.lanes.boxes.map((box) => [box.run.n, box.rank, box.x + 2, box.y + 4])")
    assert [rank for n, rank, *_ in boxes if n == 4] == [0, 1, 3, 2], "in the order of the nodes"
    [(x, y)] = [(x, y) for n, rank, x, y in boxes if (n, rank) == (4, 3)]
    await page.locator("#lanes canvas").hover(position={"x": x, "y": y})
    await expect(page.locator("#tip")).to_contain_text("Server 3 of 4 instances, on b: no device")
    await expect(page.locator("#running .run").nth(0)).to_contain_text("3 workers and 1 server on a, b, c")
    await expect(page.locator("#finished [data-launch='3']")).to_contain_text("2 workers on a, b")
    tall = await page.evaluate("document.querySelector('#lanes canvas').height")
    scene.runs = [run for run in scene.runs if run["n"] != 2]
    again = await visit(browser, await serve(scene), complaints)
    shorter = await again.evaluate("document.querySelector('#lanes canvas').height")
    assert shorter < tall, "of a node that is gone, and on which nothing is to be seen, there is only the name"
    assert complaints == []


async def test_a_run_on_a_device_that_is_not_there_any_more_is_seen(
    serve: Serve, browser: Browser, complaints: list[str]
) -> None:
    now = time.time()
    runs = [
        a_run(1, now - 120, device="virtual-8", name="early-bird"),
        a_run(2, now - 20, device="virtual-9", over=False, name="adopted"),
    ]
    page = await visit(browser, await serve(Scene(now, runs)), complaints)
    assert await page.evaluate("[...new Set(poolPage.lanes.boxes.map((box) => box.run.n))]") == [2]
    [(x, y)] = await page.evaluate("poolPage.lanes.boxes.slice(0, 1).map((box) => [box.x + 2, box.y + 4])")
    await page.locator("#lanes canvas").hover(position={"x": x, "y": y})
    await expect(page.locator("#tip")).to_contain_text("adopted")
    assert complaints == []


async def test_a_click_on_any_instance_tells_of_all_and_leads_to_the_flow_run(
    serve: Serve, browser: Browser, complaints: list[str]
) -> None:
    scene = three_nodes(time.time())
    scene.change(4, prefect="http://prefect.example/runs/flow-run/4")
    page = await visit(browser, await serve(scene), complaints)
    [(x, y)] = await page.evaluate(
        "poolPage.lanes.boxes.filter((box) => box.run.n === 4 && box.rank === 2).map((box) => [box.x + 2, box.y + 4])"
    )
    await page.locator("#lanes canvas").click(position={"x": x, "y": y})
    dialog = page.locator("dialog")
    await expect(dialog.locator("h2")).to_have_text("large-gang")
    rows = dialog.locator("table").nth(0).locator("tbody tr")
    await expect(rows).to_have_text(
        ["0Workeraa/virtual-0", "1Workerbb/virtual-0", "2Workercc/virtual-0", "3Serverbnone"]
    )
    await expect(dialog.locator("a")).to_have_attribute("href", "http://prefect.example/runs/flow-run/4")
    await page.keyboard.press("Escape")
    await page.locator("#running [data-launch='5']").click()
    await expect(dialog.locator("h2")).to_have_text("beside-it")
    await expect(dialog.locator("a")).to_be_hidden()
    scene.change(5, prefect="javascript:alert(1)")
    await page.evaluate("poolPage.refresh()")
    await expect(dialog.locator("a")).to_be_hidden()
    assert complaints == []


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_64_devices_and_500_waiting_runs_are_readable(
    serve: Serve, browser: Browser, complaints: list[str], width: int, scheme: Any
) -> None:
    page = await visit(browser, await serve(large_pool(time.time())), complaints, color_scheme=scheme)
    await page.set_viewport_size({"width": width, "height": 900})
    await page.evaluate("poolPage.refresh()")
    wide, tall = await page.evaluate(
        "[document.documentElement.scrollWidth, document.querySelector('#lanes canvas').clientHeight]"
    )
    assert wide <= width, "nothing sticks out to the side"
    assert tall < 700, "all devices are seen at once"
    await expect(page.locator("#queue .groups li")).to_have_count(3)
    await expect(page.locator("#queue .groups li").nth(0)).to_have_text(
        re.compile(r"^445\s*64 of 64 devices are in use")
    )
    await expect(page.locator("#queue tbody tr")).to_have_count(50)
    await page.locator("#queue").get_by_role("button", name="Later ones").click()
    await expect(page.locator("#queue tbody tr").nth(0)).to_contain_text("51patient-ox-51")
    await expect(page.locator("#queue .pager")).to_contain_text("51–100 of 500")
    link = page.locator("#queue tbody a").nth(0)
    await expect(link).to_have_attribute("href", "http://prefect.example/runs/waiting-51")
    await expect(page.locator("#running .run")).to_have_count(12)
    await expect(page.locator("#running .run").nth(0)).to_contain_text("wastes its device")
    await expect(page.locator("#numbers")).to_contain_text("1waste their devices")
    await expect(page.locator("#pool-link")).to_have_attribute("href", "http://prefect.example/pool")
    await page.locator("#lanes canvas").click(position={"x": 60, "y": 12})
    taller = await page.evaluate("document.querySelector('#lanes canvas').clientHeight")
    assert taller > tall + 200, "a click on a node's name opens it"
    assert complaints == []


async def test_a_run_has_an_address_of_its_own(serve: Serve, browser: Browser, complaints: list[str]) -> None:
    now = time.time()
    scene = Scene(now, [a_run(1, now - 60), a_run(2, now - 30, name="other", over=False, wasting="it sleeps")])
    page = await visit(browser, await serve(scene), complaints)
    await page.locator("#running [data-launch='2']").click()
    await expect(page).to_have_url(re.compile(f"#run={a_run(2, 0.0)['id']}$"))
    await expect(page.locator("dialog .warning")).to_have_text("It wastes its device: it sleeps.")
    await expect(page.locator("dialog .phases i")).to_have_count(4)
    await page.reload()
    await expect(page.locator("dialog h2")).to_have_text("other")
    await page.keyboard.press("Escape")
    await expect(page).to_have_url(re.compile(r"^[^#]*$"))
    await page.evaluate("poolPage.refresh()")
    await expect(page.locator("dialog")).to_be_hidden()
    assert complaints == []


ENDLESS = "x" * 200
REVERSED = "\u202eevil"  # what follows is written from right to left, until somebody ends it


@pytest.mark.parametrize("width", [1280, 390])
async def test_names_of_any_kind_leave_the_rest_where_it_belongs(
    serve: Serve, browser: Browser, complaints: list[str], width: int
) -> None:
    now = time.time()
    runs = [
        a_run(1, now - 60, name=ENDLESS),
        a_run(2, now - 9, name=ENDLESS, flow=ENDLESS, over=False),
        a_run(3, now - 9, name=REVERSED, flow=REVERSED, device="virtual-1", over=False),
    ]
    scene = Scene(now, runs, [waiting(n, now) | {"reason": f"others come first: {ENDLESS}"} for n in range(1, 8)])
    shares = divided()
    scene.shares = shares | {"rows": shares["rows"] + [shares["rows"][-1] | {"name": f"{n}"} for n in range(300)]}
    page = await visit(browser, await serve(scene), complaints)
    await page.set_viewport_size({"width": width, "height": 900})
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    inside = "(chip) => chip.getBoundingClientRect().right <= chip.closest('.run').getBoundingClientRect().right"
    assert await page.locator("#running .chip").nth(0).evaluate(inside), "a long name leaves room for its phase"
    after = "(name) => name.getBoundingClientRect().right <= name.nextSibling.getBoundingClientRect().left"
    assert await page.locator("#running bdi").nth(2).evaluate(after), "its phase stands after it"
    assert await page.locator("#shares").evaluate("(all) => all.clientHeight") < 900, "many owners leave room for runs"
    assert complaints == []


async def test_whoever_uses_the_keyboard_opens_runs_and_stays_where_they_are(
    serve: Serve, browser: Browser, complaints: list[str]
) -> None:
    scene = large_pool(time.time())
    page = await visit(browser, await serve(scene), complaints)
    card = page.locator("#running .run").nth(1)
    await card.focus()
    await page.keyboard.press("Space")
    await expect(page.locator("dialog")).to_be_visible()
    await page.evaluate("poolPage.refresh()")
    await page.keyboard.press("Escape")
    await expect(card).to_be_focused()
    later = page.locator("#running").get_by_role("button", name="Later ones")
    await later.focus()
    await page.evaluate("poolPage.refresh()")
    await expect(later).to_be_focused()
    row = page.locator("#finished").get_by_role("button").nth(1)
    await row.focus()
    ended = next(run for run in scene.runs if not run["outcome"])
    scene.change(ended["n"], outcome="completed", ended=time.time())
    await page.evaluate("poolPage.refresh()")
    await page.keyboard.press("Enter")
    await expect(page.locator("dialog")).to_be_visible()
    assert complaints == []


async def test_a_click_that_lasts_until_after_the_next_look_is_a_click(
    serve: Serve, browser: Browser, complaints: list[str]
) -> None:
    page = await visit(browser, await serve(Scene(time.time(), [a_run(1, time.time() - 9, over=False)])), complaints)
    await page.locator("#running .run").hover()
    await page.mouse.down()
    await page.evaluate("poolPage.refresh()")
    await page.mouse.up()
    await expect(page.locator("dialog")).to_be_visible()
    assert complaints == []


async def test_each_try_of_a_run_can_be_read_and_its_words_be_copied(
    serve: Serve, browser: Browser, complaints: list[str]
) -> None:
    now = time.time()
    first = a_run(1, now - 60, name="first-try", outcome="crashed", message="It was killed.")
    scene = Scene(now, [first, a_run(2, now - 30, name="second-try", id=first["id"])])
    page = await visit(browser, await serve(scene), complaints)
    await page.locator("#finished [data-launch='1'] button").click()
    await expect(page.locator("dialog h2")).to_have_text("first-try")
    await page.evaluate("getSelection().selectAllChildren(document.querySelector('dialog .message'))")
    await page.evaluate("poolPage.refresh()")
    await expect(page.locator("dialog h2")).to_have_text("first-try")
    assert await page.evaluate("String(getSelection())") == "It was killed."
    assert complaints == []


async def test_a_run_that_is_read_stays_the_same_one_when_the_worker_is_restarted(
    serve: Serve, browser: Browser, complaints: list[str]
) -> None:
    now = time.time()
    server = await serve(Scene(now, [a_run(1, now - 60, name="is-read")]))
    page = await visit(browser, server, complaints)
    await page.locator("#finished [data-launch='1'] button").click()
    await server.close()
    runs = [a_run(1, now - 9, id="another", name="another"), a_run(2, now - 60, id=a_run(1, 0.0)["id"], name="adopted")]
    await serve(Scene(now, runs), port=int(server.url.rpartition(":")[2]))
    await expect(page.locator("dialog h2")).to_have_text("adopted")


async def test_the_clock_is_read_as_people_read_it(serve: Serve, browser: Browser, complaints: list[str]) -> None:
    page = await visit(browser, await serve(Scene(time.time(), [])), complaints, locale="en-US", timezone_id="Etc/UTC")
    clock = "async (at) => (await import('/words.js')).clock(at)"
    today = time.time() // 86_400 * 86_400
    assert await page.evaluate(clock, today) == "00:00:00"
    assert await page.evaluate(clock, 86_399) == "Jan 1, 23:59:59"
    heard = """async () => {
        let heard = 0;
        const status = document.querySelector("[role=status]");
        new MutationObserver(() => heard++).observe(status, { childList: true, subtree: true });
        await poolPage.refresh();
        return heard;
    }"""
    assert await page.evaluate(heard) == 0, "whoever listens to the page is not told the time each second"
    assert complaints == []
