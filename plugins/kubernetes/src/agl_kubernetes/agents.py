"""Which agent the pods run: a name that the image imports, or the run's file in the image."""

from __future__ import annotations

import sys
from typing import Any

from agentlightning.specs import RunnerJob
from agentlightning.types import UsageError
from agl_kubernetes.settings import KubernetesOptions


def agent_in_image(job: RunnerJob, options: KubernetesOptions) -> str | None:
    """Return ``module:object``; ``None`` where the image has the run's file. UsageError for an agent that
    has no name to import it by.
    """
    if options.config is not None:
        return None
    named = options.agent or job.config.agent.target or _import_name(job.agent)
    if named is None:
        raise UsageError(
            "runner: which agent do the pods run? Give agent, module:object as the image imports it, or "
            "config, the run's file in the image"
        )
    return named


def _import_name(agent: Any) -> str | None:
    """Return the name by which an agent is imported, if it has one."""
    module, name = getattr(agent, "__module__", None), getattr(agent, "__qualname__", None)
    if not (isinstance(module, str) and isinstance(name, str)) or module == "__main__":
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found in (agent, getattr(agent, "function", agent)) else None
