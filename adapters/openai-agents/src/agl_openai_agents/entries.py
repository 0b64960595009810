"""The methods of the SDK's classes that ``@agl.agent`` wraps."""

from __future__ import annotations

from collections.abc import Sequence


def entry_methods(cls: type) -> Sequence[str]:
    """None of the SDK's own: an ``Agent`` has no method that runs it, and its ``name`` is the tag. A class of
    the user's around ``Runner`` is marked at its ``run`` and the like, as any class is."""
    return ()
