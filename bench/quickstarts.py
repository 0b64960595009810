"""Every quickstart, as a stranger would run it: train the agent of each framework for a few steps on CPU.

    python bench/quickstarts.py [FRAMEWORK …] [--write]        (or: make quickstarts)

Each script runs as it stands, in the environment that holds its framework (``scripts/environment``). The last
line is one JSON object: per framework its version, held-out reward before and after (greedy), mean training
reward of the first and last three steps, calls made, captured exactly, and refused because the prompt is over
the model's context length, and the seconds that it took at
which load of the machine. ``--write`` keeps the figures of the frameworks that were run in
``bench/results/quickstarts.json``, if none failed. Exit status 1 if a script fails, a call is not exact, or
an agent did not get better on the held-out problems.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from each import add_names, each
from record import RESULTS, machine
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
FRAMEWORKS: dict[str, tuple[str, str]] = {
    "openai": ("latest", "openai"),
    "langchain": ("latest", "langchain"),
    "langgraph": ("latest", "langgraph"),
    "autogen": ("latest", "autogen-agentchat"),
    "crewai": ("crewai", "crewai"),
    "dspy": ("dspy", "dspy"),
    "google-adk": ("adk", "google-adk"),
    "openai-agents": ("latest", "openai-agents"),
    "agentscope": ("latest", "agentscope"),
    "agent-framework": ("latest", "agent-framework-core"),
    "pydantic-ai": ("latest", "pydantic-ai-slim"),
    "llama-index": ("llamaindex", "llama-index-core"),
    "smolagents": ("smolagents", "smolagents"),
    "strands-agents": ("strands", "strands-agents"),
}
"""Framework → its environment, and the distribution whose version is told."""
EDGE = 3
"""Steps averaged at either end of the training."""


def environment(name: str) -> Path:
    """The interpreter of an environment, made if need be."""
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "environment"), name], stdout=subprocess.PIPE, check=True
    )
    return Path(made.stdout.decode().splitlines()[-1])


def quickstart(name: str, python: Path, package: str) -> dict[str, Any]:
    """Run one script; what its run says. CalledProcessError if it fails."""
    known = set((ROOT / "runs").glob("*")) if (ROOT / "runs").exists() else set()
    script = ROOT / "examples" / f"quickstart_{name.replace('-', '_')}.py"
    begin = time.perf_counter()
    quiet = {
        "CREWAI_DISABLE_TELEMETRY": "true",
        "CREWAI_TRACING_ENABLED": "false",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    subprocess.run([str(python), str(script)], cwd=ROOT, env=os.environ | quiet, check=True)
    seconds = time.perf_counter() - begin
    (folder,) = set((ROOT / "runs").glob("*")) - known
    return {**figures(folder, python, package), "seconds": round(seconds, 1), "load_average": load()}


def load() -> float:
    """The machine's load average of the last five minutes, which tells what ``seconds`` are worth."""
    return round(os.getloadavg()[1], 1)


def figures(folder: Path, python: Path, package: str) -> dict[str, Any]:
    """What the run in ``folder`` says, with the version of ``package`` in the environment of ``python``."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    steps = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    rewards = [step["metrics"]["reward_mean"] for step in steps]
    version = subprocess.run(
        [str(python), "-c", f"import importlib.metadata as m; print(m.version({package!r}))"],
        stdout=subprocess.PIPE,
        check=True,
    )
    totals, too_long = summary["totals"], summary["accounts"].get("over-length", {}).get("refused", 0)
    return {
        "version": version.stdout.decode().strip(),
        "steps": summary["steps"],
        "before": summary["reward_before"],
        "after": summary["reward_after"],
        "reward_first": round(sum(rewards[:EDGE]) / EDGE, 4),
        "reward_last": round(sum(rewards[-EDGE:]) / EDGE, 4),
        "calls": int(totals["calls"]),
        "calls_exact": int(totals["calls_exact"]),
        "calls_refused": min(int(totals.get("calls_no_ids", 0)), too_long),
    }


def kept(results: dict[str, dict[str, Any]], record: Path) -> dict[str, Any]:
    """The figures beside those that ``record`` has of frameworks that were not run."""
    before = json.loads(record.read_text(encoding="utf-8"))["frameworks"] if record.exists() else {}
    found = {**before, **results}
    return {
        "command": "python bench/quickstarts.py --write",
        "frameworks": {name: found[name] for name in FRAMEWORKS if name in found},
        "failed": [],
        "not_better_or_not_exact": [name for name, one in found.items() if worse(one)],
        "machine": machine(),
    }


def worse(one: dict[str, Any]) -> bool:
    """Whether an agent did not get better on held-out problems, or an answered call was not exact."""
    answered = one["calls"] - one.get("calls_refused", 0)
    return bool(one["calls_exact"] != answered or one["after"] <= one["before"])


def shown(results: dict[str, dict[str, Any]]) -> Table:
    """What came out, for people."""
    table = Table(title="quickstarts: a few steps of training on CPU")
    for heading in ("framework", "version", "held-out, greedy", "training reward", "calls exact", "seconds"):
        table.add_column(heading)
    for name, one in results.items():
        table.add_row(
            name,
            one["version"],
            f"{one['before']:.3f} → {one['after']:.3f}",
            f"{one['reward_first']:.3f} → {one['reward_last']:.3f}",
            f"{one['calls_exact']:,} of {one['calls']:,}",
            f"{one['seconds']:.0f}",
        )
    return table


def main() -> int:
    """Run the quickstarts asked for (default: all), print, and write if asked to."""
    parser = argparse.ArgumentParser(description="Run the quickstarts.")
    add_names(parser, "frameworks", FRAMEWORKS)
    parser.add_argument("--write", action="store_true", help="keep the figures in bench/results")
    given = parser.parse_args()
    asked = given.frameworks or list(FRAMEWORKS)
    interpreters = {name: environment(name) for name in sorted({FRAMEWORKS[f][0] for f in asked})}

    def train(name: str) -> dict[str, Any]:
        place, package = FRAMEWORKS[name]
        return quickstart(name, interpreters[place], package)

    results, failed = each(asked, train)
    Console(stderr=True, width=110).print(shown(results))
    unsound = [name for name, one in results.items() if worse(one)]
    told = {"frameworks": results, "failed": failed, "not_better_or_not_exact": unsound}
    if given.write and not failed:
        record = RESULTS / "quickstarts.json"
        record.write_text(json.dumps(kept(results, record), indent=2) + "\n", encoding="utf-8")
    print(json.dumps(told))
    return 1 if failed or unsound else 0


if __name__ == "__main__":
    sys.exit(main())
