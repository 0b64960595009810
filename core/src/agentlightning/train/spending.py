"""The budget of a run, from its description."""

from __future__ import annotations

from agentlightning.budget.prices import Pricing, shipped_prices
from agentlightning.budget.sections import BudgetSection
from agentlightning.gateway.admission.spending import Spending
from agentlightning.train.config import RunConfig
from agentlightning.types import LLM
from agentlightning.types.base import ConfigError


def spending_of(config: RunConfig) -> Spending:
    """Return the accounts of a new run. With a limit of money, every endpoint's model needs a price."""
    section, policies = config.budget or BudgetSection(), config.served
    endpoints = {name: given.model for name, given in policies.frozen.items() if isinstance(given, LLM)}
    served = {policies.model_name, *config.environment.headroom, *(policies.names)} - {*endpoints}
    prices = section.table(config._folder) if section.given else shipped_prices()
    if section.limits.money is not None or section.per_rollout.limits.money is not None:
        for name, model in endpoints.items():
            if name not in prices and model not in prices:
                raise ConfigError(
                    f"budget.money: the model {model!r} of policy {name!r} has no price; give one: "
                    f"budget.prices: {{{model}: {{prompt: …, completion: …}}}} (0 if it costs nothing)"
                )
    return Spending(
        section.limits,
        section.per_rollout.limits,
        Pricing(prices, endpoints, served),
        given=section.given,
    )
