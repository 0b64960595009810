"""The tracer of a process, by names of v0.3. Capture itself needs none."""

from __future__ import annotations

from agl_v03.tracer import Tracer

_active: list[Tracer] = []


def set_active_tracer(tracer: Tracer) -> None:
    """Make ``tracer`` the process's own. Raise ValueError if there is another."""
    if _active and _active[0] is not tracer:
        raise ValueError(f"{_active[0]!r} is active already: clear_active_tracer() first")
    _active[:] = [tracer]


def get_active_tracer() -> Tracer | None:
    """Return the process's own tracer, if one was set."""
    return _active[0] if _active else None


def clear_active_tracer() -> None:
    """Forget the process's own tracer."""
    _active.clear()
