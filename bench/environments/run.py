"""Environments of other projects, run and trained for three steps each: ``make test-environments``.

    python bench/environments/run.py [ENVIRONMENT …]

Each library comes from the registry, in an environment of scripts/environments.toml, and trains the
quickstarts' policy on word problems (reasoning-gym: on sums of its own). A training counts if every rollout
has a reward, every call is exact, and the mean of each step is that of its rollouts. ``harbor-runner`` is
Harbor's own command, which runs the same task folders over our sandbox: the solution and an idle agent earn
what they earn in ours. The last line is one JSON object; ``last_step_scored`` counts the kinds of
environment whose tests of the turn limit pass. Exit status 1 if anything fails; stderr says why.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
from each import Unsound, add_names, each
from short_run import QUIET, ROOT, described, judge, trained
from trained_programs import environment

HERE = Path(__file__).resolve().parent
FOLDERS = 8
"""Task folders of Harbor."""


def train(
    folder: Path,
    name: str | None,
    agent: str,
    target: str,
    /,
    *pythonpath: Path,
    named: tuple[str, ...] = ("reward",),
    learns: bool = True,
    **arguments: Any,
) -> None:
    """Train an environment in the environment ``name``; ``None``: that of this program."""
    python = sys.executable if name is None else str(environment(name))
    words = described(folder, {"target": agent}, {"target": target, "args": arguments}, *pythonpath)
    trained([str(Path(python).parent / "agl"), *words], python, learns=learns)
    asyncio.run(judge(folder / "runs", named=named))


def verifiers(folder: Path) -> None:
    """A taskset of verifiers 0.4, whose tools are servers of its own."""
    place, named = ROOT / "examples" / "verifiers_environment", ("reward", "correct")
    taskset = {"environment": "word_problems_env"}
    train(folder, "verifiers", "agl_verifiers:play", "agl_verifiers:tasks", place, named=named, **taskset)


def reasoning_gym(folder: Path) -> None:
    """A generator of reasoning-gym, with its own grader. The policy has never seen its form of answer."""
    module, sums = "agl_examples.bundled.reasoning_gym", {"generator": "chain_sum", "size": 64}
    train(folder, "verifiers", f"{module}:solver", f"{module}:tasks", learns=False, **sums)


def openenv(folder: Path) -> None:
    """An environment of OpenEnv, whose server the run starts."""
    asked = {
        "environment": "word_problems_server:app",
        "instructions": "Use the calculator.\nTools, called as JSON within <tool_call></tool_call>:\n"
        "calculate(expression)",
        "max_steps": 4,
        "count": 64,
    }
    named = ("reward", "step", "steps", "refused", "done")
    place = ROOT / "examples" / "openenv_environment"
    train(folder, "openenv", "agl_openenv:play", "agl_openenv:tasks", place, named=named, **asked)


def harbor(folder: Path) -> None:
    """Task folders of Harbor, each attempt in a sandbox of its own."""
    problems().write(folder / "tasks", FOLDERS)
    place = {"folder": str(folder / "tasks")}
    train(folder, None, "harbor_problems:solve", "agl_programs.harbor:tasks", HERE, **place)


def harbor_runner(folder: Path) -> None:
    """Harbor's own runner over our sandbox, and ours, on the same folders."""
    problems().write(folder / "tasks", 2)
    python = newer()
    made = subprocess.run(
        [python, str(ROOT / "scripts" / "environment"), "harbor"], stdout=subprocess.PIPE, check=True
    )
    own = Path(made.stdout.decode().splitlines()[-1])
    for agent in ("oracle", "nop"):
        theirs, ours = their_rewards(own, agent, folder), asyncio.run(our_rewards(agent, folder / "tasks"))
        if theirs != ours or len(ours) != 2 or {*ours.values()} != {float(agent == "oracle")}:
            raise Unsound(f"{agent}: Harbor gives {theirs}, we give {ours}")


def their_rewards(python: Path, agent: str, folder: Path) -> dict[str, float]:
    """The rewards of ``harbor run``, by task."""
    sources = (
        ROOT / "core" / "src",
        ROOT / "plugins" / "programs" / "src",
        ROOT / "plugins" / "cluster" / "src",
    )
    variables = {
        **os.environ,
        **QUIET,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PYTHONPATH": os.pathsep.join(map(str, (HERE, *sources))),
    }
    words = ["run", "-p", str(folder / "tasks"), "-a", agent, "-e", "harbor_backend:Sandboxed", "-n", "1"]
    jobs = folder / f"jobs-{agent}"
    done = subprocess.run(
        [str(python.parent / "harbor"), *words, "-o", str(jobs)], env=variables, stdout=sys.stderr
    )
    if done.returncode:
        raise Unsound(f"harbor run ended with {done.returncode}")
    ended = [json.loads(path.read_text(encoding="utf-8")) for path in jobs.glob("*/*/result.json")]
    return {one["task_name"].rpartition("/")[2]: one["verifier_result"]["rewards"]["reward"] for one in ended}


async def our_rewards(agent: str, folder: Path) -> dict[str, float]:
    """The rewards of our attempts, by task."""
    from agl_programs.harbor import tasks, trial

    found = {}
    for task in tasks(str(folder)):
        async with trial(task) as one:
            if agent == "oracle":
                await one.solve()
            found[task["name"]] = (await one.grade())["reward"]
    return found


def mcp_server(folder: Path) -> None:
    """A server of MCP: tasks of its tools, each solved by its gold call, and an agent that uses them.
    The policy has never seen them.
    """
    from agl_examples.bundled import mcp

    server = f"{environment('mcp')} -m mcp_server_time --local-timezone UTC"
    values = {
        "source_timezone": ["Europe/Berlin", "Asia/Tokyo", "UTC"],
        "target_timezone": ["America/New_York", "Asia/Kolkata", "Australia/Sydney"],
        "time": ["09:30", "14:00", "23:45", "25:00"],
        "timezone": ["UTC", "Asia/Tokyo"],
    }
    tasks, left_out = asyncio.run(mcp.write_tasks(server, 24, values=values))
    if len(tasks) < 12 or not left_out["error"] or asyncio.run(mcp.unsolvable(server, tasks)):
        raise Unsound(f"{len(tasks)} tasks, left out {dict(left_out)}, or a gold call that does not answer")
    print(f"{len(tasks)} tasks; left out: {dict(left_out)}", file=sys.stderr)
    place = folder / "tasks.jsonl"
    place.write_text("".join(f"{json.dumps(task)}\n" for task in tasks), encoding="utf-8")
    words = described(folder, {"target": "mcp_clerk:clerk"}, {"file": str(place)}, HERE)
    os.environ["MCP_SERVER"] = server
    trained([str(Path(sys.executable).parent / "agl"), *words], sys.executable, learns=False)
    asyncio.run(judge(folder / "runs"))


def problems() -> Any:
    """The module with the task folders."""
    sys.path.insert(1, str(ROOT / "examples"))
    import harbor_problems

    return harbor_problems


def newer() -> str:
    """A Python that Harbor runs on: 3.12 or later, on the path or of pyenv."""
    known = [shutil.which(name) for name in ("python3.12", "python3.13")]
    pyenv = Path.home() / ".pyenv" / "versions"
    for path in [*filter(None, known), *map(str, sorted(pyenv.glob("3.1[2-9]*/bin/python")))]:
        asked = subprocess.run(
            [path, "-c", "import sys, venv; print(sys.version_info >= (3, 12))"], capture_output=True
        )
        if asked.stdout.strip() == b"True":
            return path
    raise Unsound("Harbor needs Python 3.12 or later, and there is none on the path")


ENVIRONMENTS: dict[str, Callable[[Path], None]] = {
    "harbor": harbor,
    "harbor-runner": harbor_runner,
    "openenv": openenv,
    "verifiers": verifiers,
    "reasoning-gym": reasoning_gym,
    "mcp": mcp_server,
}
LIMITS = {
    "harbor": (None, "plugins/programs/tests/test_harbor.py"),
    "openenv": ("openenv", "plugins/openenv/tests"),
    "verifiers": ("verifiers", "plugins/verifiers/tests"),
    "reasoning-gym": ("verifiers", "plugins/examples/tests/bundled/test_reasoning_gym.py"),
}
"""Kind of environment → where its tests run, and the tests, of which those of the turn limit are chosen."""


def scored(name: str) -> None:
    """Check that the last step that the turns allow is scored: tests of the contract pass."""
    place, tests = LIMITS[name]
    python = sys.executable if place is None else str(environment(place))
    variables = {**os.environ, "PYTHONPATH": f".{os.pathsep}tests"}
    words = ["-m", "pytest", "-q", "-m", "", "-p", "no:randomly", "-k", "TurnLimit", tests]
    done = subprocess.run([python, *words], cwd=ROOT, env=variables, stdout=subprocess.PIPE)
    sys.stderr.buffer.write(done.stdout)
    last = done.stdout.decode().strip().splitlines()[-1:]
    if done.returncode or "passed" not in "".join(last):
        raise Unsound("the last step that its turns allow is not scored")


def main() -> int:
    """Run the environments asked for (default: all) and print."""
    parser = argparse.ArgumentParser(description="Run and train environments of other projects.")
    add_names(parser, "environments", ENVIRONMENTS)
    asked = parser.parse_args().environments or list(ENVIRONMENTS)

    def tried(name: str) -> None:
        with tempfile.TemporaryDirectory(prefix="environment-") as folder:
            ENVIRONMENTS[name](Path(folder))

    sound, failed = each(asked, tried)
    kept, lost = each([name for name in asked if name in LIMITS], scored)
    print(json.dumps({"environments": len(asked), "ok": len(sound), "last_step_scored": len(kept)}))
    return int(bool(failed or lost))


if __name__ == "__main__":
    sys.exit(main())
