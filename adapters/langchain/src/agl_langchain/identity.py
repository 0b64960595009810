"""Who is calling, in LangChain's own terms: agents by name, and whatever a chain's metadata say.

``create_agent(name=…)`` writes the name into the metadata of all its runs (``lc_agent_name``). Any chain or
model can say as much with ``with_config(metadata={"agl.agent": "judge", "agl.phase": "final"})``: each
``agl.`` key is a tag. Where two say different things, LangChain's own rule for metadata decides.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from agl_langchain.runs import Run, identity as identity

METADATA = "agl."
"""Prefix of metadata keys that are tags."""
_ENTRIES = ("invoke", "ainvoke", "stream", "astream", "transform", "atransform")


def read_agent(run: Run) -> None:
    """Tags from metadata. A new agent begins a turn: its span, and its own role."""
    tags = {
        key.removeprefix(METADATA): str(value)
        for key in run.metadata
        if key.startswith(METADATA) and (value := run.fresh(key)) is not None
    }
    name = tags.get("agent") or run.fresh("lc_agent_name")
    if name:
        run.tags.pop("role", None)
        run.name_agent(str(name))
    run.tags |= tags


def entry_methods(cls: type) -> Sequence[str]:
    """What a ``Runnable`` overrides of its ways to be run; ``()`` for classes that are none, and models."""
    if "langchain_core" not in sys.modules:
        return ()
    from langchain_core.language_models import BaseLanguageModel
    from langchain_core.runnables import Runnable

    if not issubclass(cls, Runnable) or issubclass(cls, BaseLanguageModel):
        return ()
    return [entry for entry in _ENTRIES if getattr(cls, entry) is not getattr(Runnable, entry)]
