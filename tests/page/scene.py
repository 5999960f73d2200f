"""A source for tests and the benchmark: made-up runs, in the form that the worker tells them."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import asdict
from typing import Any

from prefect_gpu.runtime.overview import QUEUE_PAGE
from prefect_gpu.scheduling.fair_share.table import table
from prefect_gpu.scheduling.model.shares import Share
from tests.scheduling.fair_share.test_adaptive import pool, starts

DEVICES = ("virtual-0", "virtual-1", "virtual-2", "virtual-3")


def a_run(
    n: int, start: float, *, device: str = "virtual-0", name: str = "", over: bool = True, **more: Any
) -> dict[str, Any]:
    """A run that prepared for a second, waited at its gate for two, trained for ten and saved for one."""
    spans = [
        ["launching", start, start + 0.2],
        ["preparing", start + 0.2, start + 1.0],
        ["gate", start + 1.0, start + 3.0],
    ]
    spans.append(["training", start + 3.0, start + 13.0 if over else None])
    if over:
        spans.append(["saving", start + 13.0, start + 14.0])
    run = {
        "n": n, "id": f"00000000-0000-0000-0000-{n:012d}", "name": name or f"quick-fox-{n}",
        "flow": "train", "attempt": 1,
        "queue": "default", "node": "desk", "devices": [device], "parts": [], "shared": False,
        "memory_bytes": None, "submitted": start - 5.0, "granted": start,
        "phase": None if over else "training", "spans": spans, "weights": [], "cores": [[start, 1]],
        "behind": "slow-cat", "gated": False, "gate_opened": start + 3.0, "finishing": None, "wasting": "",
        "idle_before_s": 0.02,
        "neighbours": [], "step": 40 if over else 20, "steps": 40, "steps_per_s": 4.0, "loss": 0.5, "best_loss": 0.4,
        "warm": True, "ended": start + 14.0 if over else None, "outcome": "completed" if over else None, "message": "",
    }  # fmt: skip
    if not over:
        run |= {"losses": [[step, 2.0 / (1 + step)] for step in range(100)], "expected_end": start + 30.0}
    return run | more


def a_node(name: str, rack: str = "", state: str = "up") -> dict[str, Any]:
    """A node with two cores."""
    return {"id": name, "cores": 2, "rack": rack, "domain": "", "state": state}


def devices_of(node: str, count: int = 2) -> list[str]:
    """The devices of one of several nodes."""
    return [f"{node}/virtual-{number}" for number in range(count)]


def a_gang(n: int, start: float, *places: tuple[str, str], **more: Any) -> dict[str, Any]:
    """A run with a worker on each of these (node, device); an empty device is a parameter server's."""
    parts = [
        {"node": node, "devices": [device] if device else [], "role": "worker" if device else "server"}
        for node, device in places
    ]
    devices = [device for _, device in places if device]
    return a_run(n, start, node=places[0][0], devices=devices, parts=parts, **more)


def three_nodes(now: float) -> Scene:
    """A gang on all of three nodes and others beside it: one node takes no work, a fourth one is gone."""
    nodes = [a_node("a", "r1"), a_node("b", "r1"), a_node("c", "r2", "closed"), a_node("d", "r2", "gone")]
    places = [("a", "a/virtual-0"), ("b", "b/virtual-0"), ("c", "c/virtual-0"), ("b", "")]
    runs = [
        a_run(1, now - 120, node="a", device="a/virtual-1", name="early-bird"),
        a_run(2, now - 100, node="d", device="d/virtual-1", name="unlucky", outcome="crashed"),
        a_gang(3, now - 60, *places[:2], name="small-gang"),
        a_gang(4, now - 40, *places, over=False, name="large-gang"),
        a_run(5, now - 20, node="b", device="b/virtual-1", over=False, name="beside-it"),
        a_run(6, now - 10, node="a", devices=[], over=False, name="reads-data", steps=None),
    ]
    return Scene(now, runs, [waiting(1, now)], nodes)


class Scene:
    """Tells the page what the test wants. Implements :class:`prefect_gpu.page.app.Source`."""

    name = "gpus"  # of the pool

    def __init__(
        self,
        now: float,
        runs: list[dict[str, Any]],
        queue: list[dict[str, Any]] | None = None,
        nodes: list[dict[str, Any]] | None = None,
    ) -> None:
        self.now, self.runs, self.queue = now, runs, queue or []
        self.nodes = nodes or [a_node("desk")]
        self.version, self.per_node = 1, 2
        self.unwell: list[str] = []
        self.shares: dict[str, Any] | None = None
        self.asked: list[dict[str, Any]] = []
        self.changed = {run["n"]: 1 for run in runs}
        self.asked_since: list[int] = []

    def overview(self, since: int, queue_from: int | None = None) -> dict[str, Any]:
        """See Source."""
        first = queue_from or 0
        groups = Counter((run["code"], run["reason"]) for run in self.queue)
        self.asked_since.append(since)
        return {
            "pool": self.name, "version": self.version, "now": self.now, "most_finished": 1000,
            "nodes": self.nodes,
            "profile": "adaptive", "draining": False, "unwell": self.unwell,
            "devices": [
                {
                    "id": name, "node": node["id"], "kind": "virtual", "virtual": True, "memory_bytes": 8 << 30,
                    "idle_s": 0.5, "gaps": 10,
                }
                for node in self.nodes
                for name in (DEVICES if len(self.nodes) == 1 else devices_of(node["id"], self.per_node))
            ],
            "runs": [run for run in self.runs if self.changed[run["n"]] > since],
            "queue": self.queue[first : first + QUEUE_PAGE], "queue_from": first, "queued": len(self.queue),
            "queue_groups": [
                {"code": code, "reason": reason, "runs": runs} for (code, reason), runs in groups.most_common()
            ],
            "prefect": {"pool": "http://prefect.example/pool", "run": "http://prefect.example/runs/{id}"},
            "shares": self.shares,
        }  # fmt: skip

    def details(self, number: int) -> dict[str, Any] | None:
        """See Source."""
        found = next((run for run in self.runs if run["n"] == number), None)
        if found is None:
            return None
        story = [[found["submitted"], "submitted"], [found["granted"], "granted virtual-0: it comes next"]]
        return {"losses": [[1, 2.0], [2, 1.0], [3, 0.5]], **found, "story": story}

    def promise(self, asked: dict[str, Any]) -> dict[str, Any]:
        """See Source: what ends within an hour is promised, and what is called nonsense is refused as such."""
        self.asked.append(asked)
        if asked["flow"] == "nonsense":
            raise ValueError("gpus=-1: give a number of devices")
        kept = asked["job_variables"]["deadline"] != "1h"
        return {
            "probability": 0.9 if kept else None,
            "deadline": 4_000_000_000.0,
            "earliest": None if kept else 4_000_003_600.0,
            "starts_by": 3_999_999_000.0 if kept else None,
            "reason": "it may need 95 min",
        }

    def change(self, n: int, /, **what: Any) -> None:
        """A run changes."""
        self.version += 1
        self.changed[n] = self.version
        next(run for run in self.runs if run["n"] == n).update(what)


def divided() -> dict[str, Any]:
    """Two groups and an owner, as a real scheduler tells of them."""
    world = pool(
        Share("vision", guaranteed=4, weight=2.0), Share("ada", "vision", guaranteed=2), Share("bob", "vision"),
        Share("nlp", limit=6), devices=8,
    )  # fmt: skip
    starts(world, "nlp", 8)
    world.train(*world.places)
    world.wait(3600.0)
    starts(world, "ada", 3)
    starts(world, "zoe", 2)
    standing = world.scheduler.standing()
    assert standing is not None
    return {"devices": 8, "half_life_s": 86_400.0, "rows": [asdict(row) for row in table(standing)]}


def large_pool(now: float, *, queued: int = 500) -> Scene:
    """Eight nodes of eight devices, all of which have had runs; some run, one wastes its device, and many wait."""
    draw, runs = random.Random(5), []
    nodes = [a_node(f"node-{number}", f"r{number // 4}") for number in range(1, 9)]
    for node in nodes:
        for device in devices_of(node["id"], 8):
            start = now - 290.0
            while start < now - 6:
                length = draw.uniform(25.0, 120.0)
                over = start + length < now
                run = a_run(len(runs) + 1, start, node=node["id"], device=device, over=over, name="")
                if over:
                    run["spans"][3:] = [
                        ["training", start + 3, start + length - 1],
                        ["saving", start + length - 1, start + length],
                    ]
                    run["ended"] = start + length
                    if draw.random() < 0.06:
                        run |= {"outcome": "failed", "message": "ValueError: no"}
                else:
                    run["expected_end"] = start + length
                runs.append(run)
                start += length + draw.uniform(0.1, 12.0)
    running = [run for run in runs if not run["outcome"]]
    running[3]["wasting"] = "it has used less than 5 % of its devices for 42 min, 0 % at last"
    reasons = (("devices", "64 of 64 devices are in use"), ("limit", "Queue small has reached its limit of 8 runs"),
               ("order", "Others come first: ana has had less than she is owed"))  # fmt: skip
    queue = []
    for position in range(1, queued + 1):
        code, reason = reasons[0 if position % 9 else 1 if position % 2 else 2]
        queue.append(waiting(position, now) | {"code": code, "reason": reason})
    scene = Scene(now, runs, queue, nodes)
    scene.per_node = 8
    return scene


def waiting(position: int, now: float) -> dict[str, Any]:
    """A run that waits."""
    return {
        "id": f"waiting-{position}", "name": f"patient-ox-{position}", "submitted": now - 60.0,
        "due": None, "code": "devices",
        "reason": "4 of 4 devices are in use", "expected_start": now + 30.0 * position, "expected_end": None,
    }  # fmt: skip


def crowd(count: int, now: float, *, active: int = 8, queued: int = 100) -> Scene:
    """So many runs on four devices, the newest of which train, and some that wait."""
    draw = random.Random(7)
    runs = []
    for n in range(1, count + 1):
        over = n <= count - active
        start = now - (count - n) * 3.5 - (16.0 if over else 6.0)
        more: dict[str, Any] = {} if n % 3 else {"weights": [[start + 5.0, 0.25], [start + 9.0, 1.0]]}
        if over and draw.random() < 0.05:
            more |= {"outcome": "failed", "message": "ValueError: no"}
        runs.append(a_run(n, start, device=DEVICES[n % 4], over=over, **more))
    return Scene(now, runs, [waiting(position, now) for position in range(1, queued + 1)])
