"""Keys of a run's file by which the first documents described a run: ``episodes``, ``eval_tasks``, ``type``.

They say what the fields of a run say, in fewer words; :func:`expand` writes those in their place.
With ``eval_tasks`` a file needs no agent, no tasks and no policy of its own: it gets the bundled ones.
"""

from __future__ import annotations

import math
import os
from typing import Any

from agentlightning.types.base import ConfigError

AGENT = "agl_examples.bundled.agent:solve"
SETS = "agl_examples.bundled.task_set"
POLICY = "tiny"
"""The policy that comes with agl-local. It knows the task set ``math`` and nothing else."""
GROUP_SIZE = 8
"""Rollouts of a task, if the recipe does not say."""


def expand(data: dict[str, Any], place: str) -> None:
    """Replace the early keys of ``data`` in place. :class:`ConfigError` begins with ``place``."""
    if isinstance(data.get("backend"), str):
        data["backend"] = {"driver": data["backend"]}
    sections = {name: data.get(name) for name in ("agent", "training", "environment", "backend")}
    if any(value is not None and not isinstance(value, dict) for value in sections.values()):
        return  # the checks that follow say which section is wrong
    training = sections["training"] or {}
    if "learning_rate" in training:
        options = data.setdefault("backend", {}).setdefault("options", {})
        options.setdefault("lr", training.pop("learning_rate"))
    if "device" in (backend := data.get("backend") or {}):
        backend.setdefault("options", {}).setdefault("device", backend.pop("device"))
    if "type" in backend:
        backend.setdefault("driver", backend.pop("type"))
    if "episodes" in training:
        training["steps"] = steps_of(training.pop("episodes"), training, place)
    if (environment := sections["environment"] or {}).get("eval_tasks") is not None:
        _bundled(data, environment, place)
    agent = data.get("agent") or {}
    if isinstance(kind := agent.get("type"), str):
        if "adapters" in agent:
            raise ConfigError(f"{place}: agent.type and agent.adapters: give one of the two")
        del agent["type"]
        if kind != "openai":  # the SDK is captured anyway
            agent["adapters"] = [kind]


def steps_of(episodes: Any, training: dict[str, Any], place: str) -> int:
    """Return the steps in which ``episodes`` rollouts are trained: each has a batch of groups."""
    if "steps" in training:
        raise ConfigError(f"{place}: training.episodes and training.steps: give one of the two")
    if not isinstance(episodes, int) or isinstance(episodes, bool) or episodes < 0:
        raise ConfigError(f"{place}: training.episodes: give a number of rollouts, not {episodes!r}")
    groups = (training.get("recipe") or {}).get("group_size", GROUP_SIZE)
    return math.ceil(episodes / (int(training.get("batch_size", 8)) * int(groups)))


def _bundled(data: dict[str, Any], environment: dict[str, Any], place: str) -> None:
    names = environment.pop("eval_tasks")
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{place}: environment.eval_tasks: give names of task sets, not {names!r}")
    environment.setdefault("train", {"target": f"{SETS}:training_tasks", "args": {"names": names}})
    environment.setdefault("val", {"target": f"{SETS}:held_out_tasks", "args": {"names": names}})
    agent = data["agent"] = data.get("agent") or {}
    kind = agent.get("type")
    if "target" not in agent and "command" not in agent:
        if kind not in (None, "openai"):
            raise ConfigError(
                f"{place}: agent.target: Field required; only agents of type openai have a bundled one, not "
                f"those of type {kind}"
            )
        agent["target"] = AGENT
    backend = data["backend"] = data.get("backend") or {}
    if backend.get("policy") is None and backend.get("policies") is None:
        backend["policy"] = os.environ.get("AGL_MODEL") or POLICY
        if backend["policy"] == POLICY:
            data.setdefault(
                "note", "No policy is given: the bundled one, which knows only the task set math."
            )
