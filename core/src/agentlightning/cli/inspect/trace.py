"""``agl trace``: what an attempt did, as a tree."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer
from rich.text import Text
from rich.tree import Tree

from agentlightning.audit.attempt_tree import AttemptTree, SpanNode, attempt_trees
from agentlightning.audit.targets import open_target
from agentlightning.cli.inspect import InRun, InStore, JsonObject
from agentlightning.cli.view import print_json, short, wide_console
from agentlightning.types import UsageError

_SHORT = 100
"""Characters of an answer, an argument or a result that are shown."""
_WIDE = 130
"""Columns where stdout is no terminal."""
_ICONS = {
    "call": "◆",
    "tool": "⚒",
    "reward": "★",
    "agent": "●",
    "operation": "▸",
    "message": "✎",
    "exception": "✗",
}


def register(app: typer.Typer) -> None:
    @app.command("trace")
    def trace(
        what: Annotated[
            str,
            typer.Argument(metavar="ROLLOUT|ATTEMPT", help="A rollout (its latest attempt) or an attempt."),
        ],
        every: Annotated[bool, typer.Option("--all", help="All attempts of the rollout.")] = False,
        run: InRun = None,
        store: InStore = None,
        as_json: JsonObject = False,
    ) -> None:
        """Show the tree of an attempt: agents, model calls, tools, rewards, errors."""
        traces = asyncio.run(_trace(what, run, store, every))
        if as_json:
            print_json({"attempts": traces})
            return
        if not traces:
            raise UsageError(f"{what} has no attempt yet")
        console = wide_console(_WIDE)
        for one in traces:
            console.print(tree(one), highlight=False)


async def _trace(what: str, run: str | None, store: str | None, every: bool) -> list[AttemptTree]:
    async with open_target(what, run, store) as (opened, target):
        return await attempt_trees(opened, target, every)


def tree(one: AttemptTree) -> Tree:
    """Return an attempt as a rich tree."""
    good = one.status == "succeeded"
    title = Text.assemble(
        ("attempt ", "bold"), one.attempt, (f"  {one.status}", "green" if good else "red"),
        (f"  {one.seconds:.2f} s" if one.seconds is not None else "", "dim"),
        (f"  {one.spans} spans · {one.rollout} #{one.sequence}", "dim"),
    )  # fmt: skip
    if one.resources:
        title.append(f"  given {one.resources}", style="dim")
    if one.reason:
        title.append(f"\n{short(one.reason, 300)}", style="red")
    if one.traceback:
        title.append(f"\n{one.traceback}", style="dim")
    root = Tree(title, guide_style="dim")
    for node in one.roots:
        _add(root, node)
    return root


def _add(above: Tree, node: SpanNode) -> None:
    label = Text.assemble((f"{_ICONS.get(node.kind, '·')} ", "cyan"), *_label(node))
    if node.milliseconds:
        label.append(f"  {node.milliseconds:.1f} ms", style="dim")
    if "call" in node.facts:
        label.append(f"  {node.facts['call']}", style="dim")
    if "answer" in node.facts:
        label.append(f"\n“{short(node.facts['answer'], _SHORT)}”", style="italic")
    if node.error:
        label.append(f"\n✗ {short(node.error, 300)}", style="bold red")
    branch = above.add(label)
    for child in node.children:
        _add(branch, child)


def _label(node: SpanNode) -> list[Any]:
    """Return the label of a node, as pieces of a text."""
    f = node.facts
    if node.kind == "call":
        return _call(node)
    if node.kind == "reward":
        whose = "  returned" if f.get("returned") else ""
        of = (f"  of {f['of']}{whose}", "dim")
        return [(node.name, "bold yellow"), f" {f.get('value', 'no number')}", of]
    if node.kind in ("tool", "operation"):
        result = [(" → ", "dim"), short(f["result"], _SHORT)] if "result" in f else []
        return [(node.name, "bold"), f"({short(f.get('arguments', ''), _SHORT)})", *result]
    if node.kind == "agent" and f.get("operation") == "create_agent":
        return [(node.name, "bold"), ("  created", "dim")]
    if node.kind == "message":
        return [(node.name, "bold"), f" {short(f.get('body', ''), _SHORT)}"]
    return [(node.name, "bold red" if node.kind == "exception" else "bold")]


def _call(node: SpanNode) -> list[Any]:
    f = node.facts
    version = f" v{f['version']}" if "version" in f else ""
    verdict = f.get("verdict")
    colour = {"exact": "green", "mismatch": "red"}.get(str(verdict), "yellow")
    parts: list[Any] = [
        (node.name, "bold magenta"),
        f"  {f.get('policy') or f.get('model', '?')}{version}",
        (f"  {f.get('tokens_in', '?')} → {f.get('tokens_out', '?')} tokens", ""),
    ]
    if verdict:
        reason = f" ({f['verdict_reason']})" if "verdict_reason" in f else ""
        parts.append((f"  {verdict}{reason}", colour))
    if "masked" in f:
        parts.append((f"  masked: {f['masked']}", "yellow"))
    if f.get("selected") is False:
        parts.append(("  not selected", "yellow"))
    return parts
