"""The objects whose hooks one run calls: callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pluggy

from agentlightning import hookspecs
from agentlightning.types.base import ConfigError


def make_callbacks(given: Sequence[Any]) -> list[Any]:
    """Return the callbacks of a run; a class is called without arguments. Raise :class:`ConfigError` for one
    without a hook, or with a hook that there is not.
    """
    return [_checked(one() if isinstance(one, type) else one) for one in given]


def _checked(callback: Any) -> Any:
    manager = pluggy.PluginManager("agentlightning")
    manager.add_hookspecs(hookspecs)
    what = getattr(callback, "__name__", type(callback).__name__)
    try:
        manager.register(callback)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise ConfigError(f"callbacks: {what}: {error}") from None
    if not manager.get_hookcallers(callback):
        raise ConfigError(
            f"callbacks: {what} has no hook: mark its methods with @agentlightning.hookimpl and name them as "
            "in docs/hooks.md"
        )
    return callback
