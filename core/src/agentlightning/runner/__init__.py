"""Runners lease rollouts from the store and run the user's agent on them."""

from __future__ import annotations

from typing import Any

from agentlightning._lazy import plugin_name


def __getattr__(name: str) -> Any:
    return plugin_name(__name__, name)
