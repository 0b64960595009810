"""The JSON Schema of a run's YAML file, by which editors complete and check it.

A file names it in its first line: ``# yaml-language-server: $schema=…``.
"""

from __future__ import annotations

import re
from typing import Any

from agentlightning.train.description.fields import fields


def run_config_schema() -> dict[str, Any]:
    """Return the schema, in plain text: docstrings without the markup of Sphinx."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **fields().model.model_json_schema()}
    schema["required"] = ["agent", "backend"]
    found: dict[str, Any] = _plain(schema)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items() if key != "title"}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, str):
        return re.sub(r"\s+", " ", re.sub(r":\w+:`[.~]?([^`]*)`", r"`\1`", value)).replace("``", "`")
    return value
