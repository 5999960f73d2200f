"""The traces as their owners published them."""

from __future__ import annotations

import pytest

from prefect_gpu.scheduling.interference.sensitivity import Key
from prefect_gpu.simulation.traces import TraceError, TraceJob, guess_format, read_contention, read_trace
from tests.components import traces_folder

pytestmark = pytest.mark.needs("traces")
MEASURED_ON = {
    "Rivendile-Muri/trace-data/trace1.csv": ("muri", 1494),
    "Rivendile-Muri/trace-data/trace2.csv": ("muri", 5755),
    "Rivendile-Muri/trace-data/trace3.csv": ("muri", 992),
    "derived/ef_cluster07_muri_format.csv": ("muri", 12_699),
    "derived/philly_week_neutral.csv": ("neutral", 12_691),
    "gajagajago-deepshare/traces/simulate/trace0": ("deepshare", 256),
}
OTHERS = {
    **{f"Rivendile-Muri/trace-data/job_type_{kind}.csv": ("muri", 992) for kind in (1, 2, 3, 4)},
    "Rivendile-Muri/trace-data/trace1_pr.csv": ("muri", 1494),
    "Rivendile-Muri/trace-data/trace2_pr.csv": ("muri", 5755),
    "Rivendile-Muri/trace-data/trace3_pr.csv": ("muri", 992),
    "SymbioticLab-Tiresias/60_job.csv": ("tiresias", 60),
    "derived/philly_week_muri_format.csv": ("muri", 12_691),
    "pkusys-ElasticFlow/pollux_traces/philly.csv": ("philly", 82_247),
    **{f"S-Lab-ChronusArtifact/trace_job_Philly_{name}.csv": ("chronus", 30_940) for name in ("MIX1", "MIX2", "SLO")},
    "hkust-adsl-kss/openb_pod_list_default.csv": ("openb", 7255),
    "hkust-adsl-kss/openb_pod_list_gpushare40.csv": ("openb", 7171),
    "microsoft-elasticflow-traces/elasticflow/195job.csv": ("elasticflow", 195),
    "microsoft-elasticflow-traces/raw/cluster01.csv": ("elasticflow", 1595),
    "microsoft-elasticflow-traces/raw/cluster02.csv": ("elasticflow", 5778),
    "microsoft-elasticflow-traces/raw/cluster03.csv": ("elasticflow", 3011),
    "microsoft-elasticflow-traces/raw/cluster04.csv": ("elasticflow", 15_802),
    "microsoft-elasticflow-traces/raw/cluster05.csv": ("elasticflow", 3629),
    "microsoft-elasticflow-traces/raw/cluster07.csv": ("elasticflow", 12_699),
    "microsoft-elasticflow-traces/raw/cluster08.csv": ("elasticflow", 13_047),
    "microsoft-elasticflow-traces/raw/cluster09.csv": ("elasticflow", 11_134),
    "microsoft-elasticflow-traces/raw/cluster10.csv": ("elasticflow", 260),
    "pkusys-ElasticFlow/traces_for_ElasticFlow/elasticVpollux_e.csv": ("elasticflow", 195),
    "pkusys-ElasticFlow/traces_for_ElasticFlow/philly_103959.csv": ("elasticflow", 876),
    "pkusys-ElasticFlow/traces_for_ElasticFlow/resnet_cifar_trace.csv": ("elasticflow", 5),
    **{
        f"gajagajago-deepshare/traces/train/jobset{jobs}/episode{episode}": ("deepshare", 256)
        for jobs in range(3)
        for episode in range(3)
    },
    **{
        f"stanford-futuredata-gavel/traces/physical_cluster/{name}.trace": ("gavel", count)
        for name, count in (
            ("artifact_evaluation", 15), ("debug", 14), ("debug_v2", 14), ("highmem_test", 8),
            ("max_min_fairness", 96), ("medium_test", 20), ("minimize_makespan", 100), ("small_test", 20),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", MEASURED_ON)
def test_a_trace_that_is_measured_on_is_read_whole(name: str) -> None:
    path = traces_folder() / name
    assert (guess_format(path), len(list(read_trace(path)))) == MEASURED_ON[name]


@pytest.mark.slow
def test_every_published_file_is_read_or_refused() -> None:
    """The folder may hold more files than are listed here."""
    folder = traces_folder()
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        try:
            found[path.relative_to(folder).as_posix()] = (guess_format(path), len(list(read_trace(path))))
        except TraceError as error:
            assert error.path == path
    assert {name: found.get(name) for name in MEASURED_ON | OTHERS} == MEASURED_ON | OTHERS


SAME_JOBS = {
    "derived/ef_cluster07_muri_format.csv": "microsoft-elasticflow-traces/raw/cluster07.csv",
    "derived/philly_week_muri_format.csv": "derived/philly_week_neutral.csv",
}


@pytest.mark.parametrize("muri, seconds", SAME_JOBS.items())
def test_the_same_jobs_in_milliseconds_and_in_seconds_are_the_same(muri: str, seconds: str) -> None:
    def submissions(jobs: list[TraceJob]) -> list[float]:
        return [job.submit_s - jobs[0].submit_s for job in jobs]

    ours, others = (list(read_trace(traces_folder() / name)) for name in (muri, seconds))
    assert submissions(ours) == submissions(others)
    assert [job.gpus for job in ours] == [job.gpus for job in others]
    # Muri's duration is a whole number of iterations, so it is up to one iteration shorter
    assert all(0 <= b.duration_s - a.duration_s <= (a.iteration_s or 0) for a, b in zip(ours, others, strict=True))


def test_the_published_contention_tables_hold_every_pair() -> None:
    table = read_contention(traces_folder() / "gajagajago-deepshare" / "jobs")
    assert (len(table.isolated), len(table.ratios), len(table.samples)) == (36, 36 * 36, 18)
    assert table.isolated[Key("MoE", 8, 2)] == 45.18
    for (model, gpus), samples in table.samples.items():
        speeds = [table.isolated[Key(model, gpus, nodes)] for nodes in (2, 4) if nodes <= gpus]
        # the job sets are made of jobs of an hour at the mean of these speeds, which are rounded in the file
        assert samples * len(speeds) / sum(speeds) == pytest.approx(3600, rel=1e-3)
