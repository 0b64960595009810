"""Options that several commands have, the configuration that they name, and the last line of a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from agentlightning.redaction import say
from agentlightning.train.config import RunConfig
from agentlightning.train.run_file import load_config, read_overrides

JsonObject: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Config: TypeAlias = Annotated[Path, typer.Option("--config", "-c", help="The run's YAML file.")]
Sets: TypeAlias = Annotated[
    list[str] | None, typer.Option("--set", help="key=value, e.g. training.batch_size=4.")
]
AlwaysJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="As always: stdout is one JSON object, all else is on stderr.")
]


def read(config: Path, sets: list[str] | None, **direct: Any) -> RunConfig:
    """Return the configuration with ``--set key=value`` and the ``direct`` options applied, which win.

    The name of a direct option is its key with ``__`` in place of the dot; ``None``: the option is not given.
    """
    overrides = read_overrides(sets)
    overrides.update({key.replace("__", "."): value for key, value in direct.items() if value is not None})
    return load_config(config, overrides)


def last_line(result: dict[str, Any]) -> None:
    """Print the result as one JSON object, alone on the last line of stdout."""
    say(json.dumps(result))
