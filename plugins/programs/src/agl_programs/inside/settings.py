"""Settings that ``agl run`` passes to a program's processes in environment variables."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from agentlightning.capture.context import AttemptContext
from agentlightning.types import LLM, Span, Tags
from agl_programs.inside.import_hook import WATCH_VARIABLE

TASK = "AGL_TASK"
"""The task of ``agl run`` as JSON. Programs may read this variable."""
SETTINGS = "AGL_PROGRAM"
"""The other settings as JSON."""

_OF_CONTEXT = ("rollout_id", "attempt_id", "key", "gateway", "tags", "policies")


class ChildSettings(msgspec.Struct, kw_only=True):
    """The attempt that a process works for, and the servers that it talks to."""

    rollout_id: str
    attempt_id: str
    key: str
    """The attempt's key."""
    gateway: str
    store: str
    """Base URL of the server that takes spans."""
    model: str = "policy"
    """The gateway's default policy."""
    task: Any = msgspec.UNSET
    """Unset for a command, which gets only what it names of its task."""
    tags: Tags = {}
    policies: dict[str, str] = {}
    adapters: list[str] = []
    """Adapters to activate; empty: the adapters of all imported frameworks."""
    per_entry: bool = False

    @classmethod
    def of(cls, context: AttemptContext, **fields: Any) -> ChildSettings:
        """Return the settings of an attempt. ``fields``: those that its context does not know."""
        assert context.key is not None and context.gateway is not None
        known = {name: getattr(context, name) for name in _OF_CONTEXT}
        return cls(**{**known, **fields})

    def variables(self, watched: list[str]) -> dict[str, str]:
        """Return the settings as environment variables. ``watched``: packages whose import begins capture."""
        own = msgspec.structs.replace(self, task=msgspec.UNSET)
        given = {} if self.task is msgspec.UNSET else {TASK: json.dumps(self.task)}
        return {SETTINGS: json.dumps(msgspec.to_builtins(own)), WATCH_VARIABLE: ",".join(watched), **given}

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> ChildSettings:
        """Return the settings in environment variables. Raise ``KeyError`` if one is missing and
        ``ValueError`` if one is malformed.
        """
        settings = msgspec.convert(json.loads(environment[SETTINGS]), cls)
        if TASK in environment:
            settings.task = json.loads(environment[TASK])
        return settings

    def context(self, sink: Callable[[Span], None]) -> AttemptContext:
        """Return the identity of the attempt. Its spans go to ``sink``."""
        return AttemptContext(
            rollout_id=self.rollout_id,
            attempt_id=self.attempt_id,
            sink=sink,
            key=self.key,
            gateway=self.gateway,
            tags=self.tags,
            policies=self.policies,
            resources={"policy": LLM(endpoint=self.gateway, model=self.model, api_key=self.key)},
            task=None if self.task is msgspec.UNSET else self.task,
        )
