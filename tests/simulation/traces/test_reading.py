"""What is read from each format."""

from __future__ import annotations

import dataclasses
import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_gpu.simulation.traces import FORMATS, TraceError, TraceJob, guess_format, read_contention, read_trace
from tests.simulation.traces import writing
from tests.support import examples

EXAMPLES = {
    "muri": (
        "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,"
        "resource_time_0,resource_time_1,resource_time_2,priority\r\n"
        "0,4,1500,1000,bert,4,190150,11174000,190,0.5,163,18,1\r\n",
        TraceJob("0", 1.5, 190.0, 4, "bert", 4, 1000, 0.19, (0.0005, 0.163, 0.018)),
    ),
    "tiresias": (
        "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n1,8,30,133,vgg11,147,23\n",
        TraceJob("1", 30.0, 147.0, 8, "vgg11", iterations=133),
    ),
    "neutral": ("job_id,submit_s,duration_s,num_gpu\n1,601,66.5,1\n", TraceJob("1", 601.0, 66.5, 1)),
    "elasticflow": (
        "job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration,best_effort\n"
        "7,2811,94898,resnet50_cifar10,9179,256,1,4830,0\n",
        TraceJob("7", 2811.0, 4830.0, 1, "resnet50_cifar10", 256, 94898, deadline_s=9179.0),
    ),
    "philly": (
        "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,11cb48\n",
        TraceJob("2", 0.0, 66.0, 1, queue="11cb48"),
    ),
    "chronus": (
        "job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval,expect_time_list,expect_value_list,"
        "best_effort,job_type\n0,vc_ed69ec,1,5601,5530,mobilenet_v2,96,5,159-189-229-289,10-8-5-2,0,soft\n",
        TraceJob("0", 5601.0, 96.0, 1, "mobilenet_v2", iterations=5530, user="vc_ed69ec", deadline_s=5760.0),
    ),
    "openb": (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
        "\npod-1,6000,12288,1,460,,LS,Running,427061,427100,427065\npod-2,6000,12288,1,460,,BE,Pending,427062,427100,\n",
        TraceJob("pod-1", 427061.0, 35.0, 1, queue="LS", cpus=6.0, gpu_share=0.46),
    ),
    "deepshare": (
        '{"3": {"model": "MoE", "gpu_demand": 4, "total_samples_to_train": 1600}}',
        TraceJob("3", 0.0, 100.0, 4, "MoE", samples=1600.0),
    ),
    "gavel": (
        "MoE (batch size 16)\tpython3 main.py\tcifar10\t--num_steps\t1\t200\t2\t1\t-1.000000\t9\n",
        TraceJob("1", 9.0, 100.0, 2, "MoE", 16, 200, 0.5),
    ),
}  # fmt: skip


@pytest.mark.parametrize("format", FORMATS)
def test_a_row_of_each_format_becomes_a_job(format: str, folder: Path) -> None:
    text, expected = EXAMPLES[format]
    path = folder / "example"
    path.write_text(text, newline="")
    assert guess_format(path) == format
    assert list(read_trace(path)) == [expected]


@pytest.mark.parametrize("format", FORMATS)
def test_how_the_text_is_stored_does_not_matter(format: str, folder: Path) -> None:
    text, expected = EXAMPLES[format]
    path = folder / "stored"
    lines = text.replace("\r\n", "\n")
    for content in (
        lines.replace("\n", "\r\n").encode(),
        lines.rstrip("\n").encode(),
        b"\xef\xbb\xbf" + lines.encode(),
        lines.replace("\n", "\n\n \n").encode(),
        gzip.compress(lines.encode()),
    ):
        path.write_bytes(content)
        assert guess_format(path) == format
        jobs = [dataclasses.replace(job, job_id=expected.job_id) for job in read_trace(path, format)]
        assert jobs == [expected]  # where jobs have no names, they are named by their lines, which blank ones shift


def test_jobs_come_in_order_of_submission_and_else_in_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("job_id,submit_s,duration_s,num_gpu\nd,9,1,1\na,5,1,1\nb,5,1,1\nc,0,1,1\n")
    assert [job.job_id for job in read_trace(path)] == ["c", "a", "b", "d"]
    assert [job.job_id for job in FORMATS["neutral"].read(path)] == ["d", "a", "b", "c"]


def test_a_format_gives_the_jobs_above_a_bad_row_before_it_refuses_that(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("job_id,submit_s,duration_s,num_gpu\na,0,1,1\nb,0,1,one\n")
    jobs = FORMATS["neutral"].read(path)
    assert next(jobs).job_id == "a"
    with pytest.raises(TraceError, match="line 3: num_gpu='one'"):
        next(jobs)


def test_a_best_effort_job_has_no_deadline(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    for format, old, new in (("chronus", ",0,soft", ",1,best"), ("elasticflow", "4830,0", "4830,1")):
        assert old in EXAMPLES[format][0]
        path.write_text(EXAMPLES[format][0].replace(old, new))
        assert [job.deadline_s for job in read_trace(path)] == [None]


def test_the_contention_tables_are_read(folder: Path) -> None:
    table = read_contention(folder.parent / "jobs")
    assert table == writing.TABLE
    assert table.fewest_nodes("MoE", 4) == ("MoE", 4, 2)
    assert table.fewest_nodes("MoE", 8) is None


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=8)
SECONDS = st.integers(0, 10**9).map(lambda ms: ms / 1000)
WHOLE_SECONDS = st.integers(0, 10**6).map(float)
COUNTS = st.integers(0, 10**9)
GPUS = st.integers(1, 4096)


def _jobs(**fields: st.SearchStrategy[object]) -> st.SearchStrategy[list[TraceJob]]:
    """Lists of jobs with names of their own."""
    kinds = {"job_id": WORDS, "submit_s": SECONDS, "duration_s": SECONDS, "gpus": GPUS} | fields
    return st.lists(st.builds(TraceJob, **kinds), max_size=6, unique_by=lambda job: job.job_id)


def _renumbered(jobs: list[TraceJob], first: int) -> list[TraceJob]:
    """The jobs, named by the lines that they will stand in."""
    return [dataclasses.replace(job, job_id=str(line)) for line, job in enumerate(jobs, first)]


def _from_zero(jobs: list[TraceJob]) -> list[TraceJob]:
    first = min((job.submit_s for job in jobs), default=0.0)
    return [dataclasses.replace(job, submit_s=job.submit_s - first) for job in jobs]


def _of_iterations(job: TraceJob) -> TraceJob:
    iteration_ms = round((job.iteration_s or 0) * 1000)
    return dataclasses.replace(job, duration_s=(job.iterations or 0) * iteration_ms / 1000)


def _until_deadline(job: TraceJob) -> TraceJob:
    return job if job.deadline_s is None else dataclasses.replace(job, deadline_s=job.submit_s + job.deadline_s)


def _of_steps(job: TraceJob) -> TraceJob:
    rate = (job.batch_size or 0) / 8
    return dataclasses.replace(job, duration_s=(job.iterations or 0) / rate, iteration_s=1 / rate)


STAGES = st.tuples(SECONDS, SECONDS, SECONDS)
MAYBE_COUNT = st.none() | COUNTS
JOBS: dict[str, st.SearchStrategy[list[TraceJob]]] = {
    "muri": _jobs(
        model=WORDS, batch_size=COUNTS, iterations=st.integers(0, 10**6), iteration_s=SECONDS, stages_s=STAGES,
    ).map(lambda jobs: [_of_iterations(job) for job in jobs]),
    "tiresias": _jobs(model=WORDS, iterations=COUNTS),
    "neutral": _jobs(
        model=WORDS, batch_size=MAYBE_COUNT, iterations=MAYBE_COUNT, iteration_s=st.none() | SECONDS,
        stages_s=st.lists(SECONDS, max_size=4).map(tuple), samples=st.none() | SECONDS, user=WORDS, queue=WORDS,
        priority=st.integers(-5, 5), deadline_s=st.none() | SECONDS, cpus=st.none() | SECONDS,
        gpu_share=st.integers(0, 100).map(lambda percent: percent / 100),
    ),
    "elasticflow": _jobs(
        model=WORDS, batch_size=MAYBE_COUNT, iterations=MAYBE_COUNT, deadline_s=st.none() | SECONDS,
    ),
    "philly": _jobs(submit_s=WHOLE_SECONDS, queue=WORDS).map(lambda jobs: _renumbered(_from_zero(jobs), 2)),
    "chronus": _jobs(
        gpus=st.integers(0, 64), model=WORDS, iterations=COUNTS, user=WORDS, submit_s=WHOLE_SECONDS,
        deadline_s=st.none() | st.integers(1, 10**6).map(float),
    ).map(lambda jobs: [_until_deadline(job) for job in jobs]),
    "openb": _jobs(
        duration_s=WHOLE_SECONDS, queue=WORDS, cpus=SECONDS,
        gpu_share=st.integers(0, 1000).map(lambda part: part / 1000),
    ),
    "deepshare": _jobs(
        submit_s=st.just(0.0), gpus=st.just(2), model=st.just("MoE"), samples=SECONDS
    ).map(lambda jobs: [dataclasses.replace(job, duration_s=(job.samples or 0.0) / 10) for job in jobs]),
    "gavel": _jobs(
        model=st.just("MoE"), gpus=st.just(2), batch_size=st.sampled_from([16, 32]), iterations=COUNTS
    ).map(lambda jobs: [_of_steps(job) for job in _renumbered(jobs, 1)]),
}  # fmt: skip


@pytest.mark.parametrize("format", FORMATS)
def test_jobs_written_in_a_format_read_back(format: str, folder: Path) -> None:
    path = folder / "written"

    @settings(max_examples=examples(0.3), deadline=None)
    @given(JOBS[format])
    def reads_back(jobs: list[TraceJob]) -> None:
        path.write_text(writing.WRITERS[format](jobs), encoding="utf-8", newline="")
        assert list(FORMATS[format].read(path)) == jobs
        assert list(read_trace(path, format)) == sorted(jobs, key=lambda job: job.submit_s)

    reads_back()
