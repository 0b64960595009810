"""Prints the JSON Schema of a run's YAML file, for editors; ``make schema`` writes it to docs/.

A file names it in its first line: ``# yaml-language-server: $schema=…/run_config.schema.json``.
"""

from __future__ import annotations

import json
import re
from typing import Any

from agentlightning.train.run_config import RunConfig


def run_config_schema() -> dict[str, Any]:
    """The schema, in plain text: docstrings without the markup of Sphinx."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **RunConfig.model_json_schema()}
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


def schema_text() -> str:
    """The text of ``docs/run_config.schema.json``."""
    return json.dumps(run_config_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")
