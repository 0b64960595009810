"""Recipes: RL algorithms as data, one file each, under their papers' names.

A recipe owns no loop: a driver runs it and declares which fields it supports. ``get("grpo", kl=0.04)`` is
``GRPO(kl=0.04)``; plugins add recipes by the hook ``agl_recipes``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentlightning.recipes.grpo import GRPO
from agentlightning.recipes.make import FIELDS, make
from agentlightning.recipes.ppo import PPO
from agentlightning.recipes.rloo import RLOO
from agentlightning.types import Recipe

RECIPES: Mapping[str, Callable[..., Recipe]] = {"grpo": GRPO, "ppo": PPO, "rloo": RLOO}
"""The built-in recipes by name."""


def get(name: str, /, recipes: Mapping[str, Callable[..., Recipe]] = RECIPES, **overrides: Any) -> Recipe:
    """Return the recipe of that name, with fields overridden. ``ValueError`` for an unknown name or field."""
    factory = recipes.get(name)
    if factory is None:
        raise ValueError(f"no recipe {name!r}; known: {', '.join(sorted(recipes))}")
    return factory(**overrides)


__all__ = ["FIELDS", "GRPO", "PPO", "RECIPES", "RLOO", "get", "make"]
