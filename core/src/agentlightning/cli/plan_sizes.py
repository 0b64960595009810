"""The sizes that a run's file states, for a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentlightning.cli.config_options import read
from agentlightning.train.description.early_keys import GROUP_SIZE
from agentlightning.train.description.run_config import RunConfig
from agentlightning.types.base import ConfigError

_OPTIONS = {
    "ranks": "gpus",
    "tensor_parallel": "engine_gpus",
    "micro_batch_tokens": "micro_tokens",
    "sequence_parallel": "sequence_parallel",
    "max_len": "tokens",
}
"""Option of a driver → size."""


def sizes_of(file: Path, sets: list[str] | None) -> tuple[dict[str, Any], list[str]]:
    """Return the sizes and the assumptions that a run's file states; what it leaves out is missing.

    The length of a conversation is the longest that driver or gateway allow.
    """
    config = read(file, sets)
    options = config.backend.options
    group = int(config.training.recipe.get("group_size", GROUP_SIZE))
    found: dict[str, Any] = {"rollouts": config.training.batch_size * group, "group": group}
    if config.gateway.max_len:
        found["tokens"] = config.gateway.max_len
    if config.agent.concurrency:
        found["concurrency"] = config.agent.concurrency
    found |= {size: int(options[name]) for name, size in _OPTIONS.items() if _is_number(options.get(name))}
    edits = [f"engine_memory={options['engine_memory']}"] if "engine_memory" in options else []
    return found | {"model": _model(config, file)}, edits


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _model(config: RunConfig, file: Path) -> str:
    """Return folder or name of the policy that is trained."""
    trained = config.served.trained
    if len(trained) != 1:
        raise ConfigError(f"{file}: {len(trained)} policies are trained; plan one of them: give --model")
    path = next(iter(trained.values())).path
    folder = config.path(path)
    return str(folder) if (folder / "config.json").is_file() else str(path)
