"""What the block of shares accepts, and what it says otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from prefect_gpu.blocks import GpuQuota, QuotaShare
from prefect_gpu.blocks.base import explain
from prefect_gpu.blocks.files import read_file
from prefect_gpu.scheduling.model.shares import Share

FILE = Path(__file__).parents[2] / "blocks" / "lab-quota.yaml"


def share(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, **more}


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ([share("a"), share("a")], "shares: 'a' is there twice: state each owner and group once"),
        ([share("a", group="b")], "group='b' of share 'a' is not among the shares: add it, or leave it out"),
        ([share("a", group="a")], "group='a' of share 'a': the group is in itself; leave it out"),
        ([share("a", group="b"), share("b", group="a")], "the group is in itself"),
        ([share("a", guaranteed=3, limit=2)], "guaranteed=3 of share 'a' is above its limit=2"),
        (
            [share("g", guaranteed=2), share("a", group="g", guaranteed=2), share("b", group="g", guaranteed=1)],
            "guaranteed=2 of group 'g' is below the 3 that its members are guaranteed together: raise it to 3",
        ),
        ([share("a", weight=0)], "shares.0.weight=0: input should be greater than 0"),
        ([share("a", guaranteed=-1)], "shares.0.guaranteed=-1: input should be greater than or equal to 0"),
        ([share("a", wieght=2)], "wieght is no field of share a: there are group, guaranteed, limit, name, weight"),
        ([share("a/b")], "name='a/b': a name has no / in it"),
    ],
)
def test_what_is_wrong_is_told_with_its_remedy(shares: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(ValidationError) as refused:
        GpuQuota.model_validate({"shares": shares})
    assert said in explain(refused.value)


def test_a_half_life_is_needed() -> None:
    for hours in (0, float("inf"), float("nan")):
        with pytest.raises(ValidationError):
            GpuQuota(half_life_hours=hours)


def test_the_scheduler_gets_all_of_it() -> None:
    [found] = read_file(FILE)
    assert found.reference == "gpu-quota/lab-quota" and isinstance(found.block, GpuQuota)
    shares = found.block.as_shares()
    assert shares.half_life_s == 86_400 and shares.default == Share("", limit=2, weight=0.5)
    assert shares.named == (
        Share("ada", "vision", 2),
        Share("bob", "vision"),
        Share("nlp", limit=6),
        Share("vision", guaranteed=4, weight=2.0),
    )
    assert found.block.guaranteed == 4
    assert GpuQuota(shares=[QuotaShare(name="a", guaranteed=2), QuotaShare(name="b", guaranteed=1)]).guaranteed == 3
