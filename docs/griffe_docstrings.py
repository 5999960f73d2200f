"""What docstrings say in Sphinx's way, said in Markdown for mkdocstrings: ``:class:`.Store``` becomes ``Store``."""

from __future__ import annotations

import re
from typing import Any

from griffe import Class, DocstringSectionParameters, Extension, Object

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`[~.]?([^`]+)`")
_SKIPPED = re.compile(r"\s*# doctest: \+SKIP")
_EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)  # Griffe reads code below the plural only


class Markdown(Extension):
    """Changes docstrings before they are shown."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Only names are left of references, and nothing of what only doctest reads."""
        if obj.docstring is not None:
            text = _ROLE.sub(lambda match: f"`{match[1].rpartition('.')[2]}`", obj.docstring.value)
            obj.docstring.value = _EXAMPLE.sub(r"\1Examples:", _SKIPPED.sub("", text))

    def on_class(self, *, cls: Class, **_: Any) -> None:
        """Leave out defaults of pydantic's fields of which only the function is known that makes them: empty ones."""
        if cls.name in ("GpuSettings", "GpuVariables") and cls.docstring:
            for section in cls.docstring.parsed:
                for field in section.value if isinstance(section, DocstringSectionParameters) else ():
                    field.value = None if str(field.value).startswith("<") else field.value
