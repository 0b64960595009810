"""The environment variables of v0.3, and how they are read."""

from __future__ import annotations

import os
from enum import Enum

_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}


class LightningEnvVar(Enum):
    """Variables of v0.3. Here ``AGL_STORAGE`` and the run's file say what they said."""

    AGL_EMITTER_DEBUG = "AGL_EMITTER_DEBUG"
    AGL_MANAGED_STORE = "AGL_MANAGED_STORE"
    AGL_CURRENT_ROLE = "AGL_CURRENT_ROLE"
    AGL_SERVER_HOST = "AGL_SERVER_HOST"
    AGL_SERVER_PORT = "AGL_SERVER_PORT"


def resolve_bool_env_var(
    env_var: LightningEnvVar, override: bool | None = None, fallback: bool | None = None
) -> bool | None:
    """Return ``override``, else the variable as a boolean, else ``fallback``."""
    text = os.environ.get(env_var.value)
    if override is not None or text is None:
        return fallback if override is None else override
    if (word := text.strip().lower()) not in _TRUE | _FALSE:
        raise ValueError(f"{env_var.value} is {text!r}; use one of {', '.join(sorted(_TRUE | _FALSE))}")
    return word in _TRUE


def resolve_int_env_var(
    env_var: LightningEnvVar, override: int | None = None, fallback: int | None = None
) -> int | None:
    """Return ``override``, else the variable as a whole number, else ``fallback``."""
    text = os.environ.get(env_var.value)
    if override is not None or text is None:
        return fallback if override is None else override
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{env_var.value} is {text!r}; give a whole number") from None


def resolve_str_env_var(
    env_var: LightningEnvVar, override: str | None = None, fallback: str | None = None
) -> str | None:
    """Return ``override``, else the variable, else ``fallback``."""
    return override if override is not None else os.environ.get(env_var.value, fallback)
