"""Programs of frameworks, trained as they are: a Pydantic AI agent with ``output_type`` and a smolagents
``ToolCallingAgent``, whose every answer has a form, and environments of verifiers and OpenEnv.

    python bench/record.py trained_programs -- make trained-programs      (one: PROGRAMS="smolagents")

Each is trained on CPU by its file in ``examples``, in the environment that holds its framework
(``scripts/environment``). The engine's grammar gives the answers the form that a framework asks for. The
last line is one JSON object: per program its held-out reward before and after (greedy) with their 95 %
intervals, the calls that training made, those captured exactly, and those that the gateway ``refused``
because they were longer than the policy's context, which have no token ids. Exit status 1 if a run fails, the
intervals overlap, or a call was neither refused nor exact.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from each import add_names, each
from trained_commands import better

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS: dict[str, tuple[str, str, str]] = {
    "pydantic_ai": ("programs", "pydantic-ai-slim", "typed_answers/pydantic_ai.yaml"),
    "smolagents": ("smolagents", "smolagents", "typed_answers/smolagents.yaml"),
    "openenv": ("openenv", "openenv", "openenv_environment/cpu.yaml"),
    "verifiers": ("verifiers", "verifiers", "verifiers_environment/cpu.yaml"),
}
"""Program → its environment, the distribution whose version is told, and its file in ``examples``."""
OVER_LENGTH = "left_out/over-length"
"""The step metric that counts the calls which the gateway refused for their length."""
QUIET = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def environment(name: str) -> Path:
    """The interpreter of an environment, made if need be."""
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "environment"), name], stdout=subprocess.PIPE, check=True
    )
    return Path(made.stdout.decode().splitlines()[-1])


def train(name: str) -> dict[str, Any]:
    """Train one program; what its run says. CalledProcessError if it fails."""
    place, package, config = PROGRAMS[name]
    folder = environment(place).parent
    variables = {**os.environ, **QUIET, "PATH": os.pathsep.join([str(folder), os.environ["PATH"]])}
    made = subprocess.run(
        [str(folder / "agl"), "train", "--config", f"examples/{config}"],
        cwd=ROOT,
        env=variables,
        stdout=subprocess.PIPE,
        check=True,
    )
    version = subprocess.run(
        [str(folder / "python"), "-c", f"import importlib.metadata as m; print(m.version({package!r}))"],
        stdout=subprocess.PIPE,
        check=True,
    )
    summary = json.loads(made.stdout.decode().splitlines()[-1])
    steps = (ROOT / "runs" / summary["run_id"] / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return {
        "version": version.stdout.decode().strip(),
        "before": summary["reward_before"],
        "after": summary["reward_after"],
        "ci_before": summary["ci_before"],
        "ci_after": summary["ci_after"],
        "calls": int(summary["calls"]),
        "exact": int(summary["calls_exact"]),
        "refused": refused(steps),
    }


def refused(steps: Iterable[str]) -> int:
    """The calls that were longer than the policy takes, over the lines of a run's ``metrics.jsonl``."""
    return int(sum(json.loads(step)["metrics"].get(OVER_LENGTH, 0) for step in steps))


def sound(one: Mapping[str, Any]) -> bool:
    """Whether the program got better beyond chance, and every call was captured exactly or refused."""
    return better(one) and 0 < one["exact"] == one["calls"] - one["refused"]


def main() -> int:
    """Train the programs asked for (default: all) and print."""
    parser = argparse.ArgumentParser(description="Train programs of frameworks.")
    add_names(parser, "programs", PROGRAMS)
    asked = parser.parse_args().programs or list(PROGRAMS)
    results, failed = each(asked, train)
    unsound = [name for name, one in results.items() if not sound(one)]
    print(json.dumps({"programs": results, "failed": failed, "not_better_or_not_exact": unsound}))
    return 1 if failed or unsound else 0


if __name__ == "__main__":
    sys.exit(main())
