"""MCP servers as the tools of an agent, and tasks that are written from a server's own list of tools.

    agent = agl.Agent("clerk", "Use the tools.", mcp=["uvx mcp-server-time"], grade=mcp.grade)

A server is a command line, which is started for each rollout, so that its state is the rollout's own; or the
address of one that is served over HTTP (``https://…/mcp``), with a session for each rollout.

    python -m agl_examples.bundled.mcp "uvx mcp-server-time" --values values.json --count 200 > tasks.jsonl

A task asks for a value of a tool's answer. The call that gives it, the *gold call*, is executed when the
task is written and once more in another session: a task whose answer is an error, or changes, is left out
and counted. A call that ends its server, or has no answer in time, is an error too, and the next one has a
new session. ``values.json`` names values for arguments (``{"timezone": ["Europe/Berlin", "UTC"]}``); what a
tool's schema names (``enum``, ``examples``, ``default``) is known without.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import shlex
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from agentlightning.types import UsageError
from agl_examples.bundled.task_set import answer_of

Task = dict[str, Any]
INSTALL = "pip install 'mcp>=1.11,<3'"
LONGEST = 120
"""Characters of an answer that a task may ask for."""
SECONDS = 60.0
"""Seconds in which a server begins a session, and answers a call."""
GIVE_UP = 4
"""Calls in a row that end their session, after which no more tasks are written."""


class ServerFailed(UsageError):
    """A server that does not start, does not answer, or ends before its session does."""

    def __init__(self, server: str, what: str) -> None:
        super().__init__(f"MCP server `{server}`: {what}")


class Tools:
    """The tools of one session with a server: ``schemas`` in the form of the OpenAI API."""

    def __init__(self, server: str, session: Any, listed: Sequence[Mapping[str, Any]]) -> None:
        self._server, self._session = server, session
        self.schemas: dict[str, dict[str, Any]] = {one["name"]: _schema(one) for one in listed}

    async def call(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """Return the text that a tool answers, and whether it is an error. Raise :class:`ServerFailed` for a
        call without an answer.
        """
        try:
            async with asyncio.timeout(SECONDS):
                answer = await self._session.call_tool(name, dict(arguments))
        except Exception as error:  # which class it is depends on the version of the library
            raise ServerFailed(self._server, f"the call of {name} failed: {_cause(error)}") from error
        told = answer.model_dump(mode="json", by_alias=True)
        text = "\n".join(one["text"] for one in told["content"] if one["type"] == "text")
        return text, bool(told.get("isError"))


def _schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    about = {"name": tool["name"], "description": tool.get("description") or tool["name"]}
    return {"type": "function", "function": {**about, "parameters": tool["inputSchema"]}}


@asynccontextmanager
async def opened(server: str) -> AsyncIterator[Tools]:
    """Open a session with a server. Raise :class:`.UsageError` if the library mcp is not installed, and
    :class:`ServerFailed` for a server that begins no session, or ends during it.
    """
    try:
        from mcp import ClientSession, StdioServerParameters
        from mcp.client.stdio import stdio_client
        from mcp.client.streamable_http import streamable_http_client
    except ImportError:
        raise UsageError(f"the library mcp is not installed: {INSTALL}") from None
    remote = server.startswith(("http://", "https://"))
    failed = "it cannot be reached" if remote else "its command line cannot be started"
    of_caller: Exception | None = None
    ended = False
    try:
        if remote:
            reached: Any = streamable_http_client(server)
        else:
            command, *arguments = shlex.split(server) or [server]
            reached = stdio_client(StdioServerParameters(command=command, args=arguments))
        async with reached as streams, ClientSession(streams[0], streams[1]) as session:
            failed = "it began no session as a server of MCP does"
            async with asyncio.timeout(SECONDS):
                await session.initialize()
                listed = (await session.list_tools()).model_dump(mode="json", by_alias=True)["tools"]
            failed = "its session ended"
            try:
                yield Tools(server, session, listed)
            except Exception as error:
                of_caller = error
                raise
            ended = True
    except Exception as error:
        # The library's task groups wrap each error, also those of the caller's block.
        if of_caller is not None:
            raise of_caller from of_caller.__cause__
        if not ended:
            look = "Look whether its host serves MCP." if remote else "Run the command to see what it says."
            raise ServerFailed(server, f"{failed}: {_cause(error)}. {look}") from error


def _cause(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return f"there was no answer within {SECONDS:g} s"
    return str(error) or type(error).__name__


# ---------------------------------------------------------------------------------------------- tasks
async def write_tasks(
    server: str, count: int, *, values: Mapping[str, Sequence[Any]] | None = None, seed: int = 0
) -> tuple[list[Task], Counter[str]]:
    """Return at most ``count`` tasks of a server's tools, no two alike, and what was left out by its reason:
    ``no-values`` (tools), ``error``, ``no-answer`` and ``changes`` (calls). ``values``: argument → values.
    """
    chosen, left_out, found = random.Random(seed), Counter[str](), dict[str, Task]()
    todo, failures = 8 * count, 0
    while todo and len(found) < count and failures < GIVE_UP:
        tools = None
        try:
            async with opened(server) as tools:
                ways = {name: _choices(schema, values or {}) for name, schema in tools.schemas.items()}
                left_out["no-values"] = sum(one is None for one in ways.values())
                known = {name: one for name, one in ways.items() if one is not None}
                todo = todo if known else 0
                while todo and len(found) < count:
                    todo -= 1
                    name = chosen.choice(sorted(known))
                    arguments = {key: chosen.choice(list(one)) for key, one in (known[name] or {}).items()}
                    task = await _task(tools, name, arguments, chosen, left_out)
                    failures = 0
                    if task is not None:
                        found.setdefault(task["question"], task)
        except ServerFailed:
            failures += 1
            if tools is None or (failures == GIVE_UP and not found):
                raise
            left_out["error"] += 1
    tasks = list(found.values())
    unsolved = await unsolvable(server, tasks)
    left_out["changes"] = len(unsolved)
    return [task for task in tasks if task not in unsolved], +left_out


async def unsolvable(server: str, tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks whose gold call, executed now in a session of its own, does not give their answer."""
    todo, found = list(tasks), list[Task]()
    while todo:
        tools = None
        try:
            async with opened(server) as tools:
                while todo:
                    right = await _answer(tools, todo[0]) == todo[0]["answer"]
                    found += [] if right else todo[:1]
                    del todo[0]
        except ServerFailed:
            if tools is None:
                raise
            found.append(todo.pop(0))
    return found


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
    values = _values(given.values) if given.values else None
    # What is no message is told by the error that ends the session, without the library's traceback.
    logging.getLogger("mcp.client.stdio").setLevel(logging.CRITICAL)
    tasks, left_out = asyncio.run(write_tasks(given.server, given.count, values=values, seed=given.seed))
    for task in tasks:
        print(json.dumps(task, ensure_ascii=False))
    print(f"{len(tasks)} tasks, each solved by its gold call; left out: {dict(left_out)}", file=sys.stderr)
    return int(not tasks)


def _values(file: Path) -> dict[str, list[Any]]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, list[Any]])
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f'--values {file}: {error}; it is a JSON object of lists: {{"timezone": ["UTC"]}}'
        ) from None


if __name__ == "__main__":
    from agentlightning.cli import run_command

    run_command(lambda: sys.exit(main()))  # SIGTERM acts as Ctrl-C: the sessions are closed, and servers end
