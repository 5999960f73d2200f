"""A gang on a Swarm: real PyTorch, instances on several nodes, one Prefect run."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from prefect_gpu.runtime.drivers.docker import Endpoint
from tests.live.cluster.pool import ClusterPool
from tests.live.pool import COLD, eventually
from tests.live.test_page import told

pytestmark = [pytest.mark.needs("pytorch"), pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]


async def submit(swarm: ClusterPool, model: Path, epochs: int) -> UUID:
    file, asked = ROOT / "flows" / "distributed_training.py", {"workers": 3}
    return await swarm.submit("train_together", file=file, job_variables=asked, model_path=str(model), epochs=epochs)


def instances(swarm: ClusterPool) -> list[tuple[str, str]]:
    """(node, container) of each, the first one first."""
    found = [(node, name) for node, names in swarm.containers().items() for name in names]
    return sorted(found, key=lambda one: one[1])


async def test_a_gang_trains_across_nodes_and_survives_the_loss_of_an_instance(
    swarm: ClusterPool, tmp_path: Path
) -> None:
    swarm.start_worker(**COLD)
    run_id = await submit(swarm, tmp_path / "model.pt", epochs=60)

    async def trains() -> bool:
        return "training" in swarm.record(run_id).get("times", {})

    await eventually(trains, "the gang's training")
    places = instances(swarm)
    assert len(places) == 3 and len({node for node, _ in places}) > 1
    page = await told(swarm)
    assert [node["state"] for node in page["nodes"]] == ["up"] * 3
    [shown] = page["runs"]
    assert [part["node"] for part in shown["parts"]] == [node for node, _ in places] and len(shown["devices"]) == 3
    node, container = places[-1]
    url = next(one.url for one in swarm.lab.nodes if one.name == node)
    client = Endpoint(url).connect()
    client.api.kill(container)
    client.close()
    await swarm.until(run_id, "Completed")
    assert "Crashed" not in await swarm.names(run_id), "instance 0, which is stopped with the others, leaves that to us"
    assert (tmp_path / "model.pt").exists()
    rows = await swarm.rows([run_id], attempts=2)
    assert [row.outcome for row in rows] == ["crashed", "completed"]
    assert "of 3 ended first, so all were stopped" in (rows[0].message or "")
    assert [node for node, _ in rows[0].places] == [node for node, _ in places]
    assert len(set(rows[0].devices)) == 3, "the history has the devices of all instances"
