"""Programs in JavaScript that import nothing of ours: ``openai``, the Vercel AI SDK, OpenAI's agents.

    python bench/programs/node.py [PROGRAM …]        (or: make test-node, which installs their packages)

Each program of ``examples/node_programs`` runs twice before a scripted model server. As a command
(``agent.command``) its calls go through the attempt's relay, a second reader, and must be ``exact``. Under
``agl run`` nothing in the process is patched, so its calls are ``gateway-only``, and their token ids are
compared with the server's log here. The agents' names and tags come by ``x-agl-agent`` and ``baggage``. The
last line is one JSON object; exit status 1 if a call was not so, or not of the agent that is expected.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from script import Script
from sources import ROOT

sys.path.insert(0, str(ROOT / "tests"))

from agl_testing import ScriptedModelServer

from agentlightning.types import Record
from plugins.programs.tests.commands.running import bench
from plugins.programs.tests.running import run_command

FOLDER = ROOT / "examples" / "node_programs"
AGENTS: dict[str, dict[str, int]] = {
    "openai_tools": {"forecaster": 2},
    "openai_stream": {"writer": 1, "critic": 1},
    "openai_responses": {"guide": 2},
    "openai_typed": {"secretary": 1},
    "ai_tools": {"forecaster": 2},
    "ai_stream": {"poet": 1},
    "ai_typed": {"cook": 1},
    "ai_agents": {"editor": 2, "researcher": 2},
    "agents_handoff": {"desk": 3},
}
"""Program → the agents that it names, and their calls."""
TAGS: dict[str, dict[str, str]] = {"openai_tools": {"phase": "day"}, "ai_stream": {"phase": "night"}}
"""Programs that send further tags, by ``baggage``."""
SECONDS = 180.0


async def as_command(name: str, words: Sequence[str]) -> dict[str, Any]:
    """Run a program as an agent's command; what its record says."""
    async with ScriptedModelServer(Script().reply) as server, bench(server) as one:
        ran = await one.run(list(words), timeout=SECONDS)
        status = ran.command.get("agentlightning.exit_code", ran.rollout.status)
        return found(name, ran.record, ran.kinds, server, str(status))


async def under_agl_run(name: str, words: Sequence[str]) -> dict[str, Any]:
    """Run a program as ``agl run`` does; what its record says."""
    with tempfile.TemporaryDirectory() as folder:
        async with ScriptedModelServer(Script().reply) as server:
            ran = await run_command(Path(folder), list(words), server, timeout=SECONDS)
            (record,) = ran.records
            return found(name, record, ran.kinds, server, str(ran.summary.exit_codes))


def found(
    name: str, record: Record, kinds: Sequence[str], server: ScriptedModelServer, status: str
) -> dict[str, Any]:
    """The figures of one run: calls by verdict, those whose ids equal the server's log, and agents' names."""
    log = Counter((tuple(e.prompt_ids), tuple(a.ids)) for e in server.answered() for a in e.answers)
    recorded = Counter(
        (tuple(call.prompt_ids or ()), tuple(call.response_ids or ())) for call in record.calls
    )
    agents = Counter(str(call.tags.get("agent", "")) for call in record.calls)
    wanted = TAGS.get(name, {})
    return {
        "requests": len(server.log),
        "equal": sum((log & recorded).values()),
        "verdicts": dict(Counter(kinds)),
        "agents": dict(agents),
        "named": sum(n for agent, n in agents.items() if agent in AGENTS[name]),
        "tagged": all(wanted.items() <= call.tags.items() for call in record.calls),
        "status": status,
    }


def sound(name: str, one: Mapping[str, Any], verdict: str) -> bool:
    """Whether every request was recorded with the engine's ids, that verdict, and its names and tags."""
    n = one["requests"]
    same = one["equal"] == one["named"] == n and one["verdicts"] == {verdict: n}
    return bool(n and same and one["agents"] == AGENTS[name] and one["tagged"])


async def run(names: Sequence[str], node: str) -> dict[str, Any]:
    """Run the programs, one after the other; the object of the last line."""
    commands, runs = {}, {}
    for name in names:
        words = [node, str(FOLDER / f"{name}.mjs")]
        commands[name] = await as_command(name, words)
        runs[name] = await under_agl_run(name, words)
        print(json.dumps({name: [commands[name], runs[name]]}), file=sys.stderr, flush=True)
    wrong = [f"{name} as a command" for name in names if not sound(name, commands[name], "exact")]
    wrong += [f"{name} under agl run" for name in names if not sound(name, runs[name], "gateway-only")]
    return {
        "programs": len(names),
        "requests": sum(one["requests"] for one in commands.values()),
        "exact": sum(one["verdicts"].get("exact", 0) for one in commands.values()),
        "named": sum(one["named"] for one in commands.values()),
        "under_agl_run": {
            "requests": sum(one["requests"] for one in runs.values()),
            "equal_to_the_engine": sum(one["equal"] for one in runs.values()),
            "named": sum(one["named"] for one in runs.values()),
        },
        "not_sound": wrong,
        "of": {name: {"as_command": commands[name], "under_agl_run": runs[name]} for name in names},
    }


def main() -> int:
    """Run the programs asked for (default: all) and print the figures."""
    parser = argparse.ArgumentParser(description="Run programs in JavaScript.")
    parser.add_argument("programs", nargs="*", help=f"of {', '.join(AGENTS)}; default: all")
    names = parser.parse_args().programs or list(AGENTS)
    if unknown := sorted(set(names) - set(AGENTS)):
        parser.error(f"unknown: {', '.join(unknown)}; the programs are {', '.join(AGENTS)}")
    node = shutil.which("node")
    if node is None or not (FOLDER / "node_modules").is_dir():
        parser.error("Node 20 or later and the programs' packages are needed: scripts/node_clients")
    told = asyncio.run(run(names, node))
    print(json.dumps(told))
    return 1 if told["not_sound"] else 0


if __name__ == "__main__":
    sys.exit(main())
