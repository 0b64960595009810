"""The suite's ``hooks``, which lives in ``agl_testing.contract``."""

from __future__ import annotations

from agl_testing.contract.hooks import (
    AdapterHooks as AdapterHooks,
    add as add,
)
