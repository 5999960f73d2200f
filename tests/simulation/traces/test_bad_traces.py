"""Traces that cannot be read say so, and where to mend them."""

from __future__ import annotations

import gzip
import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_gpu.simulation.traces import FORMATS, TraceError, TraceJob, guess_format, read_contention, read_trace
from tests.simulation.traces import writing
from tests.simulation.traces.test_reading import EXAMPLES
from tests.support import examples

GOOD = "job_id,submit_s,duration_s,num_gpu\na,0,60,1\n"
MURI = EXAMPLES["muri"][0]

# what stands in the file, its format, the line at fault, and a part of what must be said
BAD_FILES = {
    "it is empty": ("", "neutral", None, "is empty: its first line must name job_id, submit_s"),
    "it holds only blank lines": ("\n \n", "neutral", None, "is empty"),
    "a column is missing": ("job_id,submit_s,num_gpu\na,0,1\n", "neutral", 1, "duration_s is missing among"),
    "a column stands twice": ("job_id,job_id\n", "neutral", 1, "job_id names two columns"),
    "a number is none": (GOOD + "b,x,60,1\n", "neutral", 3, "submit_s='x' is not a number"),
    "a number is not finite": (GOOD + "b,0,inf,1\n", "neutral", 3, "duration_s='inf' is not a number"),
    "a number has underscores": (GOOD + "b,0,1_0,1\n", "neutral", 3, "duration_s='1_0' is not a number"),
    "a number is too large": (GOOD + "b,0,1e16,1\n", "neutral", 3, "duration_s='1e16' is more than 1e+15"),
    "a value is left out": (GOOD + "b,0,,1\n", "neutral", 3, "duration_s='' is empty"),
    "a duration is negative": (GOOD + "b,0,-1,1\n", "neutral", 3, "duration_s='-1' is negative: give"),
    "a job asks for no GPU": (GOOD + "b,0,1,0\n", "neutral", 3, "num_gpu='0' is less than 1"),
    "a job asks for fewer GPUs than none": (GOOD + "b,0,1,-4\n", "neutral", 3, "num_gpu='-4' is less than 1"),
    "a job asks for half a GPU": (GOOD + "b,0,1,1.5\n", "neutral", 3, "num_gpu='1.5' is not a whole number"),
    "a job asks for a world of GPUs": (GOOD + "b,0,1,1e9\n", "neutral", 3, "num_gpu='1e9' is more than 1,000,000"),
    "a name stands twice": (GOOD + "\na,5,1,1\n", "neutral", 4, "job_id='a' stands in line 2 too"),
    "a job has no name": (GOOD + ",5,1,1\n", "neutral", 3, "job_id='' is empty"),
    "a row is cut off": (GOOD + "b,0,1\n", "neutral", 3, "has 3 values where the header names 4 columns"),
    "a row is too long": (GOOD + "b,0,1,1,5\n", "neutral", 3, "has 5 values where the header names 4 columns"),
    "a quote is not closed": (GOOD + '"b,0,1,1\n', "neutral", 3, "is not comma-separated text"),
    "a row spans two lines": (GOOD + '"b\nc",0,x,1\n', "neutral", 3, "duration_s='x' is not a number"),
    "text is not UTF-8": (GOOD.encode() + b"\xff,0,1,1\n", "neutral", 3, "is not UTF-8: save"),
    "a gzip file is cut off": (gzip.compress(GOOD.encode())[:-9], "neutral", None, "is a damaged gzip file"),
    "a line never ends": (GOOD + "x" * (1 << 21), "neutral", 3, "is longer than 1,048,576 bytes"),
    "stages are no list": (
        "job_id,submit_s,duration_s,num_gpu,stages_s\nb,0,1,1,1;-2\n", "neutral", 2, "stages_s='1;-2' is no list",
    ),
    "a share is too large": (
        "job_id,submit_s,duration_s,num_gpu,gpu_share\nb,0,1,1,2\n", "neutral", 2, "gpu_share='2' is more than a GPU",
    ),
    "units differ": (MURI.replace("190150", "190"), "muri", 2, "duration='190' is far from iterations × "),
    "an iteration count is no whole number": (MURI.replace(",1000,", ",1000.5,"), "muri", 2, "='1000.5' is not"),
    "a time of submission is missing": ("job_id,duration,num_gpu\n", "elasticflow", 1, "submission_time is missing"),
    "a date is none": ("timestamp,duration,num_gpus\nyesterday,1,1\n", "philly", 2, "timestamp='yesterday' is no date"),
    "a deadline is none": (
        EXAMPLES["chronus"][0].replace("159-", "soon-"), "chronus", 2, "expect_time_list='soon-189-229-289' is no list",
    ),
    "a pod ends before it starts": (
        EXAMPLES["openb"][0].replace(",427100,427065", ",427000,427065"), "openb", 2, "is before scheduled_time=427065",
    ),
    "JSON is cut off": ('{"0": \n{"mod', "deepshare", 2, "is not JSON at character 2"),
    "JSON holds a list": ("[]", "deepshare", None, "holds no JSON object"),
    "JSON is nested without end": ("[" * 100_000, "deepshare", None, "cannot be read"),
    "a JSON key stands twice": ('{"0": {}, "0": {}}', "deepshare", None, "'0' stands twice as a key"),
    "a JSON job is none": ('{"0": 1}', "deepshare", None, "0=1 describes no job"),
    "a JSON job has no model": ('{"0": {}}', "deepshare", None, "0.model is no name"),
    "a JSON number is text": ('{"0": {"model": "MoE", "gpu_demand": "2"}}', "deepshare", None, "gpu_demand='2' is not"),
    "a JSON number is not finite": (
        '{"0": {"model": "MoE", "gpu_demand": 2, "total_samples_to_train": NaN}}', "deepshare", None, "is not a",
    ),
    "a JSON count is none": (
        '{"0": {"model": "MoE", "gpu_demand": 2.5, "total_samples_to_train": 1}}', "deepshare", None, "is no count",
    ),
    "the tables lack the job": (
        '{"0": {"model": "MoE", "gpu_demand": 8, "total_samples_to_train": 1}}', "deepshare", None,
        "'MoE on 8 GPUs' is missing",
    ),
    "a line has too few tabs": ("A3C\t1\n", "gavel", 1, "has 2 values between tabs, and not 10"),
    "the throughputs lack the job": (
        EXAMPLES["gavel"][0].replace("MoE", "A3C"), "gavel", 1,
        "job_type='A3C (batch size 16)' has no throughput on 2 GPUs",
    ),
}  # fmt: skip


@pytest.mark.parametrize("content, format, line, said", BAD_FILES.values(), ids=BAD_FILES)
def test_a_trace_is_refused_when(content: str | bytes, format: str, line: int | None, said: str, folder: Path) -> None:
    path = folder / "bad"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(TraceError, match=re.escape(said)) as caught:
        list(read_trace(path, format))
    assert isinstance(caught.value, ValueError)
    assert caught.value.path == path and str(path) in str(caught.value)
    assert caught.value.line == line and (line is None or f"line {line}: " in str(caught.value))
    assert re.search(r": \S.*[.?]$", str(caught.value)), "the message ends with a remedy"


BAD_TABLES = {
    ("isolated_thp.csv", '"MoE,4",1\n'): "'MoE,4' is no key of the table",
    ("isolated_thp.csv", '"MoE,8,2",0\n'): "isol_thp='0' is zero",
    ("shared_thp_ratio.csv", '"DLRM,2,2",1,1\n'): "is missing in isolated_thp.csv",
    ("shared_thp_ratio.csv", '"MoE,4,4",1,x\n'): "MoE,4,2='x' is not a number",
    ("total_samples_trained.csv", "DLRM,1\n"): "has 2 values where the header names 3 columns",
}


@pytest.mark.parametrize("file, row", BAD_TABLES)
def test_a_bad_row_of_a_contention_table_is_named(file: str, row: str, folder: Path, tmp_path: Path) -> None:
    for good in (folder.parent / "jobs").iterdir():
        (tmp_path / good.name).write_bytes(good.read_bytes() + (row.encode() if good.name == file else b""))
    with pytest.raises(TraceError, match=re.escape(BAD_TABLES[file, row])) as caught:
        read_contention(tmp_path)
    assert caught.value.path.name == file and caught.value.line == len((tmp_path / file).read_text().splitlines())


def test_tables_that_are_missing_are_asked_for(tmp_path: Path) -> None:
    for format, name in (("deepshare", "isolated_thp.csv"), ("gavel", "simulation_throughputs.json")):
        path = tmp_path / "trace"
        path.write_text(EXAMPLES[format][0])
        with pytest.raises(TraceError, match=name):
            list(read_trace(path))


def test_an_unknown_format_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="format='csv' is not known: choose one of chronus, deepshare"):
        read_trace(tmp_path / "any", "csv")


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "job_id,duration,num_gpu\n", "[1]", "a\tb\n"])
def test_a_file_in_no_known_format_is_not_guessed(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(TraceError, match="name the format, one of chronus"):
        guess_format(path)


def test_a_missing_file_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(read_trace(tmp_path / "none"))


BAD_FIELDS = {
    "job_id": "", "submit_s": math.nan, "duration_s": -1.0, "gpus": -1, "batch_size": -1, "iterations": -1,
    "iteration_s": math.inf, "samples": -1.0, "cpus": -1.0, "stages_s": (1.0, -1.0), "deadline_s": math.inf,
    "gpu_share": 1.5,
}  # fmt: skip


@pytest.mark.parametrize("field, value", BAD_FIELDS.items(), ids=BAD_FIELDS)
def test_a_job_refuses_a_field_that_is_out_of_range(field: str, value: object) -> None:
    good: dict[str, object] = {"job_id": "a", "submit_s": 0.0, "duration_s": 1.0, "gpus": 1}
    with pytest.raises(ValueError, match=re.escape(f"{field}={value!r}")):
        TraceJob(**{**good, field: value})  # type: ignore[arg-type]


CELLS = st.sampled_from(
    ["", "0", "-1", "1e400", "nan", "x", "1;2", "2017-10-09", "9999-12-31T23:59+00:01", "7", "-", '"']
)


def _rows(format: str) -> st.SearchStrategy[bytes]:
    """A good header and good rows, but for a few of the values that could go wrong."""
    separator = "\t" if format == "gavel" else ","
    *header, good = EXAMPLES[format][0].splitlines()[:2]
    cells = good.split(separator)

    def row(changes: dict[int, str]) -> str:
        return separator.join(changes.get(index, cell) for index, cell in enumerate(cells))

    changes = st.dictionaries(st.integers(0, len(cells)), CELLS | st.text(max_size=3), max_size=2)
    rows = st.lists(changes.map(row), max_size=3)
    return rows.map(lambda found: "\n".join([*header, *found]).encode("utf-8", "surrogatepass"))


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.lists(st.none(), max_size=1)
FIELDS = st.fixed_dictionaries(
    {}, optional={"model": VALUES | st.just("MoE"), "gpu_demand": VALUES | st.just(2), "total_samples_to_train": VALUES}
)
DOCUMENTS = st.dictionaries(st.text(max_size=3), FIELDS | VALUES, max_size=3).map(
    lambda jobs: json.dumps(jobs).encode()
)


@pytest.mark.parametrize("format", FORMATS)
def test_whatever_a_file_holds_nothing_but_a_trace_error_comes_of_it(format: str, folder: Path) -> None:
    path = folder / "arbitrary"
    content = st.binary(max_size=200) | (DOCUMENTS if format == "deepshare" else _rows(format))

    @settings(max_examples=examples(0.5), deadline=None)
    @given(content, st.sampled_from([bytes, gzip.compress]))
    def is_read_or_refused(raw: bytes, pack: type[bytes]) -> None:
        path.write_bytes(pack(raw))
        for named in (format, None):
            try:
                jobs = list(read_trace(path, named))
            except TraceError:
                continue
            assert all(job.submit_s >= 0 and math.isfinite(job.duration_s) for job in jobs)

    is_read_or_refused()


@settings(max_examples=examples(0.6), deadline=None)
@given(
    st.binary(max_size=120), st.sampled_from(["isolated_thp.csv", "shared_thp_ratio.csv", "total_samples_trained.csv"])
)
def test_whatever_a_contention_table_holds_nothing_but_a_trace_error_comes_of_it(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes, file: str
) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / "isolated_thp.csv").write_text(writing.ISOLATED_CSV)
    (folder / "shared_thp_ratio.csv").write_text(writing.SHARED_CSV)
    (folder / "total_samples_trained.csv").write_text(writing.SAMPLES_CSV, encoding="utf-8")
    (folder / file).write_bytes(raw)
    try:
        read_contention(folder)
    except TraceError as error:
        assert error.path.name == file or file == "isolated_thp.csv"
