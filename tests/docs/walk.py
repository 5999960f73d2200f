"""Not run by `make test-all`, as it does not get to its end: the README starts a server of its own, and what the pages
after it need is not there. By hand: ``python -m pytest tests/docs/walk.py``.

The commands of all pages, carried out one after the other, as somebody would who reads from the tutorial on.

There is one home, so what the tutorial trained is in the history when another page shows it. The pages come in the
order of the site, the README and the tutorial first. Where a page shows what a command prints, at least one of these
lines is printed, but for its numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from prefect_gpu.lab.sandbox import SandboxError
from tests.components import traces_folder
from tests.docs.pages import COMMANDS, PAGES, ROOT, blocks, commands, name
from tests.docs.terminal import Terminal

pytestmark = [pytest.mark.full, pytest.mark.needs("openssl", "traces"), pytest.mark.timeout(3600)]

FIRST = ["README.md", "docs/tutorial.md"]  # each starts a server of its own; the later pages need that of the last one
LAST = "docs/how-to/learning.md"  # it deletes runs from the history
TRACES = {
    "trace1.csv": "Rivendile-Muri/trace-data/trace1.csv",
    "trace3.csv": "Rivendile-Muri/trace-data/trace3.csv",
    "workload-1.csv": "petuum-adaptdl/workloads-1.0/workload-1.csv",
    "pollux_traces": "pkusys-ElasticFlow/pollux_traces",
    "120_jobs.trace": "uw-mad-dash-shockwave/120_jobs.trace",
    "shockwave": "uw-mad-dash-shockwave",
    "cluster01.csv": "microsoft-elasticflow-traces/elasticflow/cluster01.csv",
    "throughputs_A100": "pkusys-ElasticFlow/throughputs_A100",
    "openb_pod_list_default.csv": "hkust-adsl-kss/openb_pod_list_default.csv",
    "kss": "hkust-adsl-kss",
}
"""Where the published traces are that pages name."""
TRACE = "job_id,submit_s,duration_s,num_gpu,model\na,0,1000,2,bert\nb,10,100,2,vgg16\nc,20,400,8,bert\n"


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    with closing(Terminal(tmp_path)) as opened:
        (opened.checkout / "trace.csv").write_text(TRACE)
        for at, path in TRACES.items():
            (opened.checkout / at).symlink_to(traces_folder() / path)
        yield opened


def pages() -> list[Path]:
    """Those with commands or files to save, in their order."""
    site = (ROOT / "mkdocs.yml").read_text()
    order = [*FIRST, *(f"docs/{one}" for one in re.findall(r"- ([\w/-]+\.md)", site))]
    some = [page for page in PAGES if any(one.language in COMMANDS for one in blocks(page))]
    order.remove(LAST)
    return sorted(some, key=lambda page: order.index(name(page)) if name(page) in order else len(order))


def test_every_command_works(terminal: Terminal) -> None:
    wrong = []
    for page in pages():
        for said in walk(page, terminal):
            print(f"WRONG {said}", flush=True)
            wrong.append(said)
    assert not wrong, "\n\n".join(wrong)


def walk(page: Path, terminal: Terminal) -> Iterator[str]:
    """Do what a page says; what goes wrong."""
    terminal.new_shell()
    if name(page) in FIRST:
        terminal.new_database()
    for block in blocks(page):
        terminal.type(f"cd {terminal.checkout}")
        if block.saved_as and block.language == "python":
            (terminal.checkout / block.saved_as).write_text(block.text)
        for command in commands(block) if block.language in COMMANDS else ():
            if block.reason_of(command.text) is None:
                print(f"{block.where}: {command.text}", flush=True)  # of the last one, if it hangs
                try:
                    said = terminal.type(command.text)
                except SandboxError as error:
                    yield f"{block.where}: {command.text}\n{error}"
                    continue
                if command.shown and not _alike(command.shown, said):
                    yield f"{block.where}: {command.text}\nprints nothing of what the page shows, but\n{said[-2500:]}"
    if any(command.text.startswith("prefect-gpu up") for block in blocks(page) for command in commands(block)):
        terminal.type("prefect-gpu down")  # whoever reads on has one worker, the tutorial's
    if name(page) == FIRST[-1]:
        terminal.type(f"cd {terminal.checkout}; python train.py")  # once more: now there are runs that were estimated


def _alike(shown: list[str], said: str) -> bool:
    return bool(
        {_without_numbers(line) for line in shown if line} & {_without_numbers(one) for one in said.splitlines()}
    )


def _without_numbers(line: str) -> str:
    return " ".join(re.sub(r"-?\d[\d.,e+-]*", "#", line).split())
