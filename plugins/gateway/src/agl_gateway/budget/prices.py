"""What calls and training cost in money: a price table by model, which a run's file or ``Trainer(budget=…)``
may change.

``prices.json`` beside this module is the table that is shipped, with its date and its source. Policies that
the run serves itself cost 0, unless its own table names them. A call of any other model without a price costs
0 too, and is counted.
"""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from agentlightning.types import Call, UsageError
from agl_gateway.budget.limits import Spent

MILLION = 1_000_000
TABLE = Path(__file__).with_name("prices.json")
FORWARD, TRAINED = "service/forward_tokens", "service/trained_tokens"
"""Metrics of a step: what a service that trains was sent so far, for logprobs and for gradients."""
REFUSED = "budget"
"""``Call.masked`` of a call that was refused because the budget is spent: it cost nothing."""


@dataclass(frozen=True, slots=True)
class Price:
    """What a model costs for a million tokens."""

    prompt: float = 0.0
    completion: float = 0.0
    train: float = 0.0
    """Of tokens that a service trains."""


def read_prices(given: Mapping[str, Any] | None) -> dict[str, Price]:
    """Return the price table: model → ``Price``, or a mapping ``{prompt: …, completion: …, train: …}``."""
    table: dict[str, Price] = {}
    for model, price in (given or {}).items():
        try:
            made = price if isinstance(price, Price) else Price(**price)
            if not all(0 <= float(value) < math.inf for value in astuple(made)):
                raise ValueError("a price is 0 or more, and finite")
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"prices.{model}: give prompt, completion and train, each for a million tokens: {error}"
            ) from None
        table[model] = made
    return table


def read_table(path: Path) -> dict[str, Price]:
    """Return the prices of a file in the shape of the shipped one: ``{"prices": {model: {…}}}``."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"budget.prices: {path} cannot be read: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("prices"), dict):
        raise UsageError(f'budget.prices: {path} must hold {{"prices": {{model: {{prompt, completion}}}}}}')
    return read_prices(found["prices"])


@functools.cache
def shipped_prices() -> Mapping[str, Price]:
    """Return the shipped table."""
    return read_table(TABLE)


@dataclass(slots=True)
class Pricing:
    """Finds the price of a call. ``models``: policy → the model that its endpoint is asked for."""

    prices: Mapping[str, Price] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    served: Collection[str] = ()
    """Policies that the run serves itself, and that have no price of their own."""
    unpriced: Counter[str] = field(default_factory=Counter)
    """Model without a price → its calls, which cost nothing here."""

    def cost(self, calls: Iterable[Call]) -> Spent:
        """Return what recorded calls have cost. Choices of one answer share a prompt and are one call."""
        found = Spent()
        for call in calls:
            if call.masked == REFUSED:
                continue
            first = call.choice == 0
            prompt = (call.prompt_tokens or _len(call.prompt_ids)) if first else 0
            completion = call.completion_tokens or _len(call.response_ids)
            found.add(Spent(int(first), prompt, completion, self._money(call, prompt, completion)))
        return found

    def training(self, policy: str, metrics: Mapping[str, float]) -> float:
        """Return the money that training a policy has cost so far, by the ``metrics`` of a step."""
        price = self.prices.get(policy, Price()) if policy not in self.served else Price()
        forward, trained = metrics.get(FORWARD, 0.0), metrics.get(TRAINED, 0.0)
        return (price.prompt * forward + price.train * trained) / MILLION

    def _money(self, call: Call, prompt: int, completion: int) -> float:
        if not self.prices or call.policy in self.served:
            return 0.0
        names = [name for name in (self.models.get(call.policy), call.policy, call.model) if name]
        price = next((self.prices[name] for name in names if name in self.prices), None)
        if price is None:
            if call.choice == 0 and names:
                self.unpriced[names[0]] += 1
            return 0.0
        return (price.prompt * prompt + price.completion * completion) / MILLION


def _len(ids: Any) -> int:
    return 0 if ids is None else len(ids)
