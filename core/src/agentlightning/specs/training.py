"""Recipes, training loops, credit rules and baselines by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from agentlightning.types import Recipe, Record


@dataclass(frozen=True, slots=True)
class RecipeSpec:
    """A recipe by name: ``factory(**overrides) -> Recipe``."""

    name: str
    factory: Callable[..., Recipe]
    about: str = ""


@dataclass(frozen=True, slots=True)
class AlgorithmSpec:
    """A training loop by name: ``factory(**options)`` returns an algorithm.

    ``recipe(**overrides)``, if the loop is a driver's: what the driver runs. Such an algorithm is made by
    ``factory(recipe=…, training=…, environment=…)``.
    """

    name: str
    factory: Callable[..., Any]
    about: str = ""
    recipe: Callable[..., Recipe] | None = None


CreditRule = Callable[[Record, Recipe], dict[str, float | None]]


@dataclass(frozen=True, slots=True)
class CreditRuleSpec:
    """A credit rule by name."""

    name: str
    rule: CreditRule


@dataclass(frozen=True, slots=True)
class BaselineSpec:
    """A baseline by name; signature as in ``credit.baselines``."""

    name: str
    baseline: Callable[..., Any]


class TrainerPart(Protocol):
    """What a plugin keeps of the arguments of ``Trainer(…)``."""

    def begin(self, trainer: Any) -> None:
        """Called once, when the trainer has its ``config``: it may be given further attributes."""

    def fit(self, trainer: Any, agent: Any, given: dict[str, Any]) -> dict[str, Any] | None:
        """Do what ``trainer.fit(agent, …)`` is asked for, and return the summary; ``None``: train on the
        datasets that ``given`` holds. ``given``: the other arguments of ``fit`` by name.
        """
