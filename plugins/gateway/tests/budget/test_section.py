"""The field ``budget`` of a run: refused where nobody could keep to it."""

from __future__ import annotations

from typing import Any

import pytest
from agl_gateway.budget import section
from agl_gateway.budget.guard import budget_of
from agl_gateway.budget.spending import Spending

import agentlightning as agl
import agl_verl.plugin
from agentlightning.hookspecs import hookimpl
from agentlightning.plugins import manager
from agentlightning.specs import DriverSpec
from agentlightning.types.base import ConfigError


def test_a_driver_that_cannot_end_early_has_no_budget_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    verl = manager.build([agl_verl.plugin], discover=False)
    monkeypatch.setattr(section, "load", lambda: verl)
    with pytest.raises(ConfigError, match=r"'verl' cannot carry it out.*budget\.per_rollout"):
        agl.Trainer(driver="verl", policy="folder", budget={"calls": 3})
    agl.Trainer(driver="verl", policy="folder", budget={"per_rollout": {"calls": 3}})


def test_with_a_limit_of_money_a_service_that_may_ask_for_some_needs_a_price() -> None:
    class Service:
        @hookimpl
        def agl_drivers(self) -> list[DriverSpec]:
            return [DriverSpec("service", lambda *_: None, ends_early=True, paid=True)]  # type: ignore[arg-type,return-value]

    plugins = manager.build([Service()], discover=False)
    limits = {"money": 3.0}
    asked: dict[str, Any] = {"policy": "folder", "driver": "service"}

    def guard(**budget: Any) -> Spending | None:
        return budget_of(agl.Trainer(**asked, budget={**limits, **budget}).config, plugins)

    with pytest.raises(ConfigError, match=r"'service' may ask money.*\{policy: \{prompt: …, .* train: …\}\}"):
        guard()
    found = guard(prices={"policy": {"prompt": 1, "completion": 2, "train": 3}})
    assert found is not None and "policy" not in found.pricing.served
    asked["driver"] = "local"  # which serves it here, for nothing
    found = guard()
    assert found is not None and "policy" in found.pricing.served


def test_without_the_plugin_a_budget_is_refused_with_its_install_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AGL_PLUGINS", "")
    manager.load.cache_clear()
    try:
        with pytest.raises(TypeError, match=r"agl-gateway.*pip install .*\./plugins/gateway"):
            agl.Trainer(policy="folder", budget={"calls": 3})
    finally:
        manager.load.cache_clear()
