"""The suite's own adapters and drivers: the line that installs one from a checkout.

None of these distributions is on a package index under our control, so a line names folders, and with each
folder those of the suite that it needs: what is left out, pip would look for elsewhere.
"""

from __future__ import annotations

CHECKOUT: dict[str, dict[str, tuple[str, ...]]] = {
    "adapter": {
        "agent-framework": ("./core", "./adapters/agent-framework[instruments]"),
        "agentscope": ("./core", "./adapters/agentscope[instruments]"),
        "autogen": ("./core", "./adapters/autogen[instruments]"),
        "crewai": ("./core", "./adapters/crewai[instruments]"),
        "langchain": ("./core", "./adapters/langchain[instruments]"),
        "langgraph": ("./core", "./adapters/langchain", "./adapters/langgraph[instruments]"),
        "openai-agents": ("./core", "./adapters/openai-agents[instruments]"),
        "pydantic-ai": ("./core", "./adapters/pydantic-ai[instruments]"),
    },
    "driver": {
        "local": ("./core", "./plugins/local"),
        "verl": ("./core", "./plugins/verl"),
    },
}
"""Kind → name → folders of a checkout, with the extra that brings the framework."""


def install_line(kind: str, name: str) -> str | None:
    """What installs an adapter or driver of the suite, typed in its checkout; ``None`` for other names."""
    folders = CHECKOUT.get(kind, {}).get(name)
    if folders is None:
        return None
    words = [f'"{folder}"' if "[" in folder else folder for folder in folders]
    return f"pip install -c constraints.txt {' '.join(words)}"
