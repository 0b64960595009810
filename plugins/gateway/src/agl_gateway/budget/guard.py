"""The budget of a run, from its description (hook ``agl_call_guards``)."""

from __future__ import annotations

from typing import Any

from agentlightning.types import LLM
from agentlightning.types.base import ConfigError
from agl_gateway.budget.prices import Pricing
from agl_gateway.budget.spending import Spending


def budget_of(config: Any, plugins: Any) -> Spending | None:
    """Return the accounts of a new run; ``None`` for one without a budget. With a limit of money, every
    endpoint's model needs a price, and every policy of a driver whose service may ask money.
    """
    # A description that was read without this plugin has no such field.
    section, policies = getattr(config, "budget", None), config.served
    if section is None or not section.given:
        return None
    endpoints = {name: given.model for name, given in policies.frozen.items() if isinstance(given, LLM)}
    scripted = getattr(config.environment, "headroom", {})  # of agl-testing
    own, prices = section.own(config._folder), section.table(config._folder)
    served = {policies.model_name, *scripted, *policies.names} - {*endpoints, *own}
    if section.limits.money is not None or section.per_rollout.limits.money is not None:
        driver = plugins.drivers.get(config.backend.driver)
        unpriced = sorted({*policies.names} & served) if driver is not None and driver.paid else []
        if unpriced:
            raise ConfigError(
                f"budget.money: the service of the driver {driver.name!r} may ask money for the policy "
                f"{unpriced[0]!r}; give its price: budget.prices: {{{unpriced[0]}: {{prompt: …, completion: "
                "…, train: …}} (0 if it costs nothing)"
            )
        for name, model in endpoints.items():
            if name not in prices and model not in prices:
                raise ConfigError(
                    f"budget.money: the model {model!r} of policy {name!r} has no price; give one: "
                    f"budget.prices: {{{model}: {{prompt: …, completion: …}}}} (0 if it costs nothing)"
                )
    return Spending(section.limits, section.per_rollout.limits, Pricing(prices, endpoints, served))
