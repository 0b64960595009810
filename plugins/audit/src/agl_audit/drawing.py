"""Draw the tree of an attempt with rich: on a terminal, and as an SVG that needs nothing but a viewer.

Invariant: a span's content is text in the drawing, never markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from io import StringIO
from typing import Any

from rich.terminal_theme import DEFAULT_TERMINAL_THEME
from rich.text import Text
from rich.tree import Tree

from agentlightning.redaction import redacted
from agentlightning.terminal import Console
from agl_audit.attempt_tree import SpanNode

_SHORT = 100
"""Characters of an answer, an argument or a result that are shown."""
_ICONS = {
    "call": "◆",
    "tool": "⚒",
    "reward": "★",
    "agent": "●",
    "operation": "▸",
    "message": "✎",
    "exception": "✗",
}


def draw(title: Text, nodes: Iterable[SpanNode]) -> Tree:
    """Return a rich tree: the nodes and all below them, under the title."""
    root = Tree(title, guide_style="dim")
    for node in nodes:
        _add(root, node)
    return root


def print_whole(tree: Tree, console: Console) -> None:
    """Print the tree on a console that is made as wide as its longest line."""
    console.width = 10_000  # rich cuts a tree at the console's width
    console.width = console.measure(tree).maximum
    console.print(tree, highlight=False)


def svg(title: str, nodes: Iterable[SpanNode]) -> str:
    """Return the tree as an SVG document."""
    console = Console(record=True, file=StringIO())
    shown = short(title, _SHORT)
    print_whole(draw(Text(shown, style="bold"), nodes), console)
    document = console.export_svg(title=shown, theme=DEFAULT_TERMINAL_THEME)
    return re.sub(r"@font-face \{.*?\}", "", document, count=2, flags=re.DOTALL)  # fonts of a web server


def short(value: Any, most: int) -> str:
    """Return ``value`` as one line of at most ``most`` characters, without those that XML forbids, and
    without passwords of URLs, which a cut could make unrecognisable.
    """
    known = (c for c in redacted(value) if c not in "\ufffe\uffff" and not "\ud800" <= c <= "\udfff")
    legal = (" " if c < " " else c for c in known)
    text = " ".join("".join(legal).split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _add(above: Tree, node: SpanNode) -> None:
    name = short(node.name, _SHORT)
    facts = {key: short(fact, _SHORT) if isinstance(fact, str) else fact for key, fact in node.facts.items()}
    label = Text.assemble((f"{_ICONS.get(node.kind, '·')} ", "cyan"), *_label(node.kind, name, facts))
    if node.milliseconds:
        label.append(f"  {node.milliseconds:.1f} ms", style="dim")
    if "call" in facts:
        label.append(f"  {facts['call']}", style="dim")
    if "answer" in facts:
        label.append(f"\n“{facts['answer']}”", style="italic")
    if node.error:
        label.append(f"\n✗ {short(node.error, 300)}", style="bold red")
    branch = above.add(label)
    for child in node.children:
        _add(branch, child)


def _label(kind: str, name: str, f: dict[str, Any]) -> list[Any]:
    """Return the label of a node with the facts ``f``, as pieces of a text."""
    if kind == "call":
        return _call(name, f)
    if kind == "reward":
        whose = "  returned" if f.get("returned") else ""
        return [(name, "bold yellow"), f" {f.get('value', 'no number')}", (f"  of {f['of']}{whose}", "dim")]
    if kind in ("tool", "operation"):
        result = [(" → ", "dim"), f["result"]] if "result" in f else []
        return [(name, "bold"), f"({f.get('arguments', '')})", *result]
    if kind == "agent" and f.get("operation") == "create_agent":
        return [(name, "bold"), ("  created", "dim")]
    if kind == "message":
        return [(name, "bold"), f" {f.get('body', '')}"]
    return [(name, "bold red" if kind == "exception" else "bold")]


def _call(name: str, f: dict[str, Any]) -> list[Any]:
    version = f" v{f['version']}" if "version" in f else ""
    verdict = f.get("verdict")
    colour = {"exact": "green", "mismatch": "red"}.get(str(verdict), "yellow")
    parts: list[Any] = [
        (name, "bold magenta"),
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
