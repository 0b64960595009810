"""Doors that other projects have for their users, opened here: ``make test-doors``.

    python bench/doors/run.py [DOOR …]        (recorded: python bench/record.py doors -- make test-doors)

A door is a program for another project, which is trained here for three steps of the quickstarts' policy:

- ``python``, ``shell``, ``javascript``: programs that know Agent Lightning 1.0's three variables alone, and
  post their reward to its event URL;
- ``agent-framework-lab``: Agent Framework's tracer for Agent Lightning 0.3, unchanged, which calls ours;
- ``agentscope-tuner``: a workflow, a judge and a dataset of AgentScope's tuner; one import differs;
- ``tracers-of-0.3``: each public method of the tracers of 0.3 is there;
- ``names-of-1.0``: each module and name of 1.0 is there, or is refused with what to use instead.

A training counts if every rollout has a reward, every call is exact, and the mean reward of each step is that
of its rollouts (for programs: of what they posted). The last line is one JSON object. Exit status 1 if a door
stays shut; stderr says why.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
from trained_programs import QUIET, ROOT, environment

from agentlightning.credit import resolve
from agentlightning.credit.verdicts import verdicts
from agentlightning.semconv import COMMAND_SPAN
from agentlightning.store import SQLiteStore
from agentlightning.store.pages import pages

HERE = Path(__file__).resolve().parent
POLICY = ROOT / "examples" / "quickstart" / "policy"
STEPS, TASKS, GROUP = 3, 4, 4
SHELF = {"0.3": "agentlightning==0.3.0", "1.0": "agentlightning==1.0.2"}
"""The wheels whose names are looked for; they are read, and never imported."""
POSTED = "posted "
TRY = """
import importlib, json, sys
found = {}
for module, name in json.load(sys.stdin):
    try:
        if name:
            exec(f"from {module} import {name}", {})
        else:
            importlib.import_module(module)
    except ImportError as error:
        if " is not here: " not in str(error):
            found[f"{module} {name}"] = str(error)
print(json.dumps(found))
"""
METHODS = """
import inspect, json, sys
import agentlightning as agl
found = []
for kind, method, parameters in json.load(sys.stdin):
    mine = getattr(getattr(agl, kind), method, None)
    if mine is None:
        found.append(f"{kind}.{method} is missing")
        continue
    known = inspect.signature(mine).parameters
    if not any(one.kind is one.VAR_KEYWORD for one in known.values()):
        found += [f"{kind}.{method} takes no {one}" for one in parameters if one not in known]
print(json.dumps(found))
"""


class Shut(Exception):
    """Why a door stays shut."""


# ------------------------------------------------------------------------------------------ trainings
def program(*words: str) -> Callable[[Path], None]:
    """A program for 1.0: words of its command."""

    def door(folder: Path) -> None:
        file = folder / "run.yaml"
        load = {"target": "calc_x.datasets:load"}
        description = {
            "agent": {
                "command": [*words[:-1], str(HERE / "programs" / words[-1])],
                "program": {"env": {"QUESTION": "{task.question}", "EXPRESSION": "{task.expression}"}},
                "concurrency": 8,
                "timeout_seconds": 240,
            },
            "training": {
                "steps": STEPS,
                "batch_size": TASKS,
                "recipe": {"group_size": GROUP},
                "evaluate_sampled": False,
            },
            "environment": {"train": {**load, "args": {"spec": "generated:train", "limit": 64}}},
            "backend": {"policy": str(POLICY), "options": {"threads": 1, "engine_threads": 1}},
            "output": str(folder / "runs"),
            "pythonpath": [str(ROOT / "examples")],
        }
        file.write_text(json.dumps(description), encoding="utf-8")
        train([str(Path(sys.executable).parent / "agl"), "train", "--config", str(file)], sys.executable)
        asyncio.run(judge(folder / "runs", posted=True))

    return door


def lab(folder: Path) -> None:
    """Agent Framework's lab package."""
    python, place = str(environment("former")), folder / "tasks.json"
    place.write_text(json.dumps(problems()), encoding="utf-8")
    train([python, str(HERE / "lab.py"), str(place), str(POLICY), str(folder / "runs")], python)
    asyncio.run(judge(folder / "runs"))


def tuner(folder: Path) -> None:
    """AgentScope's tuner."""
    python, place = str(environment("agentscope1")), folder / "dataset" / "train.jsonl"
    place.parent.mkdir()
    place.write_text("".join(f"{json.dumps(one)}\n" for one in problems()), encoding="utf-8")
    train([python, str(HERE / "tuner.py"), str(place.parent), str(POLICY), str(folder / "runs")], python)
    asyncio.run(judge(folder / "runs", named=("reward", "length", "answered")))


def problems() -> list[dict[str, Any]]:
    """Word problems, as data of another project would hold them."""
    sys.path.insert(1, str(ROOT / "examples"))
    from calc_x.datasets import load
    from calc_x.grading import ANSWER_FORM

    return [{**one, "question": f"{one['question']}\n\n{ANSWER_FORM}"} for one in load("generated:train", 64)]


def train(command: list[str], python: str) -> None:
    """Run a training to its end, with the commands of its environment first on the path."""
    folders = os.pathsep.join([str(Path(python).parent), os.environ["PATH"]])
    done = subprocess.run(
        command, env={**os.environ, **QUIET, "PATH": folders}, stdout=sys.stderr, stderr=subprocess.PIPE
    )
    sys.stderr.buffer.write(done.stderr)
    if done.returncode:
        raise Shut(
            f"ended with {done.returncode}: {' '.join(done.stderr.decode().strip().splitlines()[-2:])}"
        )


async def judge(runs: Path, *, posted: bool = False, named: tuple[str, ...] = ("reward",)) -> None:
    """Look at a run's store and metrics. ``posted``: the programs print the reward that they post; ``named``:
    the rewards of each rollout by name.
    """
    (run,) = [path.parent for path in runs.glob("*/summary.json")]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    means = [line["metrics"]["reward_mean"] for line in lines if "reward_mean" in line["metrics"]]
    if len(means) != STEPS or any(line["metrics"]["rollouts_failed"] for line in lines):
        raise Shut(f"{len(means)} steps of {STEPS}, or failed rollouts: {run}")
    store, rewards = SQLiteStore(str(run / "store.sqlite")), list[float]()
    try:
        ids = [one.rollout_id async for page in pages(store.query_rollouts) for one in page]
        for record in await store.records(ids):
            kinds = {verdict.kind for verdict in verdicts(record).values()}
            final = resolve(record).final
            if kinds != {"exact"} or final is None:
                raise Shut(f"{record.rollout.rollout_id}: calls {kinds or 'none'}, reward {final}")
            if {reward.name for reward in record.rewards} != {*named}:
                raise Shut(f"{record.rollout.rollout_id}: rewards {[one.name for one in record.rewards]}")
            if posted and await _posted(store, record.rollout.rollout_id) != final:
                raise Shut(f"{record.rollout.rollout_id}: it posted another reward than {final}")
            rewards.append(final)
    finally:
        await store.close()
    if len(rewards) != STEPS * TASKS * GROUP or abs(fmean(rewards) - fmean(means)) > 1e-9:
        raise Shut(f"{len(rewards)} rollouts earned {fmean(rewards):.3f} each, the steps {fmean(means):.3f}")
    if len(set(rewards)) < 2:
        raise Shut(f"every rollout earned {rewards[0]}: nothing was to be learned")


async def _posted(store: SQLiteStore, rollout_id: str) -> float:
    """What a program printed that it had posted."""
    (span,) = [one for one in await store.query_spans(rollout_id) if one.name == COMMAND_SPAN]
    return float(str(span.attributes["agl.command.stdout"]).rpartition(POSTED)[2])


# ---------------------------------------------------------------------------------------------- names
def wheel(version: str, folder: Path) -> Path:
    """The unpacked wheel of a former version, whatever Python it asks for."""
    words = ["download", "--no-deps", "--ignore-requires-python", "--only-binary", ":all:"]
    pip = [sys.executable, "-m", "pip", "--quiet", *words, "--dest", str(folder), SHELF[version]]
    if subprocess.run(pip, stdout=sys.stderr).returncode:
        raise Shut(f"{SHELF[version]} cannot be fetched")
    (archive,) = folder.glob("*.whl")
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(folder / "whole")
    return folder / "whole" / "agentlightning"


def public(tree: ast.Module) -> Iterator[str]:
    """Names that a module defines and does not hide."""
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                named = [name]
            case ast.Assign(targets=targets):
                named = [one.id for one in targets if isinstance(one, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                named = [name]
            case _:
                named = []
        yield from (one for one in named if not one.startswith("_"))


def names(folder: Path) -> None:
    """Every module and name of 1.0."""
    root = wheel("1.0", folder)
    asked = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        asked += [(module, ""), *((module, one) for one in public(ast.parse(path.read_text("utf-8"))))]
    wrong = ask(TRY, asked)
    if wrong or len(asked) < 100:
        raise Shut(f"{len(asked)} names, of which these say no remedy: {wrong}")


def tracers(folder: Path) -> None:
    """Every public method of the tracers of 0.3."""
    root, asked = wheel("0.3", folder), []
    for module, kinds in {
        "tracer/base.py": ("Tracer",),
        "tracer/otel.py": ("OtelTracer",),
        "tracer/agentops.py": ("AgentOpsTracer",),
        "tracer/dummy.py": ("DummyTracer",),
        "types/core.py": ("ParallelWorkerBase",),
    }.items():
        for node in ast.parse((root / module).read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name in kinds:
                kind = "Tracer" if node.name == "ParallelWorkerBase" else node.name
                asked += [
                    (kind, one.name, [each.arg for each in (*one.args.args[1:], *one.args.kwonlyargs)])
                    for one in node.body
                    if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
                    and (not one.name.startswith("_") or one.name == "__init__")
                ]
    wrong = ask(METHODS, asked)
    if wrong or len(asked) < 20:
        raise Shut(f"{len(asked)} methods, of which: {wrong}")


def ask(program: str, given: list[Any]) -> Any:
    """What a program of its own process says of ``given``."""
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(given).encode(), stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


DOORS: dict[str, Callable[[Path], None]] = {
    "names-of-1.0": names,
    "tracers-of-0.3": tracers,
    "python": program("python", "agent.py"),
    "shell": program("sh", "agent.sh"),
    "javascript": program("node", "agent.mjs"),
    "agent-framework-lab": lab,
    "agentscope-tuner": tuner,
}


def main() -> int:
    """Try the doors asked for (default: all) and print."""
    parser = argparse.ArgumentParser(description="Open the doors of other projects.")
    parser.add_argument("doors", nargs="*", help=f"of {', '.join(DOORS)}; default: all")
    asked = parser.parse_args().doors or list(DOORS)
    if unknown := sorted(set(asked) - set(DOORS)):
        parser.error(f"unknown: {', '.join(unknown)}; the doors are {', '.join(DOORS)}")
    opened = 0
    for name in asked:
        print(f"\n── {name} ──", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="door-") as folder:
            try:
                DOORS[name](Path(folder))
                opened += 1
            except (Shut, subprocess.CalledProcessError) as error:
                print(f"SHUT {name}: {error}", file=sys.stderr, flush=True)
    print(json.dumps({"doors": len(asked), "ok": opened}))
    return int(opened < len(asked))


if __name__ == "__main__":
    sys.exit(main())
