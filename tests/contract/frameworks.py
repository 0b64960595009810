"""The frameworks under contract: the rows of the table of adapters, and where their tests are."""

from __future__ import annotations

from pathlib import Path

FRAMEWORKS = {
    "agent_framework": ("Agent Framework", "agent-framework-core"),
    "agentscope": ("AgentScope", "agentscope"),
    "autogen": ("AutoGen", "autogen-agentchat"),
    "crewai": ("CrewAI", "crewai"),
    "dspy": ("DSPy", "dspy"),
    "google_adk": ("Google ADK", "google-adk"),
    "langchain": ("LangChain", "langchain"),
    "langgraph": ("LangGraph", "langgraph"),
    "llama_index": ("LlamaIndex", "llama-index-core"),
    "openai_agents": ("OpenAI Agents", "openai-agents"),
    "openai_sdk": ("openai SDK", "openai"),
    "pydantic_ai": ("Pydantic AI", "pydantic-ai-slim"),
    "smolagents": ("smolagents", "smolagents"),
    "strands_agents": ("Strands Agents", "strands-agents"),
}
"""By folder: the name people use, and the distribution whose version is the row's."""


def folder_of(path: Path) -> str | None:
    """The framework's folder that a test file stands in; ``None`` elsewhere."""
    return next((part for part in reversed(path.parts) if part in FRAMEWORKS), None)
