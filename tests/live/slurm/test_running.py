"""Flow runs on nodes that Slurm lends: what users see of them."""

from __future__ import annotations

from tests.live.slurm.conftest import SlurmPool


async def test_the_same_flow_runs_here_and_on_a_node_of_slurm(slurm_pool: SlurmPool) -> None:
    """And the node, which was asked for as the run came, is given back when nobody needs it any more."""
    await slurm_pool.allow()
    assert slurm_pool.given_back()
    slurm_pool.start_worker()
    run_id = await slurm_pool.submit("train", steps=5)
    state = await slurm_pool.until(run_id)
    assert state.is_completed(), state
    assert await slurm_pool.node(run_id) in slurm_pool.lab.nodes
    [row] = await slurm_pool.rows([run_id])
    assert row.outcome == "completed" and row.node and row.trained_s is not None
