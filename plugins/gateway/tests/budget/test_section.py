"""The field ``budget`` of a run: refused where nobody could keep to it."""

from __future__ import annotations

import pytest
from agl_gateway.budget import section

import agentlightning as agl
import agl_verl.plugin
from agentlightning.plugins import manager
from agentlightning.types.base import ConfigError


def test_a_driver_that_cannot_end_early_has_no_budget_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    verl = manager.build([agl_verl.plugin], discover=False)
    monkeypatch.setattr(section, "load", lambda: verl)
    with pytest.raises(ConfigError, match=r"'verl' cannot carry it out.*budget\.per_rollout"):
        agl.Trainer(driver="verl", policy="folder", budget={"calls": 3})
    agl.Trainer(driver="verl", policy="folder", budget={"per_rollout": {"calls": 3}})


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
