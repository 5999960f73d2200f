"""``prefect-gpu simulate`` as its users see it, on traces that fit on a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, InProcess
from tests.papers.elasticflow.small import write_deadlines, write_speeds
from tests.papers.pollux.small import write_tables, write_workload
from tests.papers.shockwave import small as shockwave

KEYS = [
    "jobs", "mean_jct_s", "p50_jct_s", "p90_jct_s", "p99_jct_s", "makespan_s", "mean_wait_s", "gpu_busy_fraction",
    "wall_s", "jobs_per_s", "decisions", "decision_p99_s",
]  # fmt: skip
# A long job takes the only node; a short one comes after it.
LONG_AND_SHORT = ["long,0,1000,2,bert", "short,10,100,2,bert"]


def write(path: Path, rows: list[str]) -> Path:
    path.write_text("\n".join(["job_id,submit_s,duration_s,num_gpu,model", *rows]) + "\n")
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "trace.csv", LONG_AND_SHORT)


def on(trace: Path, *more: str, nodes: int = 1, gpus: int = 2) -> list[str]:
    return ["simulate", "--trace", str(trace), "--nodes", str(nodes), "--gpus-per-node", str(gpus), *more]


def figures(run_cli: InProcess, trace: Path, *more: str) -> dict[str, float]:
    done = run_cli(*on(trace, "--json", *more))
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_json_has_exactly_these_figures(run_cli: InProcess, trace: Path) -> None:
    found = figures(run_cli, trace, "--profile", "fifo")
    assert list(found) == KEYS
    assert found["jobs"] == 2
    assert found["mean_jct_s"] == pytest.approx((1000 + 1090) / 2)
    assert found["makespan_s"] == pytest.approx(1100)
    assert found["mean_wait_s"] == pytest.approx(990 / 2)
    assert found["gpu_busy_fraction"] == pytest.approx(1.0)


def test_another_profile_gives_other_figures(run_cli: InProcess, trace: Path) -> None:
    assert figures(run_cli, trace, "--profile", "srtf")["mean_jct_s"] == pytest.approx((1100 + 100) / 2)


def test_a_restart_costs_what_is_said(run_cli: InProcess, trace: Path) -> None:
    found = figures(run_cli, trace, "--profile", "srtf", "--restart-cost", "30")
    assert found["mean_jct_s"] == pytest.approx((1130 + 100) / 2)


def test_without_knowledge_nobody_is_stopped_for_a_shorter_job(run_cli: InProcess, trace: Path) -> None:
    found = figures(run_cli, trace, "--profile", "srtf", "--knowledge", "none")
    assert found["mean_jct_s"] == pytest.approx((1000 + 1090) / 2)


def test_what_was_learned_counts_from_the_next_submission_on(run_cli: InProcess, tmp_path: Path) -> None:
    """One of each kind ends; of the next two, which come together, the kind that was short goes first."""
    rows = ["a,0,1000,2,slow", "b,0,10,2,quick", "c,5000,1000,2,slow", "d,5000,10,2,quick"]
    trace = write(tmp_path / "kinds.csv", rows)
    found = figures(run_cli, trace, "--profile", "sjf", "--knowledge", "learned")
    assert found["mean_jct_s"] == pytest.approx((1000 + 1010 + 10 + 1010) / 4)


def test_errors_of_exact_durations_depend_on_the_seed_alone(run_cli: InProcess, tmp_path: Path) -> None:
    trace = write(tmp_path / "many.csv", [f"j{n},0,{100 + n},2,bert" for n in range(20)])

    def mean(*more: str) -> float:
        return figures(run_cli, trace, "--profile", "sjf", *more)["mean_jct_s"]

    assert mean("--error", "1", "--seed", "1") == mean("--error", "1", "--seed", "1") > mean()
    assert mean("--error", "1", "--seed", "1") != mean("--error", "1", "--seed", "2")


def test_the_first_jobs_only(run_cli: InProcess, trace: Path) -> None:
    assert figures(run_cli, trace, "--profile", "fifo", "--limit", "1")["jobs"] == 1


def test_the_rules_of_muri(run_cli: InProcess, trace: Path) -> None:
    """At each decision a running job loses 10 s of progress, whatever it is."""
    found = figures(run_cli, trace, "--profile", "srtf", "--world", "muri")
    assert found["mean_jct_s"] == pytest.approx((1100 + 100) / 2, abs=30)


def test_jobs_that_never_fit_are_counted_and_named(run_cli: InProcess, tmp_path: Path) -> None:
    trace = write(tmp_path / "large.csv", [*LONG_AND_SHORT, *(f"huge{n},0,1,64,bert" for n in range(7))])
    done = run_cli(*on(trace, "--profile", "fifo", "--json"))
    assert done.exit_code == 0
    assert json.loads(done.stdout)["jobs"] == 2
    named = "huge0, huge1, huge2, huge3, huge4 and 2 more"
    assert f"Left out: 7 jobs that ask for more than the 2 devices of this cluster ({named})." in done.stderr


def test_jobs_without_a_gpu_are_counted_and_named(run_cli: InProcess, tmp_path: Path) -> None:
    path = tmp_path / "cpu.csv"
    path.write_text("job_id,submit_s,duration_s,num_gpu,cpus\na,0,10,1,2\nlight,0,10,0,4\n")
    done = run_cli(*on(path, "--profile", "fifo", "--json"))
    assert "Left out: 1 job that asks for no device (light)." in done.stderr
    assert json.loads(done.stdout)["jobs"] == 1


def test_the_table(run_cli: InProcess, trace: Path) -> None:
    done = run_cli(*on(trace, "--profile", "fifo"))
    assert done.exit_code == 0
    assert "trace.csv on 1 × 2 devices, profile fifo, durations exact" in done.stdout
    assert "17.4 min" in done.stdout and "1,045 s" in done.stdout
    assert "100.0%" in done.stdout


def test_the_picture(run_cli: InProcess, trace: Path, tmp_path: Path) -> None:
    for world in ("cluster", "muri"):
        picture = tmp_path / f"{world}.png"
        done = run_cli(*on(trace, "--profile", "srtf", "--world", world, "--plot", str(picture)))
        assert done.exit_code == 0, done.stderr
        assert f"Wrote {picture}." in done.stdout
        assert picture.read_bytes().startswith(b"\x89PNG")
    quiet = run_cli(*on(trace, "--profile", "srtf", "--plot", str(tmp_path / "quiet.png"), "--json"))
    assert list(json.loads(quiet.stdout)) == KEYS and (tmp_path / "quiet.png").exists()


def test_a_picture_without_matplotlib(cli: Cli, trace: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['matplotlib'] = None\n")
    repository = str(Path(__file__).parents[2])
    command = on(trace, "--profile", "fifo", "--plot", "x.png")
    done = cli(*command, PYTHONPATH=f"{tmp_path}:{repository}")
    assert done.returncode == 1
    assert "pip install 'prefect-gpu[plot]'" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (["--profile", "best"], 2, "profile='best' is not known: choose one of "),
        (["--knowledge", "all"], 2, "--knowledge all is none of exact, learned, none."),
        (
            ["--world", "mars"],
            2,
            "--world mars is not known: choose one of cluster, muri, pollux, shockwave, elasticflow, fgd.",
        ),
        (["--world", "muri", "--restart-cost", "5"], 2, "--restart-cost 5 does not belong into --world muri"),
        (["--sharing"], 2, "--sharing needs --world muri"),
        (["--world", "pollux"], 2, "--world pollux needs --tables DIR: name the folder"),
        (["--tables", "x"], 2, "--tables x does not belong into --world cluster: leave it out."),
        (["--world", "pollux", "--tables", "x", "--error", "1"], 2, "--error 1 does not belong into --world pollux"),
        (["--world", "shockwave"], 2, "--world shockwave needs --tables DIR: name the folder"),
        (["--world", "shockwave", "--tables", "x", "--knowledge", "none"], 2, "--knowledge none does not belong into"),
        (["--world", "shockwave", "--tables", "x"], 2, "has 1 columns"),
        (["--world", "elasticflow"], 2, "--world elasticflow needs --tables DIR: name the folder"),
        (["--world", "elasticflow", "--tables", "x", "--knowledge", "none"], 2, "does not belong into --world elastic"),
        (["--world", "elasticflow", "--sharing", "--tables", "x"], 2, "--sharing needs --world muri"),
        (["--restart-cost", "nan"], 2, "--restart-cost"),
        (["--knowledge", "none", "--error", "0.1"], 2, "--error 0.1 needs --knowledge exact, not none"),
        (["--error", "inf"], 2, "--error inf is negative or not finite"),
        (["--format", "xls"], 2, "format='xls' is not known: choose one of chronus, "),
        (["--format", "muri"], 2, "num_gpu"),
        (["--nodes", "0"], 2, "--nodes"),
        (["--plot", "/no/such/folder/x.png"], 2, "/no/such/folder is no folder. Create it first."),
        (["--plot", "x.jpg"], 2, "give a name that ends in .png"),
    ],
)
def test_wrong_options_are_named_with_what_to_do(
    run_cli: InProcess, trace: Path, more: list[str], code: int, words: str
) -> None:
    done = run_cli(*on(trace, "--profile", "fifo", *more))
    assert done.exit_code == code
    assert words in " ".join(done.stderr.split()) or words in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["a,0,100,2,bert", "b,0,100,two,bert"], "line 3: num_gpu='two' is not a number: write plain digits"),
        (["a,0,100,2,bert", "b,0,100"], "line 3: 'b,0,100' has 3 values where the header names 5 columns"),
        (["a,0,-5,2,bert"], "line 2: duration_s='-5' is negative: give a number of at least 0."),
        (
            ["a,0,5,2,bert", "a,0,5,2,bert"],
            "line 3: job_id='a' stands in line 2 too: give every job a name of its own.",
        ),
    ],
)
def test_a_bad_row_is_named_by_its_line(run_cli: InProcess, tmp_path: Path, rows: list[str], words: str) -> None:
    trace = write(tmp_path / "bad.csv", rows)
    done = run_cli(*on(trace, "--profile", "fifo", "--json"))
    assert done.exit_code == 2
    assert f"{trace}, {words}" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("world", ["cluster", "muri"])
def test_a_policy_that_fails_is_named_with_its_place(run_cli: InProcess, trace: Path, breaks: str, world: str) -> None:
    done = run_cli(*on(trace, "--profile", "breaks", "--world", world))
    assert done.exit_code == 1 and breaks in done.stderr


def test_a_trace_that_is_not_there(run_cli: InProcess, tmp_path: Path) -> None:
    done = run_cli(*on(tmp_path / "none.csv", "--profile", "fifo"))
    assert done.exit_code == 2 and "none.csv does not exist. Name the file of a trace." in done.stderr
    done = run_cli(*on(tmp_path, "--profile", "fifo"))
    assert done.exit_code == 2 and "cannot be read: Is a directory" in done.stderr


def test_a_cluster_on_which_nothing_fits(run_cli: InProcess, trace: Path) -> None:
    done = run_cli(*on(trace, "--profile", "fifo", gpus=1))
    assert done.exit_code == 1
    assert "Left out: 2 jobs" in done.stderr and "no job of it can run on this cluster" in done.stderr


def test_as_a_stranger_would_call_it(cli: Cli, trace: Path) -> None:
    done = cli(*on(trace, "--json"))
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)) == KEYS


def with_stages(path: Path, stages: str) -> Path:
    rows = [f"{name},0,100,2,bert,10,{stages}" for name in "ab"]
    path.write_text("\n".join(["job_id,submit_s,duration_s,num_gpu,model,iterations,stages_s", *rows]) + "\n")
    return path


def test_jobs_share_whose_stages_alone_are_known(run_cli: InProcess, tmp_path: Path) -> None:
    """The time of an iteration is the sum of its stages where the trace does not say it."""
    trace = with_stages(tmp_path / "stages.csv", "1;1;1")
    assert figures(run_cli, trace, "--world", "muri", "--sharing", "--profile", "adaptive")["jobs"] == 2


@pytest.mark.parametrize("stages", ["", "1;2", "0;0;0"])
def test_jobs_share_only_with_stages(run_cli: InProcess, tmp_path: Path, stages: str) -> None:
    trace = with_stages(tmp_path / "stages.csv", stages)
    done = run_cli(*on(trace, "--world", "muri", "--sharing"))
    assert done.exit_code == 2
    assert "Error: --sharing: job a has stages_s=" in done.stderr
    assert "give the seconds of its three stages, as traces of the format muri do." in done.stderr


def elastic(run_cli: InProcess, folder: Path, *more: str, model: str = "tiny", gpus: int = 4) -> tuple[int, str, str]:
    """Two jobs in the world of Pollux' simulator: exit code, output, errors."""
    workload = write_workload(folder / "workload.csv", f"a,0,{model},1,10", f"b,5,{model},2,20")
    tables = write_tables(folder / "tables")
    world = ("--world", "pollux", "--tables", str(tables))
    done = run_cli(*on(workload, "--json", *world, *more, nodes=2, gpus=gpus))
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize(
    "more", [["--profile", "tiresias"], ["--profile", "optimus"], [], ["--knowledge", "learned"]], ids=" ".join
)
def test_pollux_world_runs_a_workload(run_cli: InProcess, tmp_path: Path, more: list[str]) -> None:
    code, output, errors = elastic(run_cli, tmp_path, *more)
    assert code == 0, errors
    found = json.loads(output)
    assert list(found) == KEYS
    assert found["jobs"] == 2


def test_a_job_in_polluxs_world_takes_what_its_tables_say(run_cli: InProcess, tmp_path: Path) -> None:
    """One GPU: 60 s until the first decision, 30 s of restart and 60 s of steps; two: 48 s and 5 s later."""
    found = json.loads(elastic(run_cli, tmp_path, "--profile", "tiresias")[1])
    assert found["mean_jct_s"] == pytest.approx((150 + (60 + 30 + 3 * 15 - 5)) / 2)


@pytest.mark.parametrize(
    ("more", "model", "gpus", "words"),
    [
        (["--profile", "srtf"], "tiny", 4, "profile='srtf' with --knowledge exact is not known in --world pollux"),
        (["--knowledge", "none"], "tiny", 4, "choose one of adaptive, tiresias, optimus, and exact or learned."),
        ([], "tiny", 8, "--gpus-per-node 8 was not measured in --world pollux: give 4."),
        ([], "huge", 4, "has none of the model 'huge': it has tiny."),
    ],
)
def test_what_polluxs_world_does_not_know_is_named(
    run_cli: InProcess, tmp_path: Path, more: list[str], model: str, gpus: int, words: str
) -> None:
    code, _, errors = elastic(run_cli, tmp_path, *more, model=model, gpus=gpus)
    assert code == 2
    assert words in " ".join(errors.split())


def in_shockwaves_world(run_cli: InProcess, tmp_path: Path, *more: str) -> tuple[int, str, str]:
    """Two jobs of 400 and 100 s on one GPU."""
    tables = shockwave.write_tables(tmp_path / "tables", [400, 100])
    trace = shockwave.write_trace(tmp_path / "jobs.trace", shockwave.plain(0, 400), shockwave.plain(0, 100))
    done = run_cli(*on(trace, "--world", "shockwave", "--tables", str(tables), *more, gpus=1))
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize("profile", ["adaptive", "srtf"])
def test_shockwaves_world_says_how_fair_a_policy_was(run_cli: InProcess, tmp_path: Path, profile: str) -> None:
    """The short one first; the long one then loses 20 s, once."""
    code, output, errors = in_shockwaves_world(run_cli, tmp_path, "--profile", profile, "--json")
    assert code == 0, errors
    found = json.loads(output)
    assert list(found) == [*KEYS, "worst_fairness", "unfair_fraction"]
    assert found["mean_jct_s"] == (100 + 520) / 2
    assert found["worst_fairness"] == 520 / (400 * 2)


def test_a_published_schedule_is_replayed_as_far_as_it_goes(run_cli: InProcess, tmp_path: Path) -> None:
    """It has four rounds for the first job, and none for the second."""
    code, output, errors = in_shockwaves_world(run_cli, tmp_path, "--profile", "ours", "--json")
    assert json.loads(output)["mean_jct_s"] == 400
    assert code == 1
    assert "1 job never ended under profile='ours' (1)" in " ".join(errors.split())


def test_shockwaves_figures_are_shown_with_their_names(run_cli: InProcess, tmp_path: Path) -> None:
    _, output, _ = in_shockwaves_world(run_cli, tmp_path)
    assert "Finish-time fairness, worst" in output
    assert "0.65" in output


def test_what_shockwaves_world_does_not_know_is_named(run_cli: InProcess, tmp_path: Path) -> None:
    code, _, errors = in_shockwaves_world(run_cli, tmp_path, "--profile", "fifo")
    assert code == 2
    words = "profile='fifo' is not known in --world shockwave: choose one of adaptive, srtf, ours."
    assert words in " ".join(errors.split())


def in_elasticflows_world(run_cli: InProcess, tmp_path: Path, *more: str, gpus: int = 4) -> tuple[int, str, str]:
    """Two of these jobs are in time on two GPUs each, or one on four; the third would need 200 s, and has 50."""
    tables = write_speeds(tmp_path / "speeds")
    jobs = [("a", 0.0, 324, 212.0), ("b", 0.0, 324, 212.0), ("c", 0.0, 600, 50.0)]
    trace = write_deadlines(tmp_path / "trace.csv", *jobs)
    done = run_cli(*on(trace, "--world", "elasticflow", "--tables", str(tables), *more, gpus=gpus))
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize(("profile", "satisfied", "refused", "late"), [("adaptive", 2, 1, 0), ("edf", 0, 0, 3)])
def test_elasticflows_world_says_how_many_deadlines_were_met(
    run_cli: InProcess, tmp_path: Path, profile: str, satisfied: int, refused: int, late: int
) -> None:
    """EDF begins with the one that cannot be in time. Who was refused has not ended, and that is no failure."""
    code, output, errors = in_elasticflows_world(run_cli, tmp_path, "--profile", profile, "--json")
    assert code == 0, errors
    found = json.loads(output)
    assert list(found) == [*KEYS, "satisfied_fraction", "attainable_fraction", "refused", "late"]
    assert found["jobs"] == 3 - refused
    assert [found["satisfied_fraction"], found["attainable_fraction"]] == [satisfied / 3, 2 / 3]
    assert [found["refused"], found["late"]] == [refused, late]


def test_elasticflows_figures_are_shown_with_their_names_and_drawn(run_cli: InProcess, tmp_path: Path) -> None:
    code, output, errors = in_elasticflows_world(run_cli, tmp_path, "--plot", str(tmp_path / "result.png"))
    assert code == 0, errors
    assert "Ended by their deadlines" in output and "66.7%" in output
    assert (tmp_path / "result.png").stat().st_size > 10_000


def test_what_elasticflows_world_does_not_know_is_named(run_cli: InProcess, tmp_path: Path) -> None:
    code, _, errors = in_elasticflows_world(run_cli, tmp_path, "--profile", "fifo")
    assert code == 2
    words = "profile='fifo' is not known in --world elasticflow: choose one of adaptive, edf."
    assert words in " ".join(errors.split())


def test_a_table_of_pollux_that_cannot_be_read_is_named(run_cli: InProcess, tmp_path: Path) -> None:
    workload = write_workload(tmp_path / "workload.csv", "a,0,tiny,1,10")
    tables = write_tables(tmp_path / "tables")
    run = on(workload, "--world", "pollux", "--tables", str(tables), nodes=2, gpus=4)
    (tables / "tiny" / "scalability.csv").write_text("num_nodes,num_replicas\n1,2,3\n")
    done = run_cli(*run)
    assert done.exit_code == 2 and "tiny/scalability.csv is no table of num_nodes, num_replicas, local" in done.stderr
    (tables / "tiny" / "scalability.csv").unlink()
    done = run_cli(*run)
    assert done.exit_code == 2 and "tiny/scalability.csv cannot be read: No such file or directory." in done.stderr


def test_a_row_of_a_pollux_workload_is_named_by_its_line(run_cli: InProcess, tmp_path: Path) -> None:
    workload = write_workload(tmp_path / "workload.csv", "a,0,tiny,1,10", "b,0,tiny")
    done = run_cli(*on(workload, "--world", "pollux", "--tables", str(tmp_path), nodes=2, gpus=4))
    assert done.exit_code == 2 and "line 3: 'b,0,tiny' has 3 values where the header names 5 columns" in done.stderr


def test_a_file_in_place_of_a_folder_of_tables(run_cli: InProcess, tmp_path: Path) -> None:
    trace = shockwave.write_trace(tmp_path / "jobs.trace", shockwave.plain(0, 400))
    done = run_cli(*on(trace, "--world", "shockwave", "--tables", str(trace)))
    assert done.exit_code == 2 and "v100_throughputs.json cannot be read: Not a directory." in done.stderr


def test_a_published_schedule_needs_the_cluster_that_it_was_made_for(run_cli: InProcess, tmp_path: Path) -> None:
    tables = shockwave.write_tables(tmp_path / "tables", [400, 400])
    (tables / "published.json").write_text(json.dumps({"Ours": {"schedule_by_round": [[0, 1]]}}))
    trace = shockwave.write_trace(tmp_path / "jobs.trace", shockwave.plain(0, 400, 2), shockwave.plain(0, 400, 2))
    done = run_cli(*on(trace, "--world", "shockwave", "--tables", str(tables), "--profile", "ours"))
    assert done.exit_code == 2
    assert "the schedule hands out 4 GPUs at a time, and there are 2: replay it on a cluster as large" in done.stderr
