"""The benchmark of shares: its meter is right, and it says of each claim whether it holds."""

from __future__ import annotations

import pytest

from benchmarks.fairness.simulated import Meter, even_fill
from benchmarks.fairness.workload import DAY, WEIGHTS, bursts, promised
from prefect_gpu.scheduling.fair_share.owed import owed
from prefect_gpu.scheduling.fair_share.tree import Tree
from prefect_gpu.simulation.model import JobModel
from tests.benchmarks.quick import quick


@pytest.mark.parametrize("wants", [(20.0, 20.0, 20.0), (1.0, 20.0, 20.0), (20.0, 2.0, 0.0), (3.0, 3.0, 3.0)])
@pytest.mark.parametrize("guarantees", [False, True])
def test_its_meter_and_the_scheduler_agree_on_what_is_owed(wants: tuple[float, ...], guarantees: bool) -> None:
    shares = promised(3600.0, 16, guarantees=guarantees)
    asked = dict(zip(("ada", "bob", "cyd"), wants, strict=True))
    sure = {share.name: float(share.guaranteed) for share in shares.named}
    assert even_fill(asked, sure, 16) == pytest.approx(owed(Tree(shares, ()), 16, asked))


def test_its_meter_sees_what_is_not_as_promised() -> None:
    meter = Meter(promised(100.0, 4, guarantees=True), 4)
    asked = {"ada": 8.0, "bob": 8.0, "cyd": 8.0}
    meter.passed({"ada": 2.0, "bob": 1.0, "cyd": 1.0}, asked, 0.0, 200.0)
    assert meter.gaps[-1][0] == pytest.approx(0.0, abs=1e-6)
    meter.passed({"bob": 4.0}, asked, 200.0, 300.0)
    assert meter.gaps[-1][0] > 0.3
    meter.lacks("ada", True, 200.0)
    meter.lacks("ada", False, 215.0)
    assert meter.lacking_s == [15.0]


def test_owners_ask_for_as_much_as_each_other_or_in_proportion_to_their_weights() -> None:
    equally, by_weight = (bursts(7.0, 16, 0.7, 1, by_weight=one) for one in (False, True))

    def asked(jobs: list[JobModel]) -> dict[str, float]:
        found = dict.fromkeys(WEIGHTS, 0.0)
        for job in jobs:
            found[job.request.owner] += job.service_s * job.request.gpus
        return {owner: part / sum(found.values()) for owner, part in found.items()}

    assert asked(equally) == pytest.approx(dict.fromkeys(WEIGHTS, 1 / 3), abs=0.06)
    assert asked(by_weight) == pytest.approx({"ada": 0.5, "bob": 0.25, "cyd": 0.25}, abs=0.06)
    as_sent = {(job.submit_s, job.service_s, job.request) for job in equally}
    also = {(job.submit_s, job.service_s, job.request) for job in by_weight}
    assert {one for one in as_sent if one[2].owner == "ada"} < also, "ada sends what she would send, and more"
    assert {one for one in also if one[2].owner != "ada"} < as_sent, "the others send a part of what they would send"
    first = {owner: min(job.submit_s for job in equally if job.request.owner == owner) for owner in WEIGHTS}
    assert all(job.submit_s >= first[job.request.owner] - 600.0 for job in by_weight), "and nobody comes at other times"
    assert max(job.submit_s for job in by_weight) < 7 * DAY + 600.0


@pytest.mark.full
def test_it_says_of_each_claim_whether_it_holds() -> None:
    said = quick("fairness")
    kept = {claim["name"]: claim["holds"] for claim in said["claims"]}
    assert kept["largest difference of had and owed, at load 0.5"], said["claims"]
    assert kept["longest wait for what is guaranteed, at load 0.5: seconds"], said["claims"]
    assert kept["largest difference of had and owed, at load 0.5, asked for by weight"], said["claims"]
