"""A tree of spans as SVG and as text."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from agentlightning import UsageError
from agl_audit.attempt_tree import SpanNode
from agl_audit.drawing import svg
from agl_v03 import tracer


def text_of(root: ElementTree.Element) -> str:
    """All text of a drawing, in its order."""
    return "".join(e.text or "" for e in root.iter() if e.tag.endswith("}text")).replace("\xa0", " ")


def test_every_node_is_a_line_and_every_child_hangs_below_its_parent() -> None:
    tree = [
        SpanNode(
            kind="agent",
            name="a",
            children=[SpanNode(kind="tool", name="b"), SpanNode(kind="span", name="c")],
        )
    ]
    root = ElementTree.fromstring(svg("title", [*tree, SpanNode(kind="span", name="d")]))
    text = text_of(root)
    places = [text.index(line) for line in ("title", "├── ● a", "│   ├── ⚒ b", "· c", "└── · d")]
    assert places == sorted(places)


def test_a_drawing_needs_nothing_from_the_web() -> None:
    drawn = svg("title", [SpanNode(kind="span", name="a")])
    assert "url(http" not in drawn and "@font-face" not in drawn


def test_a_long_line_is_drawn_whole() -> None:
    drawn = svg("t", [SpanNode(kind="operation", name="o", facts={"arguments": "x" * 70})])
    assert f"o({'x' * 70})" in text_of(ElementTree.fromstring(drawn))


def test_what_spans_say_is_never_markup() -> None:
    bad = '<script>\x00\ud800 & "quoted" ]]>'
    root = ElementTree.fromstring(svg(bad, [SpanNode(kind="span", name=bad, error=bad)]))
    assert not [e for e in root.iter() if e.tag.endswith("script")]
    assert '<script> & "quoted" ]]>' in text_of(root)


def test_an_empty_trace_is_drawn_too(tmp_path: Path) -> None:
    drawn = tracer.Trace("nothing", None).visualize("a.svg", path=tmp_path / "new")
    assert drawn == tmp_path / "new" / "a.svg" and drawn.exists()


def test_where_nothing_can_be_written_the_text_is_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert tracer.Trace("t", None).visualize(path=tmp_path / "file") is None
    assert "not drawn: " in capsys.readouterr().out


def test_before_the_first_trace_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracer, "_last", None)
    with pytest.raises(UsageError, match="nothing was traced yet"):
        tracer.last_trace()
