"""Tables of speeds and traces that fit on a page."""

from __future__ import annotations

from pathlib import Path

COLUMNS = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration"


def write_speeds(folder: Path) -> Path:
    """One model: an iteration a second on one GPU, nearly twice that on two, three times on four, no more on eight."""
    folder.mkdir()
    (folder / "tiny.csv").write_text("global_batch_size,1,2,4,8\n8,1,1.8,3,3\n")
    return folder


def write_deadlines(path: Path, *jobs: tuple[str, float, int, float]) -> Path:
    """Name, submission, iterations and deadline of each job."""
    rows = [f"{name},{at},{work},tiny,{deadline},8,1,{work}" for name, at, work, deadline in jobs]
    path.write_text("\n".join([COLUMNS, *rows]) + "\n")
    return path
