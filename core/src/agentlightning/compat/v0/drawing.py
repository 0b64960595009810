"""Draw a tree of spans as text, and as an SVG that needs nothing but a viewer.

Each node is one line under its parent, with the time it took. Invariant: a span's content is text in the
drawing, never markup.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import StringIO
from typing import TYPE_CHECKING

from agentlightning.audit.attempt_tree import SpanNode

if TYPE_CHECKING:
    from rich.console import Console
    from rich.tree import Tree

_COLOURS = {
    "call": "#7c3aed",
    "tool": "#0f766e",
    "reward": "#b45309",
    "agent": "#1d4ed8",
    "operation": "#334155",
    "message": "#64748b",
    "exception": "#b91c1c",
}
_LONGEST = 90
"""Characters of a line."""


def print_tree(title: str, roots: Sequence[SpanNode]) -> None:
    """Print the tree on standard output."""
    from rich.console import Console

    _print_whole(_tree(title, roots), Console())


def svg(title: str, roots: Sequence[SpanNode]) -> str:
    """Return the tree as an SVG document."""
    from rich.console import Console
    from rich.terminal_theme import DEFAULT_TERMINAL_THEME

    console = Console(record=True, file=StringIO())
    _print_whole(_tree(title, roots), console)
    document = console.export_svg(title=_shown(title), theme=DEFAULT_TERMINAL_THEME)
    return re.sub(r"@font-face \{.*?\}", "", document, count=2, flags=re.DOTALL)  # fonts of a web server


def _print_whole(tree: Tree, console: Console) -> None:
    console.width = 10_000  # rich cuts a tree at the console's width
    console.width = console.measure(tree).maximum
    console.print(tree, highlight=False)


def _tree(title: str, roots: Sequence[SpanNode]) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    def add(above: Tree, nodes: Sequence[SpanNode]) -> None:
        for node in nodes:
            colour = _COLOURS["exception"] if node.error else _COLOURS.get(node.kind, "")
            text = Text.assemble((_shown(node.kind), colour), " ", label(node))
            text.append(f"  {node.milliseconds:.1f} ms" if node.milliseconds else "", style="dim")
            add(above.add(text), node.children)

    tree = Tree(Text(_shown(title), style="bold"), guide_style="dim")
    add(tree, roots)
    return tree


def label(node: SpanNode) -> str:
    """Return a node as one line of text."""
    f, text = node.facts, node.name
    if node.kind == "call":
        text += f" · {f.get('policy') or f.get('model', '?')}"
        text += f" · {f.get('tokens_in', '?')} → {f.get('tokens_out', '?')} tokens"
        text += f" · “{f['answer']}”" if "answer" in f else ""
    elif node.kind == "reward":
        text += f" {f.get('value', 'no number')} of {f['of']}"
    elif node.kind in ("tool", "operation"):
        text += f"({f.get('arguments') or ''})" + (f" → {f['result']}" if "result" in f else "")
    elif "body" in f:
        text += f" {f['body']}"
    if node.error:
        text += f" ✗ {node.error}"
    text = _shown(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _shown(text: str) -> str:
    """Return ``text`` on one line, without the characters that XML forbids."""
    legal = "".join(
        " " if c < " " else c for c in text if c not in "\ufffe\uffff" and not "\ud800" <= c <= "\udfff"
    )
    return " ".join(legal.split())
