"""The methods of LlamaIndex's classes that ``@agl.agent`` wraps."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def entry_methods(cls: type) -> Sequence[str]:
    """Return ``run`` of an agent, or of agents that hand over to each other; ``()`` for other classes."""
    if "llama_index.core" not in sys.modules:  # then cls is none of its classes, and needs no import
        return ()
    from llama_index.core.agent.workflow import AgentWorkflow, BaseWorkflowAgent

    return ("run",) if issubclass(cls, AgentWorkflow | BaseWorkflowAgent) else ()
