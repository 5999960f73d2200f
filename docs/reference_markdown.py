"""Docstrings, signatures and dataclasses as Markdown, for ``docs/build_reference.py``."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterable
from typing import Any

_SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises", "Example")
_ROLE = re.compile(r":(?:class|meth|func|mod|attr):`~?([^`]+)`")


def prose(docstring: str | None) -> str:
    """A Google-style docstring as Markdown."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    out: list[str] = []
    section: str | None = None
    body: list[str] = []

    def flush() -> None:
        if section is not None:
            out.extend(_section(section, textwrap.dedent("\n".join(body)).strip("\n")))
            body.clear()

    for line in lines:
        head = line.rstrip(":")
        if line.endswith(":") and head in _SECTIONS:
            flush()
            section = head
        elif section is not None and line and not line.startswith(" "):
            flush()
            section = None
            out.append(line)
        elif section is not None:
            body.append(line)
        else:
            out.append(line)
    flush()
    text = _ROLE.sub(lambda match: f"`{match[1].rpartition('.')[2]}`", "\n".join(out))
    return _literal_blocks(re.sub(r"(?<!`)``([^`]+)``(?!`)", r"`\1`", text)).strip()


def _section(name: str, body: str) -> list[str]:
    if name == "Example":
        if body.startswith("```"):
            return ["", body, ""]
        plain = re.sub(r"\s*# doctest: \+SKIP", "", body)
        return ["", "```pycon" if plain.startswith(">>>") else "```python", plain, "```", ""]
    listed = entries(body)
    if name in ("Returns", "Yields") or not all(": " in entry for entry in listed):
        return ["", f"*{name}:* " + " ".join(body.split()), ""]
    lines = []
    for entry in listed:
        term, _, words = entry.partition(": ")
        lines.append(f"- `{term.lstrip('*')}`: {words}")
    return ["", f"*{name}:*", "", *lines, ""]


def entries(body: str) -> list[str]:
    """What a section lists: one line for each, whatever the docstring's lines are."""
    found: list[str] = []
    for line in body.splitlines():
        if line.startswith(" ") and found:
            found[-1] += " " + line.strip()
        elif line.strip():
            found.append(line.strip())
    return found


def _literal_blocks(text: str) -> str:
    """What follows ``::`` and is indented is code."""
    out: list[str] = []
    inside = False
    for line in text.splitlines():
        if inside and line and not line.startswith(" "):
            while out[-1] == "":
                out.pop()
            out += ["```", ""]
            inside = False
        if not inside and line.endswith("::"):
            out += [line[:-1], "", "```text"]
            inside = True
            continue
        if inside and out[-1] == "```text" and not line:
            continue
        out.append(line[4:] if inside and line.startswith("    ") else line)
    return "\n".join([*out, "```"] if inside else out)


def signature(target: Any, name: str) -> str:
    """A call as code, one argument per line if it is long. Written from the source, so that it reads as there."""
    function = target.__init__ if inspect.isclass(target) else target
    source = textwrap.dedent(inspect.getsource(function))
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    arguments = node.args
    for group in (arguments.posonlyargs, arguments.args):
        if group and group[0].arg in ("self", "cls"):
            del group[0]
    parts = _arguments(arguments)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None and not inspect.isclass(target) else ""
    start = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    line = f"{start}{name}({', '.join(parts)}){returns}"
    if len(line) <= 100:
        return line
    return f"{start}{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returns}"


def _arguments(arguments: ast.arguments) -> list[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    defaults += arguments.defaults
    parts = [_argument(one, default) for one, default in zip(positional, defaults, strict=True)]
    if arguments.vararg:
        parts.append("*" + _argument(arguments.vararg, None))
    elif arguments.kwonlyargs:
        parts.append("*")
    parts += [_argument(one, value) for one, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    if arguments.kwarg:
        parts.append("**" + _argument(arguments.kwarg, None))
    return parts


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    text = argument.arg + (f": {ast.unparse(argument.annotation)}" if argument.annotation else "")
    if default is None:
        return text
    return f"{text}{' = ' if argument.annotation else '='}{ast.unparse(default)}"


def document(target: Any, name: str | None = None, *, level: int = 2, members: Iterable[str] = ()) -> str:
    """A class or function: its call, its docstring, and those of its members that are named."""
    name = name or target.__name__
    parts = [f"{'#' * level} `{name}`", ""]
    own_init = not inspect.isclass(target) or "__init__" in vars(target)
    if own_init and not dataclasses.is_dataclass(target):
        parts += ["```python", signature(target, name), "```", ""]
    parts.append(prose(target.__doc__))
    for member in members:
        found = inspect.getattr_static(target, member)
        if isinstance(found, property):
            parts += ["", f"{'#' * (level + 1)} `.{member}`", "", prose(found.fget.__doc__ if found.fget else "")]
        else:
            function = inspect.unwrap(getattr(target, member))
            parts += ["", f"{'#' * (level + 1)} `.{member}`", "", "```python", signature(function, f".{member}"), "```"]
            parts += ["", prose(function.__doc__)]
    return "\n".join(parts)


def fields_table(cls: Any) -> str:
    """The fields of a dataclass with their types and defaults."""
    rows = ["| field | type | default |", "|---|---|---|"]
    for item in dataclasses.fields(cls):
        default = ""
        if item.default is not dataclasses.MISSING:
            default = f"`{item.default!r}`"
        elif item.default_factory is not dataclasses.MISSING:
            # An object's address is another one each time.
            made = re.sub(r"<[\w.]*?(\w+) object at 0x\w+>", r"\1()", repr(item.default_factory()))
            default = f"`{made}`"
        rows.append(f"| `{item.name}` | `{cell(str(item.type))}` | {default} |")
    return "\n".join(rows)


def cell(text: str) -> str:
    """Text that may stand in a table."""
    return " ".join(text.split()).replace("|", "\\|")


def page(title: str, introduction: str, *parts: str) -> str:
    """A page with its title and what it consists of."""
    note = "<!-- Made by docs/build_reference.py from the code. Change the code, not this page. -->"
    text = "\n\n".join([note, f"# {title}", introduction, *parts])
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"
