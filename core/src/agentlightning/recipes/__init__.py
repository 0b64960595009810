"""Recipes: RL algorithms as data, one file each, under their papers' names.

A recipe owns no loop: a driver runs it and declares which fields it supports. ``get("grpo", kl=0.04)`` is
``GRPO(kl=0.04)``; plugins add recipes by the hook ``agl_recipes``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentlightning.recipes.cispo import CISPO
from agentlightning.recipes.dapo import DAPO
from agentlightning.recipes.dr_grpo import DrGRPO
from agentlightning.recipes.flow_grpo import FlowGRPO
from agentlightning.recipes.gigpo import GiGPO
from agentlightning.recipes.grpo import GRPO
from agentlightning.recipes.gspo import GSPO
from agentlightning.recipes.make import FIELDS, make
from agentlightning.recipes.ppo import PPO
from agentlightning.recipes.reinforce_pp import REINFORCEPlusPlus
from agentlightning.recipes.rloo import RLOO
from agentlightning.types import Recipe

RECIPES: Mapping[str, Callable[..., Recipe]] = {
    "cispo": CISPO,
    "dapo": DAPO,
    "dr_grpo": DrGRPO,
    "flow_grpo": FlowGRPO,
    "gigpo": GiGPO,
    "grpo": GRPO,
    "gspo": GSPO,
    "ppo": PPO,
    "reinforce++": REINFORCEPlusPlus,
    "rloo": RLOO,
}
"""The built-in recipes by name."""
PAPERS: Mapping[str, str] = {
    "cispo": "arXiv 2506.13585",
    "dapo": "arXiv 2503.14476",
    "dr_grpo": "arXiv 2503.20783",
    "flow_grpo": "arXiv 2510.05592",
    "gigpo": "arXiv 2505.10978",
    "grpo": "arXiv 2402.03300",
    "gspo": "arXiv 2507.18071",
    "ppo": "arXiv 1707.06347",
    "reinforce++": "arXiv 2501.03262",
    "rloo": "arXiv 2402.14740",
}
"""Recipe → its paper."""


def get(name: str, /, recipes: Mapping[str, Callable[..., Recipe]] = RECIPES, **overrides: Any) -> Recipe:
    """Return the recipe of that name, with fields overridden. ``ValueError`` for an unknown name or field."""
    factory = recipes.get(name)
    if factory is None:
        raise ValueError(f"no recipe {name!r}; known: {', '.join(sorted(recipes))}")
    return factory(**overrides)


__all__ = [
    "CISPO",
    "DAPO",
    "FIELDS",
    "GRPO",
    "GSPO",
    "PAPERS",
    "PPO",
    "RECIPES",
    "RLOO",
    "REINFORCEPlusPlus",
    "DrGRPO",
    "FlowGRPO",
    "GiGPO",
    "get",
    "make",
]
