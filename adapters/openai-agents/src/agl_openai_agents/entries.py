"""The methods of the SDK's classes that ``@agl.agent`` wraps."""

from __future__ import annotations

from collections.abc import Sequence


def entry_methods(cls: type) -> Sequence[str]:
    """Return no method: the SDK's ``Agent`` has no method that runs it, and its ``name`` is the tag. A user's
    class around ``Runner`` is decorated at its ``run`` and the like, as any class is."""
    return ()
