"""The adapter behind the suite's only door."""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import AdapterSpec
from agl_langchain import LangChainInstrumentor, entry_methods, identity
from agl_langchain.package import INSTRUMENTS


@hookimpl
def agl_adapters() -> list[AdapterSpec]:
    """LangChain."""
    return [
        AdapterSpec(
            name="langchain",
            framework="langchain_core",
            instrumentor=LangChainInstrumentor,
            identity=identity,
            entry_methods=entry_methods,
            requires=", ".join(INSTRUMENTS),
        )
    ]
