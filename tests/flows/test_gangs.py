"""The flows for gangs, their instances being real processes that meet as they do in the pool; and alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flows.gangs import BREAKS, SAYS_WHERE, gang, run_together

pytestmark = pytest.mark.needs("pytorch")
DATA_PARALLEL = ("distributed_training", "train_together")
SERVERS = ("parameter_server", "train_with_servers")
# Instance 0 saves in every epoch; it writes down in which it begins.
_SAVES_OFTEN = f"""
{SAYS_WHERE}
report = TrainingRun.report
def due(run, *args, **kwargs):
    run._saver.due_at = 0.0
    report(run, *args, **kwargs)
    print("saved", run.step, flush=True)
TrainingRun.report = due
"""


@pytest.mark.slow
async def test_all_instances_together_learn_to_read_digits(tmp_path: Path) -> None:
    model, placement = tmp_path / "model.pt", gang(2, 1)
    report, told, lines = await run_together(tmp_path, placement, SERVERS, model_path=str(model), channels=8, epochs=12)
    assert report.returncode == 0, lines
    assert [told[rank]["role"] for rank in sorted(told)] == ["worker", "worker", "server"]
    assert told[0]["result"] == told[1]["result"] > 0.9
    assert model.exists()


@pytest.mark.slow
async def test_a_broken_instance_ends_all_and_the_next_try_carries_on(tmp_path: Path) -> None:
    placement, parameters = gang(2, 0), {"model_path": str(tmp_path / "model.pt"), "channels": 2, "epochs": 5}
    report, told, lines = await run_together(tmp_path, placement, DATA_PARALLEL, [_SAVES_OFTEN, BREAKS], **parameters)
    assert report.returncode == 7 and "Instance 1" in report.cause and told == {}, lines
    assert "begins in 0" in lines
    report, told, lines = await run_together(tmp_path, placement, DATA_PARALLEL, [_SAVES_OFTEN], **parameters)
    assert report.returncode == 0 and sorted(told) == [0, 1], lines
    assert "begins in 2" in lines or "begins in 3" in lines, lines


def test_a_second_try_in_the_same_process_joins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one has lost the others, and left the group as it was."""
    import torch.distributed as dist

    from flows.distributed_training import join

    monkeypatch.delenv("RANK", raising=False)
    assert join() == join() == (0, 1)
    dist.destroy_process_group()


@pytest.mark.slow
def test_with_servers_or_without_a_gang_it_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.distributed_training import train_together
    from flows.parameter_server import train_with_servers

    for name, flow in (("together", train_together), ("servers", train_with_servers)):
        assert flow.fn(str(tmp_path / name), epochs=10) > 0.9
        assert (tmp_path / name).exists()
