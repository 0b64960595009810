"""The suite's ``hooks``, which lives in ``agentlightning.testing.contract``."""

from __future__ import annotations

from agentlightning.testing.contract.hooks import (
    AdapterHooks as AdapterHooks,
    add as add,
)
