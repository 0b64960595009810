"""Programs of other people, run as they are by ``agl run``, before a scripted model server.

    python bench/programs/run.py [PROGRAM …] [--write]        (or: make programs PROGRAMS="hello_world …")

``programs.toml`` says where each comes from: the examples folder of a framework's source package, fetched
here, or a file of this repository, written in the shape of a framework's own page; and the environment
that it runs in. Those in JavaScript run as commands (``node.py``). The last line is one JSON object:
``requests`` that the programs made, those recorded ``exact``, those whose agent is ``named``, and those
``refused``, with the reason of each. ``--write`` keeps it in ``bench/results/programs.json``, beside what is
there of the programs that were not run. Exit status 1 if an answered request is not exact, or a program did
not end as the manifest says.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from agl_testing import ScriptedModelServer
from figures import kept, totals
from record import RESULTS
from script import Script
from sources import ROOT, source

HERE = Path(__file__).resolve().parent
QUIET = {
    "EXAMPLES_INTERACTIVE_MODE": "auto",
    "LOGFIRE_IGNORE_NO_CONFIG": "1",
    "OPENAI_AGENTS_DISABLE_TRACING": "0",
    "PYDANTIC_AI_MODEL": "openai-chat:gpt-5",
    "CREWAI_DISABLE_TELEMETRY": "true",
}
NOTHING: dict[str, Any] = {"refused": {}, "verdicts": {}, "agents": {}, "unsure": {}, "counts": {}}
NOTHING |= {"calls": 0, "warnings": ["agl run gave no summary"]}
DISTRIBUTIONS = {
    "agent-framework": "agent-framework-core",
    "autogen": "autogen-agentchat",
    "autogen-core": "autogen-core",
    "pydantic-ai": "pydantic-ai-slim",
}
"""Framework → the distribution whose version is told, where it has another name."""
NODE = "node"
"""The environment of programs in JavaScript (``scripts/node_clients``)."""
AT_ONCE = 4
SECONDS = float(os.environ.get("AGL_PROGRAM_SECONDS", "180"))


@dataclass(frozen=True)
class Program:
    """One entry of the manifest. ``package`` ships ``path``; without one, ``path`` is of this repository."""

    name: str
    framework: str
    path: str
    package: str = ""
    environment: str = "programs"
    """Of ``scripts/environments.toml``, or ``node``."""
    shape: str = ""
    """What it is written in the shape of, where no package ships it."""
    calls: list[str] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    asked: Mapping[str, list[str]] = field(default_factory=dict)
    answers: Mapping[str, str] = field(default_factory=dict)
    says: str = "Paris"
    types: str = ""
    """Standard input."""
    env: Mapping[str, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    """Reasons for which the gateway refuses requests of it."""
    why: str = ""
    """What the refused requests ask for."""

    @property
    def origin(self) -> str:
        """Where it comes from."""
        return f"{self.package}:{self.path}" if self.package else f"written here in the shape of {self.shape}"


def manifest() -> list[Program]:
    """All programs."""
    read = tomllib.loads((HERE / "programs.toml").read_text(encoding="utf-8"))
    return [Program(**entry) for entry in read["program"]]


@cache
def environment(name: str) -> Path:
    """The interpreter of an environment, made if need be; of ``node``, the folder with the packages."""
    if name == NODE:
        script = [str(ROOT / "scripts" / "node_clients")]
        return Path(subprocess.run(script, stdout=subprocess.PIPE, check=True).stdout.decode().strip())
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "environment"), name], stdout=subprocess.PIPE, check=True
    )
    return Path(made.stdout.decode().splitlines()[-1])


@cache
def version(framework: str, place: str) -> str:
    """The version of a framework in an environment."""
    if place == NODE:
        package = environment(place) / "node_modules" / framework.partition(" ")[0] / "package.json"
        return str(json.loads(package.read_text(encoding="utf-8"))["version"])
    asked = f"import importlib.metadata as m; print(m.version({DISTRIBUTIONS.get(framework, framework)!r}))"
    found = subprocess.run([str(environment(place)), "-c", asked], stdout=subprocess.PIPE, check=True)
    return found.stdout.decode().strip()


def command(program: Program, folder: Path, python: str) -> tuple[list[str], Path]:
    """How the program is started, and where: packages' examples in a copy of their folder."""
    if not program.package:
        return [python, str(ROOT / program.path)], folder
    whole = source(program.package)
    top = Path(program.path).parts[0]
    shutil.copytree(whole / top, folder / top)
    module = program.path.removesuffix(".py").replace("/", ".")
    if (whole / top / "__init__.py").exists():
        return [python, "-m", module], folder
    return [python, program.path], folder


def run(program: Program) -> dict[str, Any]:
    """Run one program; what ``agl run`` recorded, and how it ended."""
    if program.environment == NODE:
        return run_node(program)
    script = Script(
        program.calls, program.arguments, program.says, program.values, program.asked, program.answers
    )
    python = environment(program.environment)
    with tempfile.TemporaryDirectory() as folder, ScriptedModelServer(script.reply) as server:
        words, place = command(program, Path(folder), str(python))
        options = ["--upstream", server.url, "--model", server.model, "--json", "--timeout", str(SECONDS)]
        done = subprocess.run(
            [str(python.parent / "agl"), "run", *options, "--output", f"{folder}/runs", "--", *words],
            cwd=place,
            env={**os.environ, **QUIET, **program.env, "PYTHONPATH": ""},
            input=program.types.encode(),
            capture_output=True,
        )
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    try:
        summary = json.loads(lines[-1])
    except (ValueError, IndexError):  # counted as not sound, with what it said
        summary = NOTHING
    return {"status": done.returncode, "summary": summary, "said": lines[:-1][-12:]}


def run_node(program: Program) -> dict[str, Any]:
    """Run a program in JavaScript as an agent's command, where every call is read a second time."""
    from node import as_command

    node = shutil.which("node") or "node"
    ran = asyncio.run(as_command(Path(program.path).stem, [node, str(ROOT / program.path)]))
    summary = {**NOTHING, "calls": ran["requests"], "verdicts": ran["verdicts"], "agents": ran["agents"]}
    ended = ran["status"] in ("0", "succeeded")
    return {"status": 0 if ended else 1, "summary": {**summary, "warnings": []}, "said": []}


def judged(program: Program, ran: dict[str, Any]) -> dict[str, Any]:
    """The figures of one program, and whether it did as the manifest says."""
    summary = ran["summary"]
    refused = summary["refused"]
    failed = sum(n for reason, n in refused.items() if reason.startswith("HTTP"))
    answered = summary["calls"] - failed
    exact = summary["verdicts"].get("exact", 0)
    named = sum(n for agent, n in summary["agents"].items() if agent != "unknown")
    ended = ran["status"] == 0 or bool(program.refused)
    return {
        "framework": program.framework,
        "version": version(program.framework, program.environment),
        "origin": program.origin,
        "requests": answered + sum(refused.values()),
        "exact": exact,
        "named": named,
        "refused": refused,
        "why": program.why,
        "agents": summary["agents"],
        "unsure": summary["unsure"],
        "past": summary["counts"].get("calls-past-the-gateway", 0),
        "status": ran["status"],
        "sound": ended
        and exact == answered
        and sorted(refused) == sorted(program.refused)
        and answered + sum(refused.values()) > 0
        and not summary["counts"].get("calls-past-the-gateway"),
    }


def main() -> int:
    """Run the programs asked for (default: all) and print the figures."""
    parser = argparse.ArgumentParser(description="Run programs of other people.")
    parser.add_argument("programs", nargs="*", help="names in programs.toml; default: all")
    parser.add_argument("--write", action="store_true", help="keep the figures in bench/results")
    given = parser.parse_args()
    known = {program.name: program for program in manifest()}
    if unknown := sorted(set(given.programs) - set(known)):
        parser.error(f"unknown: {', '.join(unknown)}; the programs are {', '.join(known)}")
    chosen = [known[name] for name in given.programs or known]
    for package in sorted({program.package for program in chosen} - {""}):
        source(package)
    for name in sorted({program.environment for program in chosen}):
        environment(name)
    found: dict[str, dict[str, Any]] = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for program, ran in zip(chosen, pool.map(run, chosen), strict=True):
            found[program.name] = one = judged(program, ran)
            print(json.dumps({program.name: one}), file=sys.stderr, flush=True)
            if not one["sound"]:
                print(*ran["said"], ran["summary"]["warnings"], sep="\n  ", file=sys.stderr, flush=True)
    told = totals(found)
    if given.write:
        record = RESULTS / "programs.json"
        record.write_text(json.dumps(kept(found, record, list(known)), indent=2) + "\n", encoding="utf-8")
    print(json.dumps(told))
    return 1 if told["not_sound"] else 0


if __name__ == "__main__":
    sys.exit(main())
