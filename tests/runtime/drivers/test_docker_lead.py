"""A worker that may have lost the leadership starts no container, and none removes those of another pool."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from prefect_gpu.runtime.drivers.base import ContainerSpec, LaunchError, LaunchSpec
from prefect_gpu.runtime.drivers.docker import DockerDriver, Endpoint, containers


async def test_the_lead_is_lost_while_an_image_is_pulled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    removed: list[str] = []
    leads = [True]

    def create(*args: Any) -> str:
        leads[0] = False
        return "made"

    image = containers.Image("sha256:1", {}, "/", user="1000")
    monkeypatch.setattr(containers, "ensure_image", lambda client, name, pull: image)
    monkeypatch.setattr(containers, "create", create)
    monkeypatch.setattr(containers, "remove", lambda client, container: removed.append(container))
    driver = DockerDriver(Endpoint("unix:///nowhere"), ContainerSpec("image"), logger=logging.getLogger("tests"))
    driver._client = cast(Any, SimpleNamespace(api=SimpleNamespace(start=started.append)))
    driver.may_start = lambda: leads[0]
    with pytest.raises(LaunchError, match="another worker may lead"):
        await driver.launch(LaunchSpec("run", tmp_path / "launch", ("true",), {}, tmp_path))
    assert (started, removed) == ([], ["made"])


def test_a_pool_knows_its_containers_from_those_of_another_servers_pool_of_the_same_name() -> None:
    ours, theirs, of_no_id = containers.Pool("gpus", "1"), containers.Pool("gpus", "2"), containers.Pool("gpus")
    there = {"ours": ours.labels, "theirs": theirs.labels, "probe": of_no_id.labels, "other": {"a": "b"}}
    told = [{"Names": [f"/{name}"], "Labels": labels} for name, labels in there.items()]
    client = cast(Any, SimpleNamespace(api=SimpleNamespace(containers=lambda **_: told)))
    assert containers.leftovers(client, ours) == ["ours", "probe"]
    assert containers.leftovers(client, of_no_id) == ["ours", "theirs", "probe"]
