"""Read agents and tags from the metadata of LangChain's runs.

``create_agent(name=…)`` writes the name into the metadata of all its runs (``lc_agent_name``). Any chain or
model can set the same with ``with_config(metadata={"agl.agent": "judge", "agl.phase": "final"})``: each
``agl.`` key is a tag. If two values conflict, LangChain's own rule for metadata decides.
"""

from __future__ import annotations

from agl_langchain.runs import Run

METADATA = "agl."
"""Prefix of metadata keys that are tags."""


def read_agent(run: Run) -> None:
    """Read a run's tags from its metadata. A new agent begins a turn, with a span and a role of its own."""
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
