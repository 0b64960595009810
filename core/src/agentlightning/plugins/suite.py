"""The suite's own adapters, drivers and trackers: the line that installs one from a checkout.

No package index under our control has these distributions, so a line names folders, with every folder of the
suite that one needs. pip would look for a missing one elsewhere.
"""

from __future__ import annotations

_ADAPTERS = (
    *("agent-framework", "agentscope", "autogen", "crewai", "dspy", "google-adk", "langchain"),
    *("langgraph", "llama-index", "openai-agents", "pydantic-ai", "smolagents", "strands-agents"),
)
_AUDIT = (
    *("chats", "compare", "explain", "export", "import", "lineage", "logs"),
    *("rescore", "rollouts", "runs", "serve", "top", "trace", "verify"),
)
_NEEDED = {"langgraph": ("./adapters/langchain",)}
_WITH = {"autogen-core": "autogen"}
"""Adapters that come with another one."""
CHECKOUT: dict[str, dict[str, tuple[str, ...]]] = {
    "adapter": {
        name: ("./core", *_NEEDED.get(name, ()), f"./adapters/{name}[instruments]") for name in _ADAPTERS
    },
    "tracker": {
        name: ("./core", f"./plugins/trackers[{name}]")
        for name in ("plot", "tensorboard", "wandb", "mlflow", "trackio")
    },
    "runner": {name: ("./core", f"./plugins/{name}[client]") for name in ("kubernetes", "ray")},
    "driver": {name: ("./core", f"./plugins/{name}") for name in ("local", "verl")},
    "recipe or algorithm": {
        **{name: ("./core", "./plugins/apo") for name in ("alternate", "apo", "gepa")},
        **{name: ("./core", "./plugins/audit") for name in ("dpo", "rejection", "sft")},
    },
    "task set": {
        name: ("./core", "./plugins/examples") for name in ("coding", "math", "reasoning", "sql-generation")
    },
    "store": {name: ("./core", "./plugins/postgres") for name in ("postgres", "postgresql")},
    "command": {
        **{name: ("./core", "./plugins/audit") for name in _AUDIT},
        "doctor": ("./core", "./plugins/programs", "./plugins/testing"),
        "init": ("./core", "./plugins/examples"),
        **{name: ("./core", "./plugins/programs") for name in ("gateway", "run")},
        "dashboard": ("./core", "./plugins/audit", "./plugins/dashboard"),
        "example": ("./core", "./plugins/examples"),
        "prompts": ("./core", "./plugins/apo"),
    },
    "environments": {name: ("./core", f"./plugins/{name}[instruments]") for name in ("openenv", "verifiers")},
}
"""Kind → name → folders of a checkout, with the extra that brings the framework."""


def install_line(kind: str, name: str) -> str | None:
    """Return the command that installs an adapter, driver or tracker from a checkout; ``None`` for any other
    name.
    """
    folders = CHECKOUT.get(kind, {}).get(_WITH.get(name, name))
    if folders is None:
        return None
    words = [f'"{folder}"' if "[" in folder else folder for folder in folders]
    return f"pip install -c constraints.txt {' '.join(words)}"
