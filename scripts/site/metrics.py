"""The page of metrics, from metrics.toml, and a look at the code for metrics that stand in no section of it.

A metric is a key that stands in a dictionary which a function of :data:`ROOMS` returns as
``dict[str, float]``, a value of the tables :data:`TABLES`, or a count of the groups.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agl_cluster.prometheus import Exposed

ROOT = Path(__file__).resolve().parents[2]
CATALOGUE = Path(__file__).with_suffix(".toml")
ROOMS = (
    "core/src/agentlightning/algorithms",
    "core/src/agentlightning/credit",
    "plugins/distill/src/agl_distill",
    "plugins/gateway/src/agl_gateway/budget/spending.py",
    "plugins/audit/src/agl_audit/behaviour/rollout.py",
    "plugins/audit/src/agl_audit/stored",
    "plugins/judge/src/agl_judge/grading.py",
    "plugins/local/src/agl_local/driver.py",
    "plugins/local/src/agl_local/training",
    "plugins/schedules/src/agl_schedules",
    "plugins/tinker/src/agl_tinker/driver.py",
    "plugins/verl/src/agl_verl",
)
TABLES = frozenset({"METRICS", "OURS", "STEP_COUNTS"})
"""Constants whose values are names of metrics."""
OTHER = frozenset(
    {
        *(("fit", "loss_last"), ("fit", "seconds"), ("_update", "seconds")),
        *(("train_sft", "positions"), ("backward", "positions"), ("measure_headroom", "policy")),
    }
)
"""Function and key of what is no metric of a step: seconds that the report has elsewhere, ``agl sft``."""
ABOUT = """\
Each step reports its metrics to the trackers, to the hook `agl_policy_updated`, into the store, and as a
line of `metrics.jsonl` in the run's folder. A metric of which there is nothing to measure is absent, not 0.
With several policies, rollouts and rewards are those of the step, and calls, groups, rows and tokens those of
the policy of the line ([policies](../policies.md)). Beside the metrics stand `seconds`: the wall time of the
phases `rollout` (that the driver waited), `credit`, `update` and `sync`. The gateway has
[metrics of its own](../gateway.md#metrics), and [trackers](../dashboard.md#what-a-service-gets) says what a
service gets."""

SERVERS = """\
What `GET /metrics` of each server exposes ([operate a run](../operate.md#metrics-for-prometheus)). The labels
of a metric are names of policies, routes, reasons and the like, never of rollouts."""


def sections() -> dict[str, dict[str, str]]:
    """Section → metric → what it means."""
    return tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))


def page() -> str:
    """The page of the reference."""
    lines = ["# Metrics", "", ABOUT, ""]
    for title, metrics in sections().items():
        lines += [f"## {title}", "", "| metric | meaning |", "|---|---|"]
        lines += [f"| `{name}` | {text} |" for name, text in metrics.items()]
        lines.append("")
    return "\n".join(lines + _of_servers())


def servers() -> dict[str, Sequence[Exposed]]:
    """Server → what its ``GET /metrics`` exposes: the tables that the servers themselves read."""
    from agl_cluster.gateways.watched import EXPOSED as GATEWAY
    from agl_cluster.run_metrics import EXPOSED as TRAINER
    from agl_cluster.store.metrics import EXPOSED as STORE
    from agl_local.http.metrics import EXPOSED as ENGINE

    return {"store": STORE, "gateway": GATEWAY, "local engine": ENGINE, "trainer": TRAINER}


def _of_servers() -> list[str]:
    lines = ["## Prometheus", "", SERVERS, ""]
    for server, table in servers().items():
        lines += [
            f"### {server.capitalize()}",
            "",
            "| sample | kind | labels | meaning |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| `{one.sample}` | {one.kind} | {' '.join(f'`{of}`' for of in one.labels)} | {one.text} |"
            for one in table
        ]
        lines.append("")
    return lines


def undocumented() -> list[str]:
    """What the code reports and no section has, and what a section has and no code reports."""
    known = {re.sub(r"<[^>]*>", "*", name): name for section in sections().values() for name in section}
    made = set(reported())
    missing = [f"metric {name}" for name in sorted(made) if not any(same(name, one) for one in known)]
    unused = [name for one, name in known.items() if not any(same(key, one) for key in made)]
    gone = [f"metric {name}, which nothing reports" for name in unused]
    return missing + gone


def same(made: str, known: str) -> bool:
    """Whether a name in the code and one of the catalogue may be one; ``*`` stands for what is put in."""
    return fnmatchcase(made, known) or (made != "*" and fnmatchcase(known, made))


def reported() -> Iterator[str]:
    """Every name of a metric in the code."""
    for room in ROOMS:
        place = ROOT / room
        for file in [place] if place.is_file() else sorted(place.rglob("*.py")):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            yield from _of_tables(tree)
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _returns_metrics(node):
                    yield from (key for key in _keys(node) if (node.name, key) not in OTHER)


def _returns_metrics(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    returned = ast.unparse(function.returns) if function.returns else ""
    return "dict[str, float]" in returned or (function.name == "counts" and returned == "dict[str, int]")


def _of_tables(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Name) and target.id in TABLES and isinstance(node, ast.Assign):
            value = ast.literal_eval(node.value)
            yield from (
                value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ()
            )


def _keys(function: ast.AST) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Dict):
            yield from filter(None, map(_name, node.keys))
        elif isinstance(node, ast.DictComp):
            yield from filter(None, [_name(node.key)])
        elif isinstance(node, ast.Assign):
            yield from filter(None, (_name(t.slice) for t in node.targets if isinstance(t, ast.Subscript)))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "_counts_under":
            yield f"{ast.literal_eval(node.args[0])}/*"


def _name(key: ast.expr | None) -> str:
    """The text of a key, with ``*`` for each part that is put in; nothing for another expression."""
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        return key.value
    if isinstance(key, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in key.values)
    return ""
