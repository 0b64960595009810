"""MCP servers as the tools of an agent, and tasks that are written from a server's own list of tools.

    agent = agl.Agent("clerk", "Use the tools.", mcp=["uvx mcp-server-time"], grade=mcp.grade)

A server is a command line, which is started for each rollout, so that its state is the rollout's own; or the
address of one that is served over HTTP (``https://…/mcp``), with a session for each rollout.

    python -m agl_examples.bundled.mcp "uvx mcp-server-time" --values values.json --count 200 > tasks.jsonl

A task asks for a value of a tool's answer. The call that gives it, the *gold call*, is executed when the
task is written and once more in another session: a task whose answer is an error, or changes, is left out
and counted. ``values.json`` names values for arguments (``{"timezone": ["Europe/Berlin", "UTC"]}``); what a
tool's schema names (``enum``, ``examples``, ``default``) is known without.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shlex
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentlightning.types import UsageError
from agl_examples.bundled.task_set import answer_of

Task = dict[str, Any]
INSTALL = "pip install 'mcp>=1.11,<3'"
LONGEST = 120
"""Characters of an answer that a task may ask for."""


class Tools:
    """The tools of one session with a server: ``schemas`` in the form of the OpenAI API."""

    def __init__(self, session: Any, listed: Sequence[Mapping[str, Any]]) -> None:
        self._session = session
        self.schemas: dict[str, dict[str, Any]] = {one["name"]: _schema(one) for one in listed}

    async def call(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """Return the text that a tool answers, and whether it is an error."""
        answer = await self._session.call_tool(name, dict(arguments))
        told = answer.model_dump(mode="json", by_alias=True)
        text = "\n".join(one["text"] for one in told["content"] if one["type"] == "text")
        return text, bool(told.get("isError"))


def _schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    about = {"name": tool["name"], "description": tool.get("description") or tool["name"]}
    return {"type": "function", "function": {**about, "parameters": tool["inputSchema"]}}


@asynccontextmanager
async def opened(server: str) -> AsyncIterator[Tools]:
    """Open a session with a server. Raise :class:`.UsageError` if the library mcp is not installed."""
    try:
        from mcp import ClientSession, StdioServerParameters
        from mcp.client.stdio import stdio_client
        from mcp.client.streamable_http import streamable_http_client
    except ImportError:
        raise UsageError(f"the library mcp is not installed: {INSTALL}") from None
    if server.startswith(("http://", "https://")):
        reached: Any = streamable_http_client(server)
    else:
        command, *arguments = shlex.split(server)
        reached = stdio_client(StdioServerParameters(command=command, args=arguments))
    async with reached as streams, ClientSession(streams[0], streams[1]) as session:
        await session.initialize()
        listed = (await session.list_tools()).model_dump(mode="json", by_alias=True)["tools"]
        yield Tools(session, listed)


# ---------------------------------------------------------------------------------------------- tasks
async def write_tasks(
    server: str, count: int, *, values: Mapping[str, Sequence[Any]] | None = None, seed: int = 0
) -> tuple[list[Task], Counter[str]]:
    """Return at most ``count`` tasks of a server's tools, no two alike, and what was left out by its reason:
    ``no-values`` (tools), ``error``, ``no-answer`` and ``changes`` (calls). ``values``: argument → values.
    """
    chosen, left_out, found = random.Random(seed), Counter[str](), dict[str, Task]()
    async with opened(server) as tools:
        ways = {name: _choices(schema, values or {}) for name, schema in tools.schemas.items()}
        left_out["no-values"] = sum(one is None for one in ways.values())
        known = {name: one for name, one in ways.items() if one is not None}
        for _ in range(8 * count if known else 0):
            name = chosen.choice(sorted(known))
            arguments = {key: chosen.choice(list(one)) for key, one in (known[name] or {}).items()}
            task = await _task(tools, name, arguments, chosen, left_out)
            if task is not None:
                found.setdefault(task["question"], task)
            if len(found) == count:
                break
    tasks = list(found.values())
    unsolved = await unsolvable(server, tasks)
    left_out["changes"] = len(unsolved)
    return [task for task in tasks if task not in unsolved], +left_out


async def unsolvable(server: str, tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks whose gold call, executed now in a session of its own, does not give their answer."""
    async with opened(server) as tools:
        return [task for task in tasks if await _answer(tools, task) != task["answer"]]


def grade(task: Mapping[str, Any], text: str) -> float:
    """Return 1.0 for the task's answer: of what stands in the last ``<answer>``, else of the whole text."""
    return float(answer_of(text) == task["answer"])


def _choices(
    schema: Mapping[str, Any], values: Mapping[str, Sequence[Any]]
) -> dict[str, Sequence[Any]] | None:
    """The values of each argument of a tool; ``None`` if one that is required has none."""
    parameters, found = schema["function"]["parameters"], dict[str, Sequence[Any]]()
    for name, kind in (parameters.get("properties") or {}).items():
        known = values.get(name) or kind.get("enum") or kind.get("examples")
        if known is None and "default" not in kind and name in parameters.get("required", ()):
            return None
        if known is not None:
            found[name] = known
    return found


async def _task(
    tools: Tools, name: str, arguments: dict[str, Any], chosen: random.Random, left_out: Counter[str]
) -> Task | None:
    text, failed = await tools.call(name, arguments)
    given = {str(value) for value in arguments.values()}
    leaves = [] if failed else [(path, leaf) for path, leaf in _leaves(text) if leaf not in {"", *given}]
    if not leaves:
        left_out["error" if failed else "no-answer"] += 1
        return None
    path, answer = chosen.choice(leaves)
    said = ", ".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in arguments.items())
    what = f"Give the value of {path}" if path else "Give the result"
    about = tools.schemas[name]["function"]["description"].strip()
    question = f"{about}\n{said or 'No arguments.'}\n{what}, alone between <answer> and </answer>."
    return {"question": question, "answer": answer, "tool": name, "arguments": arguments, "path": path}


async def _answer(tools: Tools, task: Task) -> str | None:
    text, failed = await tools.call(task["tool"], task["arguments"])
    return None if failed else dict(_leaves(text)).get(task["path"])


def _leaves(text: str) -> Iterator[tuple[str, str]]:
    """The short values of an answer by their paths; a text that is no JSON object is one value."""
    try:
        whole = json.loads(text)
    except ValueError:
        whole = None
    todo = [("", whole if isinstance(whole, dict | list) else text)]
    while todo:
        path, value = todo.pop()
        if isinstance(value, dict | list):
            parts = value.items() if isinstance(value, dict) else enumerate(value)
            todo += [(f"{path}.{key}" if path else str(key), one) for key, one in parts]
        elif (shown := value if isinstance(value, str) else json.dumps(value)) and len(shown) <= LONGEST:
            yield path, shown.strip()


def main() -> int:
    """Write tasks to standard output, and what was left out to standard error."""
    parser = argparse.ArgumentParser(description="Write tasks from the list of tools of an MCP server.")
    parser.add_argument("server", help="a command line, or an address")
    parser.add_argument("--values", type=Path, help="JSON: argument → values")
    parser.add_argument("--count", type=int, default=100, help="tasks, at most")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    values = json.loads(given.values.read_text(encoding="utf-8")) if given.values else None
    tasks, left_out = asyncio.run(write_tasks(given.server, given.count, values=values, seed=given.seed))
    for task in tasks:
        print(json.dumps(task, ensure_ascii=False))
    print(f"{len(tasks)} tasks, each solved by its gold call; left out: {dict(left_out)}", file=sys.stderr)
    return int(not tasks)


if __name__ == "__main__":
    sys.exit(main())
