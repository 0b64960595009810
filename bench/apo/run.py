"""Prompt searches with a critic and an editor that are scripted, one of them killed in the middle.

    make apo                            # all
    make apo TASKS="room_selector"      # some: room_selector, question_kinds, alternate

``room_selector``: the agent's model is scripted too, and obeys its prompt to the letter. Its search is killed
with SIGKILL while it runs, and goes on. ``question_kinds``: the agent's model is SmolLM2-135M, fetched on
first use; only its own answers decide which prompt is better. ``alternate``: weights, prompt, or both. The
last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from agl_testing import ScriptedModelServer

import agentlightning as agl
from agentlightning.store.pages import pages
from question_kinds import scripted as kinds
from room_selector import scripted as rooms

HERE = Path(__file__).resolve().parent
KILL_AFTER = 150
"""Requests to the agent's model after which the search is killed."""
TASKS = ("room_selector", "question_kinds", "alternate")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


async def search(*args: str, kill: ScriptedModelServer | None = None) -> dict[str, Any] | None:
    """Run a search in a process of its own and return its summary; ``None`` if it was killed.

    ``kill``: kill it with SIGKILL once this server has answered ``KILL_AFTER`` requests.
    """
    command = [sys.executable, str(HERE / "search.py"), *args]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    reading = asyncio.ensure_future(process.communicate())
    while not reading.done():
        if kill is not None and len(kill.log) >= KILL_AFTER:
            process.kill()
            break
        await asyncio.sleep(0.01)
    out, _ = await reading
    if kill is not None and process.returncode == -9:
        return None
    if process.returncode:
        raise SystemExit(f"{args[0]}: the search ended with status {process.returncode}")
    summary: dict[str, Any] = json.loads(out.decode().splitlines()[-1])
    return summary


async def room_selector(folder: Path) -> tuple[dict[str, Any], bool]:
    """Search, be killed, go on; return the figures, and whether all went on as it must."""
    model = ScriptedModelServer(rooms.obedient, model="scripted")
    helper = ScriptedModelServer(rooms.helper, model="scripted")
    async with model, helper:
        where = (str(folder), helper.url, model.url)
        if await search("room_selector", *where, kill=model) is not None:
            raise SystemExit("the search ended before it was killed")
        killed_at, asked = len(model.log), len(helper.log)
        say(f"killed with SIGKILL after {killed_at} calls of the agent and {asked} of critic and editor")
        summary = await search("room_selector", *where, "--resume")
    assert summary is not None
    twice = await scored_twice(folder)
    reused = summary["reused"]
    say(f"went on: {reused} were there already, {twice} tasks were scored twice")
    return figures(summary), twice == 0 and reused["rollouts"] > 0 and reused["requests"] > 0


async def scored_twice(folder: Path) -> int:
    """Return how many pairs of a candidate and a task have more than one rollout."""
    store = agl.open_store(folder / "search" / "store.sqlite", read_only=True)
    try:
        found: Counter[tuple[str, str, str | None]] = Counter()
        async for page in pages(store.query_rollouts, run_id="search"):
            for one in page:
                if "candidate" in one.metadata:
                    found[one.metadata["candidate"], one.metadata["split"], one.task_id] += 1
        return sum(n > 1 for n in found.values())
    finally:
        await store.close()


async def question_kinds(folder: Path, extra: list[str]) -> dict[str, Any]:
    """Search the prompt of SmolLM2-135M and return the figures."""
    async with ScriptedModelServer(kinds.helper, model="scripted") as helper:
        summary = await search("question_kinds", str(folder), helper.url, *extra)
    assert summary is not None
    return figures(summary)


def figures(summary: dict[str, Any]) -> dict[str, Any]:
    """Return what the command prints of a search."""
    spent = summary["spent"]
    return {
        "before": summary["reward_before"],
        "after": summary["reward_after"],
        "ci_before": summary["ci_before"],
        "ci_after": summary["ci_after"],
        "gain": summary["gain"],
        "ci_gain": summary["ci_gain"],
        "held_out": summary["eval_tasks"],
        "calls": spent["calls"],
        "tokens": spent["prompt_tokens"] + spent["completion_tokens"],
        "calls_by_role": {role: account["calls"] for role, account in spent["by_role"].items()},
        "candidates": summary["candidates"],
        "failures": summary["failures"],
        "prompt": summary["prompts"],
    }


async def run(names: list[str], extra: list[str]) -> dict[str, Any]:
    """Run the named tasks."""
    found: dict[str, Any] = {"tasks": {}}
    with tempfile.TemporaryDirectory(prefix="agl-apo-") as scratch:
        for name in names:
            say(f"--- {name}")
            folder = Path(scratch) / name
            if name == "room_selector":
                found["tasks"][name], found["resumed"] = await room_selector(folder)
            elif name == "question_kinds":
                found["tasks"][name] = await question_kinds(folder, extra)
            else:
                from alternate import ablation

                found["alternate"] = await asyncio.to_thread(ablation, folder)
            say(json.dumps(found["tasks"].get(name, found.get(name))))
    return found


def main() -> int:
    """Run, print one line, and fail where a search did not go on as it must or made the agent worse."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*")
    args, extra = parser.parse_known_args()
    if unknown := set(args.tasks) - set(TASKS):
        parser.error(f"unknown task {sorted(unknown)[0]!r}: choose from {', '.join(TASKS)}")
    found = asyncio.run(run(args.tasks or list(TASKS), extra))
    print(json.dumps(found))
    worse = [n for n, one in found["tasks"].items() if not (one["after"] or 0) > (one["before"] or 0)]
    for name in worse:
        say(f"{name}: the search found no prompt that is better on the held-out tasks")
    return 1 if worse or found.get("resumed") is False else 0


if __name__ == "__main__":
    sys.exit(main())
