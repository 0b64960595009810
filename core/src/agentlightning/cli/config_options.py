"""What ``train`` and ``eval`` share: ``--config`` with ``--set``, and the last line, for machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentlightning.train.run_config import RunConfig
from agentlightning.train.run_file import load_config, read_overrides


def read(config: Path, sets: list[str] | None, **direct: Any) -> RunConfig:
    """The configuration with ``--set key=value`` and the direct options applied (YAML values)."""
    overrides = read_overrides(sets)
    overrides.update({key.replace("__", "."): value for key, value in direct.items() if value is not None})
    return load_config(config, overrides)


def last_line(result: dict[str, Any]) -> None:
    """Print the result as one JSON object, alone on the last line of stdout."""
    print(json.dumps(result), flush=True)
