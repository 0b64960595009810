"""A tree of spans as text, and as an SVG that needs nothing but a viewer.

One line a node, indented under its parent, with the time it took. Invariant: a span's content is
text in the drawing, never markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from agentlightning.audit.attempt_tree import SpanNode

_COLOURS = {
    "call": "#7c3aed",
    "tool": "#0f766e",
    "reward": "#b45309",
    "agent": "#1d4ed8",
    "operation": "#334155",
    "message": "#64748b",
    "exception": "#b91c1c",
}
_LINE, _INDENT, _LEFT, _TOP, _CHARACTER = 30, 24, 18, 46, 7.3
"""Pixels; the last is a character's width."""
_LONGEST = 90
"""Characters of a line."""


def label(node: SpanNode) -> str:
    """A node in one line of text."""
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
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def print_tree(title: str, roots: Sequence[SpanNode]) -> None:
    """The tree on standard output."""
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    def add(above: Tree, nodes: Sequence[SpanNode]) -> None:
        for node in nodes:
            text = Text.assemble((node.kind, _COLOURS.get(node.kind, "")), " ", label(node))
            text.append(f"  {node.milliseconds:.1f} ms" if node.milliseconds else "", style="dim")
            add(above.add(text), node.children)

    tree = Tree(Text(title, style="bold"), guide_style="dim")
    add(tree, roots)
    Console(soft_wrap=True).print(tree, highlight=False)


def _lines(nodes: Sequence[SpanNode], depth: int, above: int) -> Iterator[tuple[SpanNode, int, int]]:
    """Nodes in the order of their lines, with depth and the line of the node above (-1: none)."""
    line = above
    for node in nodes:
        line += 1
        yield node, depth, above
        inner = list(_lines(node.children, depth + 1, line))
        yield from inner
        line += len(inner)


def svg(title: str, roots: Sequence[SpanNode]) -> str:
    """The tree as an SVG document."""
    placed = list(_lines(roots, 0, -1))
    texts = [label(node) for node, _, _ in placed]
    width = max(
        [
            len(title) * 9,
            *(
                _box(depth)[0] + len(t) * _CHARACTER + 130
                for (_, depth, _), t in zip(placed, texts, strict=True)
            ),
        ]
    )
    height = _TOP + _LINE * len(placed) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'viewBox="0 0 {width:.0f} {height}" font-family="ui-monospace, Menlo, monospace" font-size="12">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="26" font-size="15" font-weight="bold" fill="#0f172a">'
        f"{_xml_text(title)}</text>",
    ]
    for line, ((node, depth, above), text) in enumerate(zip(placed, texts, strict=True)):
        parts += _node_svg(line, node, depth, above, text)
    return "\n".join([*parts, "</svg>\n"])


def _box(depth: int) -> tuple[int, int]:
    """Where a line of this depth begins, and where the edge to it leaves its parent."""
    return _LEFT + depth * _INDENT, _LEFT + (depth - 1) * _INDENT + 8


def _node_svg(line: int, node: SpanNode, depth: int, above: int, text: str) -> Iterator[str]:
    (x, trunk), y = _box(depth), _TOP + line * _LINE
    colour = _COLOURS["exception"] if node.error else _COLOURS.get(node.kind, "#64748b")
    if above >= 0:
        start, middle = _TOP + above * _LINE + 22, y + 11
        yield f'<path d="M{trunk} {start}V{middle}H{x}" fill="none" stroke="#cbd5e1"/>'
    width = len(text) * _CHARACTER + 92
    yield (
        f'<rect x="{x}" y="{y}" width="{width:.0f}" height="22" rx="5" fill="{colour}" fill-opacity="0.08" '
        f'stroke="{colour}" stroke-opacity="0.55"/>'
    )
    yield f'<text x="{x + 8}" y="{y + 15}" fill="{colour}" font-weight="bold">{_xml_text(node.kind)}</text>'
    time = f" {node.milliseconds:.1f} ms" if node.milliseconds else ""
    yield (
        f'<text x="{x + 84}" y="{y + 15}" fill="#0f172a">{_xml_text(text)}'
        f'<tspan fill="#94a3b8">{time}</tspan></text>'
    )


def _xml_text(value: str) -> str:
    """As XML text: escaped, without the characters that XML forbids."""
    return escape(
        "".join(c for c in value if c >= " " and c not in "\ufffe\uffff" and not "\ud800" <= c <= "\udfff")
    )
