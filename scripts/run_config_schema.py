"""Prints the JSON Schema of a run's YAML file, for editors; ``make schema`` writes it to docs/.

A file names it in its first line: ``# yaml-language-server: $schema=…/run_config.schema.json``.
"""

from __future__ import annotations

import json

from agentlightning.train.description.config_schema import run_config_schema


def schema_text() -> str:
    """The text of ``docs/run_config.schema.json``."""
    return json.dumps(run_config_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")
