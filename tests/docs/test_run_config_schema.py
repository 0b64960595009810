"""The published JSON Schema of a run's file is current, and the files of the checkout keep it."""

from __future__ import annotations

import json
import os
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentlightning.train.config import fields
from agentlightning.train.run_file import read_yaml

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "run_config_schema.py"))
SCHEMA, KEYWORDS, run_config_schema = SCRIPT["SCHEMA"], SCRIPT["KEYWORDS"], SCRIPT["run_config_schema"]
FILES = sorted(
    path
    for folder in ("examples", "tests/drills")
    for path in (ROOT / folder).rglob("*.yaml")
    if re.search(r"^backend:", path.read_text(), re.MULTILINE)
)


def test_the_published_schema_is_current() -> None:
    assert SCHEMA.read_text() == SCRIPT["schema_text"](), "make schema"


def test_the_keywords_of_the_trainer_are_current() -> None:
    assert KEYWORDS.read_text() == SCRIPT["keywords_text"](), "make schema"


@pytest.mark.slow
def test_every_field_is_described() -> None:
    schema = run_config_schema()
    model, sections, *_ = fields()
    for kind in (*sections.values(), model):
        properties = (
            schema["$defs"][kind.__name__]["properties"] if kind is not model else schema["properties"]
        )
        assert {*properties} == {*kind.model_fields}
        silent = [name for name, field in properties.items() if not field.get("description")]
        assert [name for name in silent if name not in sections] == []


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_name_the_schema_and_keep_it(file: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    text = file.read_text()
    line = f"# yaml-language-server: $schema={os.path.relpath(SCHEMA, file.parent)}"
    assert text.splitlines()[0] == line
    jsonschema.validate(read_yaml(text), json.loads(SCHEMA.read_text()))


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("agent: {target: a}", "'backend' is a required property"),
        ("agent: {target: a, concurency: 1}\nbackend: {policy: p}", "concurency"),
        ("agent: {target: a}\nbackend: {policy: p}\ntraining: {steps: -1}", "-1 is less than the minimum"),
        ("agent: {target: a}\nbackend: {policy: {w: {pth: p}}}", "pth"),
        ("agent: {target: a}\nbackend: {policy: p}\ntraining: {failure: {tired: 0}}", "tired"),
    ],
)
def test_an_editor_marks_what_loading_refuses(text: str, wrong: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    data: Any = yaml.safe_load(text)
    with pytest.raises(jsonschema.ValidationError, match=wrong):
        jsonschema.validate(data, run_config_schema())


def test_files_are_found() -> None:
    assert len(FILES) >= 9
