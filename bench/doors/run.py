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
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
from each import Unsound, add_names, each
from short_run import POLICY, ROOT, described, judge, trained
from trained_programs import environment

from agentlightning.semconv import COMMAND_SPAN
from agentlightning.store import SQLiteStore
from agentlightning.types import Record

HERE = Path(__file__).resolve().parent
SHELF = {"0.3": "agentlightning==0.3.0", "1.0": "agentlightning==1.0.2"}
"""The wheels whose names are looked for; they are read, and never imported."""
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


# ------------------------------------------------------------------------------------------ trainings
def program(*words: str) -> Callable[[Path], None]:
    """A program for 1.0: words of its command."""

    def door(folder: Path) -> None:
        agent = {
            "command": [*words[:-1], str(HERE / "programs" / words[-1])],
            "program": {"env": {"QUESTION": "{task.question}", "EXPRESSION": "{task.expression}"}},
        }
        load = {"target": "calc_x.datasets:load", "args": {"spec": "generated:train", "limit": 64}}
        agl = str(Path(sys.executable).parent / "agl")
        trained([agl, *described(folder, agent, load)], sys.executable)
        varied(asyncio.run(judge(folder / "runs", check=posted)))

    return door


async def posted(store: SQLiteStore, record: Record, reward: float) -> None:
    """A program's reward is what it printed that it had posted."""
    spans = await store.query_spans(record.rollout.rollout_id)
    (span,) = [one for one in spans if one.name == COMMAND_SPAN]
    said = str(span.attributes["agl.command.stdout"]).rpartition("posted ")[2]
    if float(said) != reward:
        raise Unsound(f"{record.rollout.rollout_id}: it posted {said}, and {reward} was counted")


def lab(folder: Path) -> None:
    """Agent Framework's lab package."""
    python, place = str(environment("former")), folder / "tasks.json"
    place.write_text(json.dumps(problems()), encoding="utf-8")
    trained([python, str(HERE / "lab.py"), str(place), str(POLICY), str(folder / "runs")], python)
    varied(asyncio.run(judge(folder / "runs")))


def tuner(folder: Path) -> None:
    """AgentScope's tuner."""
    python, place = str(environment("agentscope1")), folder / "dataset" / "train.jsonl"
    place.parent.mkdir()
    place.write_text("".join(f"{json.dumps(one)}\n" for one in problems()), encoding="utf-8")
    trained([python, str(HERE / "tuner.py"), str(place.parent), str(POLICY), str(folder / "runs")], python)
    varied(asyncio.run(judge(folder / "runs", named=("reward", "length", "answered"))))


def varied(rewards: list[float]) -> None:
    """Rewards that are all the same would be no sign that they are read."""
    if len(set(rewards)) < 2:
        raise Unsound(f"every rollout earned {rewards[0]}")


def problems() -> list[dict[str, Any]]:
    """Word problems, as data of another project would hold them."""
    sys.path.insert(1, str(ROOT / "examples"))
    from calc_x.datasets import load
    from calc_x.grading import ANSWER_FORM

    return [{**one, "question": f"{one['question']}\n\n{ANSWER_FORM}"} for one in load("generated:train", 64)]


# ---------------------------------------------------------------------------------------------- names
def wheel(version: str, folder: Path) -> Path:
    """The unpacked wheel of a former version, whatever Python it asks for."""
    words = ["download", "--no-deps", "--ignore-requires-python", "--only-binary", ":all:"]
    pip = [sys.executable, "-m", "pip", "--quiet", *words, "--dest", str(folder), SHELF[version]]
    if subprocess.run(pip, stdout=sys.stderr).returncode:
        raise Unsound(f"{SHELF[version]} cannot be fetched")
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
        raise Unsound(f"{len(asked)} names, of which these say no remedy: {wrong}")


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
        raise Unsound(f"{len(asked)} methods, of which: {wrong}")


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
    add_names(parser, "doors", DOORS)
    asked = parser.parse_args().doors or list(DOORS)

    def tried(name: str) -> None:
        with tempfile.TemporaryDirectory(prefix="door-") as folder:
            DOORS[name](Path(folder))

    opened, shut = each(asked, tried)
    print(json.dumps({"doors": len(asked), "ok": len(opened)}))
    return int(bool(shut))


if __name__ == "__main__":
    sys.exit(main())
