"""What ``agl run`` tells a program's processes, in environment variables: all that it starts know it too."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from agentlightning.run_program.inside.import_hook import WATCH_VARIABLE
from agentlightning.types import Tags

TASK = "AGL_TASK"
"""The task as JSON: the only variable that a program may want to read."""


class ChildSettings(msgspec.Struct, kw_only=True):
    """Whom a process works for, and where it tells of it."""

    rollout_id: str
    attempt_id: str
    key: str
    """The attempt's."""
    gateway: str
    store: str
    """Base URL of the server that takes spans."""
    run_id: str = ""
    model: str = "policy"
    """The policy that the gateway serves by default."""
    task: Any = None
    tags: Tags = {}
    policies: dict[str, str] = {}
    adapters: list[str] = []
    """Those to use; empty: all whose framework is imported."""
    per_entry: bool = False

    def variables(self, watched: list[str]) -> dict[str, str]:
        """The environment variables that say this. ``watched``: packages whose import begins capture."""
        return {
            **{_PLAIN[name]: getattr(self, name) for name in _PLAIN},
            **{_JSON[name]: json.dumps(getattr(self, name)) for name in _JSON},
            WATCH_VARIABLE: ",".join(watched),
        }

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> ChildSettings:
        """From environment variables; ``KeyError`` or ``ValueError`` for what is missing or wrong."""
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
