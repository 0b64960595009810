"""The YAML file of a run. An error names the file, the key and what is allowed.

Paths are relative to the file. ``target`` values are ``module:object``; ``pythonpath`` folders are put in
front of ``sys.path``, so that an example runs from a checkout.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from agentlightning.plugins.manager import load as load_plugins
from agentlightning.train.config import RunConfig, build, fields
from agentlightning.types.base import ConfigError
from agentlightning.types.sections import FILE


class _Loader(yaml.SafeLoader):
    """YAML whose ``1e-4`` is a number, as in JSON, and which refuses a key that is given twice."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys = [key.value for key, _ in node.value]
        if again := [key for n, (key, _) in enumerate(node.value) if key.value in keys[:n]]:
            raise yaml.MarkedYAMLError(None, None, f"{again[0].value!r} is given twice", again[0].start_mark)
        return node


_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def read_yaml(text: str) -> Any:
    """Parse YAML. Raises ``yaml.YAMLError``."""
    return yaml.load(text, Loader=_Loader)  # a SafeLoader


def load_config(file: str | Path, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """Read the configuration ``file``. ``overrides``: dotted key (``training.seed``) → value, which wins."""
    path = Path(file)
    data = _read(path)
    rewrite(data, path)
    for key, value in (overrides or {}).items():
        _assign(data, key, value, path)
    if overrides:  # which may have such keys too
        rewrite(data, path)
    config = build(data, str(path), context=FILE)
    _check_required(config, data, path)
    config._folder = path.resolve().parent
    for entry in reversed(config.pythonpath):
        if (folder := str(config.path(entry))) not in sys.path:
            sys.path.insert(0, folder)
    return config


def rewrite(data: dict[str, Any], place: object) -> None:
    """Have plugins write present keys in place of those that they know (:attr:`.SectionSpec.rewrite`)."""
    for spec in load_plugins().sections.values():
        if spec.rewrite is not None:
            spec.rewrite(data, str(place))


def _check_required(config: RunConfig, data: Mapping[str, Any], path: Path) -> None:
    """Raise :class:`ConfigError` for a file that lacks its agent or its policy."""
    needed = {
        "agent": data.get("agent"),
        "agent.target": config.agent.target or {*(data.get("agent") or {})} & fields().of_agent or None,
        "backend": data.get("backend"),
        "backend.policy": config.backend.policy,
    }
    for key, value in needed.items():
        if value is None:
            raise ConfigError(f"{path}: {key}: Field required")


def read_overrides(sets: Sequence[str] | None) -> dict[str, Any]:
    """Parse ``key=value`` words of the command line into dotted key → YAML value."""
    overrides: dict[str, Any] = {}
    for item in sets or []:
        key, sep, value = item.partition("=")
        if not sep:
            raise ConfigError(f"--set {item!r}: write key=value, e.g. --set training.steps=10")
        try:
            overrides[key] = read_yaml(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {item!r}: the value is not valid YAML: {error}") from None
    return overrides


def _read(path: Path) -> dict[str, Any]:
    try:
        data = read_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(data, dict):
        wanted = "the file must hold sections (agent, training, environment, backend)"
        raise ConfigError(f"{path}: {wanted}, not {type(data).__name__}")
    return data


def _assign(data: dict[str, Any], dotted: str, value: Any, path: Path) -> None:
    *parents, last = dotted.split(".")
    for part in parents:
        inner = data.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{path}: {dotted}: {part!r} is a value, not a section")
        data = inner
    data[last] = value
