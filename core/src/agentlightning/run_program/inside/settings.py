"""Settings that ``agl run`` passes to a program's processes in environment variables."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from agentlightning.run_program.inside.import_hook import WATCH_VARIABLE
from agentlightning.types import Tags

TASK = "AGL_TASK"
"""The task as JSON. Of these variables, the only one that programs may read."""


class ChildSettings(msgspec.Struct, kw_only=True):
    """The attempt that a process works for, and where it sends what it records."""

    rollout_id: str
    attempt_id: str
    key: str
    """The attempt's."""
    gateway: str
    store: str
    """Base URL of the server that takes spans."""
    run_id: str = ""
    model: str = "policy"
    """The gateway's default policy."""
    task: Any = None
    tags: Tags = {}
    policies: dict[str, str] = {}
    adapters: list[str] = []
    """Adapters to activate; empty: all whose framework is imported."""
    per_entry: bool = False

    def variables(self, watched: list[str]) -> dict[str, str]:
        """The settings as environment variables. ``watched``: packages whose import begins capture."""
        return {
            **{_PLAIN[name]: getattr(self, name) for name in _PLAIN},
            **{_JSON[name]: json.dumps(getattr(self, name)) for name in _JSON},
            WATCH_VARIABLE: ",".join(watched),
        }

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> ChildSettings:
        """The inverse; ``KeyError``: a variable is missing; ``ValueError``: one is malformed."""
        plain = {name: environment[variable] for name, variable in _PLAIN.items()}
        parsed = {name: json.loads(environment[variable]) for name, variable in _JSON.items()}
        return msgspec.convert({**plain, **parsed}, cls)


_PLAIN = {
    "rollout_id": "AGL_ROLLOUT_ID",
    "attempt_id": "AGL_ATTEMPT_ID",
    "run_id": "AGL_RUN_ID",
    "key": "AGL_KEY",
    "gateway": "AGL_GATEWAY",
    "store": "AGL_STORE",
    "model": "AGL_MODEL",
}
_JSON = {
    "task": TASK,
    "tags": "AGL_TAGS",
    "policies": "AGL_POLICIES",
    "adapters": "AGL_ADAPTERS",
    "per_entry": "AGL_PER_ENTRY",
}
