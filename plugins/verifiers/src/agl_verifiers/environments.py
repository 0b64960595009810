"""Environments by name, each loaded once in a process.

Invariant: loading one changes no signal handler. An environment of verifiers sets its own for SIGINT and
SIGTERM, which works in the main thread only and would take Ctrl-C from the run.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import verifiers
from verifiers.envs import environment as environment_module

from agl_verifiers.scoring import watch

_lock = threading.Lock()
_loaded: dict[tuple[str, str], Any] = {}


class UnusableEnvironment(ValueError):
    """An environment whose rollouts cannot be run one by one, or are not scored."""


class _NoHandlers:
    """The module ``signal`` without its function ``signal``, for a module that sets handlers."""

    def __getattr__(self, name: str) -> Any:
        return getattr(signal, name)

    def signal(self, number: int, handler: object) -> None:
        """Leave the handler as it is."""


@contextmanager
def _signals_kept() -> Iterator[None]:
    before = environment_module.signal
    environment_module.signal = _NoHandlers()
    try:
        yield
    finally:
        environment_module.signal = before


def load(name: str, arguments: Mapping[str, Any]) -> Any:
    """The environment that ``verifiers.load_environment(name, **arguments)`` makes, the same one each time.

    Raise :class:`UnusableEnvironment` if its rewards compare the rollouts of a group, or it scores nothing.
    """
    key = (name, json.dumps(arguments, sort_keys=True))
    with _lock:
        if key not in _loaded:
            with _signals_kept():
                loaded = verifiers.load_environment(name, **arguments)
            _check(name, loaded)
            watch(loaded)
            _loaded[key] = loaded
        return _loaded[key]


def _check(name: str, loaded: Any) -> None:
    if loaded.requires_group_rollouts:
        raise UnusableEnvironment(
            f"environment {name!r} has reward functions that compare the rollouts of a group, and every "
            "rollout is scored alone here: give it functions of one rollout; the baseline compares the group"
        )
    if not loaded.score_rollouts:
        raise UnusableEnvironment(f"environment {name!r} scores no rollouts (score_rollouts=False)")
