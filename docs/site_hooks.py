"""What the documentation site shows beside docs/: pages of the repository's root, and each file that a page links to.

In the repository, pages link to each other and to code as they lie there. Here the README is the first page, and every
other file outside docs/ that is linked to becomes a page below source/, so that each link leads somewhere without a
network. MkDocs calls the functions by their names (see ``hooks`` in mkdocs.yml).
"""

from __future__ import annotations

import json
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
TOP = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Pages of the root that have a place of their own in the site."""

_LINK = re.compile(r"(\]\()(?!\w+:|#)([^)#\s]+)(#[^)\s]*)?(\))")
_COMMANDS = re.compile("<!-- commands: .*?-->")
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_OUTPUTS = ("image/png", "text/html", "text/plain")  # the first of these that an output has is shown
_LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".sh": "bash", ".json": "json"}


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add a page for each file outside docs/ that is linked to, from the README on."""
    pages = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    todo, seen = [*TOP, *pages], set[str]()
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        if place_of(path) != path.removeprefix("docs/"):
            files.append(File.generated(config, place_of(path), content=_text_of(path)))
        if path.endswith(".md"):
            todo += [found for found in links_of(path, (ROOT / path).read_text()) if not found.startswith("docs/")]
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let the links of pages in docs/ lead to where things are in the site; write the commands in their place."""
    if page.file.generated_by:
        return markdown
    text = moved_links(markdown, f"docs/{page.file.src_uri}")
    return _COMMANDS.sub(lambda _: _commands(), text)


def place_of(path: str) -> str:
    """Where a file or folder of the repository is in the site.

    Args:
        path: As seen from the repository's root.

    Example:
        >>> place_of("README.md"), place_of("docs/tutorial.md"), place_of("flows/sweep.py"), place_of("SECURITY.md")
        ('index.md', 'tutorial.md', 'source/flows/sweep.py.md', 'source/SECURITY.md')
    """
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return TOP.get(path) or f"source/{path}" + ("" if path.endswith(".md") else ".md")


def links_of(path: str, text: str) -> list[str]:
    """The files and folders of the repository that a page links to, as seen from the root."""
    found = [_target(path, match[2]) for match in _LINK.finditer(_FENCE.sub("", text))]
    return [target for target in found if (ROOT / target).exists()]


def moved_links(text: str, path: str) -> str:
    """The page with its links as they must be in the site. What leads nowhere is left, for MkDocs to complain of."""
    here = posixpath.dirname(place_of(path))

    def moved(match: re.Match[str]) -> str:
        target = _target(path, match[2])
        if not (ROOT / target).exists():
            return match[0]
        place = posixpath.relpath(place_of(target), here or ".")
        return f"{match[1]}{place}{match[3] or ''}{match[4]}"

    parts, at = [], 0
    for fence in _FENCE.finditer(text):
        parts += [_LINK.sub(moved, text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, _LINK.sub(moved, text[at:])])


def _commands() -> str:
    """A section for each command, as Typer describes it. Its list of them is left out: it cuts their sentences."""
    asked = [sys.executable, "-m", "typer", "prefect_gpu.cli", "utils", "docs", "--name", "prefect-gpu"]
    said = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return said[said.index("## ") :]


def _target(path: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), unquote(link)))


def _text_of(path: str) -> str:
    """The page of a file outside docs/: Markdown as it is, code in a box, a folder as a list of its files."""
    file = ROOT / path
    if file.is_dir():
        names = sorted(one.name for one in file.iterdir() if one.is_file() and one.suffix in {*_LANGUAGES, ".md"})
        return "\n".join([f"# `{path}/`", "", *(f"- `{name}`" for name in names), ""])
    text = file.read_text()
    if file.suffix == ".md":
        return moved_links(text, path)
    if file.suffix == ".ipynb":
        return "\n\n".join(_cell(cell, path) for cell in json.loads(text)["cells"])
    hidden = "---\nsearch: { exclude: true }\n---\n\n"  # who searches wants pages, and would find code first
    return f"{hidden}# `{path}`\n\n``````{_LANGUAGES.get(file.suffix, 'text')}\n{text}\n``````\n"


def _cell(cell: dict[str, Any], path: str) -> str:
    """A cell of a notebook, and what it has put out."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return moved_links(source, path)
    shown = [f"```python\n{source}\n```"]
    for output in cell["outputs"]:
        data = output.get("data") or {"text/plain": output.get("text", "")}
        kind = next((kind for kind in _OUTPUTS if kind in data), None)
        text = "".join(data[kind]).strip() if kind else ""
        if kind == "image/png":
            shown.append(f"![](data:image/png;base64,{text})")
        elif kind == "text/html":
            shown.append(text)
        else:
            shown.append(f"```text\n{text}\n```")
    return "\n\n".join(shown)
