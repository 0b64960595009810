"""The suite's own adapters and drivers: the line that installs one from a checkout.

None of these distributions is on a package index under our control, so a line names folders, and with each
folder those of the suite that it needs: what is left out, pip would look for elsewhere.
"""

from __future__ import annotations

_ADAPTERS = (
    *("agent-framework", "agentscope", "autogen", "crewai", "langchain", "langgraph", "openai-agents"),
    "pydantic-ai",
)
_NEEDED = {"langgraph": ("./adapters/langchain",)}
CHECKOUT: dict[str, dict[str, tuple[str, ...]]] = {
    "adapter": {
        name: ("./core", *_NEEDED.get(name, ()), f"./adapters/{name}[instruments]") for name in _ADAPTERS
    },
    "driver": {name: ("./core", f"./plugins/{name}") for name in ("local", "verl")},
}
"""Kind → name → folders of a checkout, with the extra that brings the framework."""


def install_line(kind: str, name: str) -> str | None:
    """What installs an adapter or driver of the suite, typed in its checkout; ``None`` for other names."""
    folders = CHECKOUT.get(kind, {}).get(name)
    if folders is None:
        return None
    words = [f'"{folder}"' if "[" in folder else folder for folder in folders]
    return f"pip install -c constraints.txt {' '.join(words)}"
