"""Writes what editors know of a run's fields (``make schema``), which are declared in their sections alone:
docs/run_config.schema.json, by which they check a YAML file, and the keywords of ``Trainer`` for type
checkers.

A file names the schema in its first line: ``# yaml-language-server: $schema=…/run_config.schema.json``.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from agentlightning.train.config import fields
from agl_examples.init import run_config_schema

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = ROOT / "docs" / "run_config.schema.json"
KEYWORDS = ROOT / "core" / "src" / "agentlightning" / "train" / "keywords.pyi"
FILE_ONLY = ("algorithm", "target", "train", "val", "pythonpath")
"""No keywords of ``Trainer``: the algorithm stands by itself, ``fit`` takes agent and tasks."""
HEAD = '''# Written by `make schema` from the sections of a run.
"""Keywords of ``Trainer``, for type checkers: the fields of a run, those of the suite's plugins included."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

class RunFields(TypedDict, total=False):
'''


def schema_text() -> str:
    """The text of ``docs/run_config.schema.json``."""
    return json.dumps(run_config_schema(), indent=2, ensure_ascii=False) + "\n"


def keywords_text() -> str:
    """The text of ``agentlightning/train/keywords.pyi``."""
    known = fields()
    lines = []
    for name, section in known.section_of.items():
        if name not in FILE_ONLY and name not in known.of_agent:
            model = known.model if section is None else known.sections[section]
            lines.append(f"    {name}: {type_of(model.model_fields[name])}\n")
    return HEAD + "".join(lines)


def type_of(field: FieldInfo) -> str:
    """The type of a keyword. What a validator reads may have any form; ``None`` stands for a default."""
    if any(isinstance(one, BeforeValidator) for one in field.metadata):
        return "Any"
    return _written(field.annotation)


def _written(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if kind in (str, int, float, bool, Path):
        return str(kind.__name__)
    if kind is NoneType:
        return "None"
    if origin is Literal:
        return f"Literal[{', '.join(map(json.dumps, inner))}]"
    if origin in (Union, UnionType):
        parts = [_written(one) for one in inner]
        return "Any" if "Any" in parts else " | ".join(dict.fromkeys(parts))
    if origin is dict:
        return "Mapping[str, Any] | None"
    return "Any"


if __name__ == "__main__":
    for file, text in ((SCHEMA, schema_text()), (KEYWORDS, keywords_text())):
        file.write_text(text, encoding="utf-8")
