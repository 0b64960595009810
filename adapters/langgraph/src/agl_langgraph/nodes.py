"""Tag the runs of a node with its name, its graph, and its branch.

The metadata of a node's runs name it. Tags: ``node``; ``graph``, the path of the nodes above a sub-graph
(``research`` or ``research/search``); ``branch``, the number of the node's copy that ``Send`` started;
``step``, LangGraph's superstep. A node outside any named agent is an agent of its own.
"""

from __future__ import annotations

from agl_langchain.runs import Run
from agl_langgraph.callers import caller

PREBUILT = frozenset({"agent", "model", "tools"})
"""Nodes of the graphs that agent factories build. They name no agent."""
UNNAMED = "LangGraph"
"""LangGraph's name of a graph without a name."""


def read_node(run: Run) -> None:
    """Tag the run of a node and give it a span; its inner runs inherit the tags. Tag a tool with the agent
    that called it.
    """
    where, node = run.fresh("langgraph_checkpoint_ns"), str(run.metadata.get("langgraph_node", ""))
    if where and node:
        run.tags |= {"node": node, "step": str(run.metadata.get("langgraph_step", ""))}
        run.tags.pop("graph", None)
        above = [part.partition(":")[0] for part in str(where).split("|")[:-1]]
        if graph := "/".join(part for part in above if not part.isdigit()):  # a number: a node's second call
            run.tags["graph"] = graph
        if (number := _branch(run.metadata.get("langgraph_path"))) is not None:
            outer = run.tags.get("branch")
            run.tags["branch"] = number if outer is None else f"{outer}/{number}"
        run.title = run.title or f"node {node}"
        _read_agent(run, node)
    if (agent := caller(run)) is not None:
        run.tags["agent"] = agent


def _branch(path: object) -> str | None:
    """Return the number of a copy that ``Send`` started: ``("__pregel_push", 2, …)`` is the third."""
    if isinstance(path, tuple | list) and len(path) > 1 and path[0] == "__pregel_push":
        return str(path[1]) if isinstance(path[1], int) else None
    return None


def _read_agent(run: Run, node: str) -> None:
    """Tag the run with the node's agent: its own, that of its graph, or the node itself."""
    above = run.parent
    if run.agent is not None:
        return
    if node in PREBUILT and above is not None:
        if above.agent is None and above.name not in ("", UNNAMED):
            above.name_agent(above.name)  # create_react_agent(name=…) names its graph
        unnamed = run.metadata.get("ls_integration") == "langchain_create_agent"
        if above.agent is None and (unnamed or "agent" in above.tags):
            return  # a nameless agent inside another's node is a part of that one, else nobody's
    if above is not None and above.agent is not None:
        run.tags["agent"] = above.agent
    else:
        run.tags["agent"] = node
