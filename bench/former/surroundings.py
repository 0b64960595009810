"""What the programs find around them: data where they look for it, a scripted model, a server of tasks, a
retriever.

Nothing of a program is changed. It is copied with its folder, and told of all this by environment variables,
by the ports that it names, and by the files that its README asks for.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import deep_werewolf
import pandas as pd
from agl_testing import ScriptedModelServer, tool_call

import agentlightning as agl

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))
SPIDER = ROOT / "examples" / "spider" / "data"
RETRIEVED = "Lyon lies where the Rhone meets the Saone. Paris is the capital of France."


def reply(body: Mapping[str, Any]) -> Any:
    """The scripted model's answer: SQL to a question about a database, a player's decision, a tool's call, or
    ``Paris``.
    """
    if deep_werewolf.RULES in str(body["messages"][0].get("content")):
        return deep_werewolf.player(body)
    tools = {tool["function"]["name"]: tool["function"] for tool in body.get("tools") or ()}
    last = str(body["messages"][-1].get("content"))
    if "generate_response" in tools:
        fields = tools["generate_response"]["parameters"]["properties"]
        given = {name: one["enum"][0] for name, one in fields.items() if "enum" in one}
        return tool_call("generate_response", {"response": "I think so.", **given})
    if "calculate" in tools and body["messages"][-1]["role"] != "tool":
        numbers = re.findall(r"\d+", last) or ["1"]
        return tool_call("calculate", {"expression": "*".join(numbers[:2])})
    if "retrieve" in tools and body["messages"][-1]["role"] != "tool":
        return tool_call("retrieve", {"query": last[:60]})
    if "calculate" in tools or body["messages"][-1]["role"] == "tool":
        return f"### ANSWER: {last} ###" if "retrieve" not in tools else "<answer>Paris</answer>"
    asked = re.search(r"Question: (.*)", last)
    return (
        "Paris" if asked is None else _about_sql(asked[1].strip(), last, str(body["messages"][0]["content"]))
    )


def _about_sql(question: str, text: str, system: str) -> str:
    """A first query that is wrong, a check that says so, and the gold query."""
    wrong = "SELECT 1"
    if "CORRECT" in system:
        return "It selects nothing.\nTHE QUERY IS INCORRECT." if wrong in text else "THE QUERY IS CORRECT."
    again = "previous" in text.lower() or "Feedback" in text
    gold = next((one["query"] for one in questions() if one["question"] == question), wrong)
    return f"```sql\n{gold if again else wrong}\n```"


def questions(count: int = 4) -> list[dict[str, Any]]:
    """The first real questions about databases that lie beside the example."""
    lines = (SPIDER / "dev.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: one[k] for k in ("db_id", "question", "query")} for one in map(json.loads, lines[:count])]


def spider_data(folder: Path) -> None:
    """The files of the public archive: ``dev.parquet`` and two folders of databases, with their schemas."""
    pd.DataFrame(questions()).to_parquet(folder / "dev.parquet")
    for name in {one["db_id"] for one in questions()}:
        for place in ("database", "test_database"):
            inner = folder / place / name
            inner.mkdir(parents=True)
            shutil.copy(SPIDER / "database" / f"{name}.sqlite", inner)
            with sqlite3.connect(inner / f"{name}.sqlite") as database:
                found = database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
            (inner / "schema.sql").write_text(";\n".join(row[0] for row in found), encoding="utf-8")


def uvx(folder: Path) -> Path:
    """A folder for PATH with a ``uvx`` that starts the environment's own distribution."""
    folder.mkdir()
    script = folder / "uvx"
    script.write_text(f'#!/bin/sh\nexec "{Path(sys.executable).parent}/$1"\n', encoding="utf-8")
    script.chmod(0o755)
    return folder


def training(folder: Path, port: int) -> Path:
    """The file of a run that trains the calculator's policy; its runners are elsewhere."""
    load = {"target": "calc_x.datasets:load"}
    description = {
        "agent": {"target": "calc_x.agent:solve", "name": "former", "concurrency": 0, "timeout_seconds": 240},
        "training": {
            "algorithm": "grpo",
            "steps": 1,
            "batch_size": 2,
            "seed": 1,
            "recipe": {"group_size": 4},
        },
        "environment": {
            "train": {**load, "args": {"spec": "generated:train", "limit": 4, "seed": 1}},
            "val": {**load, "args": {"spec": "generated:heldout", "limit": 2, "seed": 1}},
        },
        "backend": {
            "driver": "local",
            "policy": str(ROOT / "examples" / "calc_x" / "policy"),
            "options": {"threads": 1, "engine_threads": 1, "max_len": 1024},
        },
        "store": f"http://127.0.0.1:{port}",
        "output": str(folder / "runs"),
        "pythonpath": [str(ROOT / "examples")],
    }
    file = folder / "run.yaml"
    file.write_text(json.dumps(description), encoding="utf-8")
    return file


@asynccontextmanager
async def retriever(port: int) -> AsyncIterator[None]:
    """An MCP server over SSE with the tool ``retrieve``, in place of one with an index of Wikipedia."""
    import asyncio

    import uvicorn
    from mcp.server.fastmcp import FastMCP

    server = FastMCP("wiki retrieval mcp")

    @server.tool(name="retrieve", description="retrieve relevant chunks from the wikipedia")
    def retrieve(query: str) -> list[dict[str, Any]]:
        return [{"chunk": RETRIEVED, "chunk_id": 0, "distance": 0.5}]

    serving = uvicorn.Server(
        uvicorn.Config(server.sse_app(), host="127.0.0.1", port=port, log_level="warning")
    )
    task = asyncio.create_task(serving.serve())
    try:
        while not serving.started:
            await asyncio.sleep(0.05)
        yield
    finally:
        serving.should_exit = True
        serving.force_exit = True
        await task


class TaskServer:
    """A store that is served at ``port``, with a gateway before the scripted model, as verl's daemon had it:
    the endpoint is called ``main_llm``.
    """

    def __init__(self, folder: Path, port: int, model: ScriptedModelServer) -> None:
        self.store = agl.LightningStoreServer(agl.LightningStore(folder), port=port)
        params = {"model": f"openai/{model.model}", "api_base": model.url, "api_key": "k"}
        self.proxy = agl.LLMProxy(
            store=self.store, model_list=[{"model_name": model.model, "litellm_params": params}]
        )

    async def __aenter__(self) -> TaskServer:
        await self.store.start()
        await self.proxy.start()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self.proxy.stop()
        await self.store.stop()

    async def queue(self, tasks: Sequence[Any], mode: str) -> list[str]:
        """Queue tasks and return the ids of their rollouts."""
        parameters = {"temperature": 1.0 if mode == "train" else 0.0}
        given = {"main_llm": self.proxy.as_resource(sampling_parameters=parameters)}
        update = await self.store.add_resources(given)
        made = [await self.store.enqueue_rollout(one, mode, update.resources_id) for one in tasks]
        return [one.rollout_id for one in made]
