"""A tree of spans as SVG and as text."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from agentlightning import UsageError
from agentlightning.audit.attempt_tree import SpanNode
from agentlightning.compat.v0 import tracer
from agentlightning.compat.v0.tracer import recording
from agentlightning.compat.v0.tracer.drawing import svg


def test_every_node_has_a_box_and_every_child_an_edge() -> None:
    tree = [
        SpanNode(
            kind="agent",
            name="a",
            children=[SpanNode(kind="tool", name="b"), SpanNode(kind="span", name="c")],
        )
    ]
    root = ElementTree.fromstring(svg("title", [*tree, SpanNode(kind="span", name="d")]))
    tags = [e.tag.rpartition("}")[2] for e in root.iter()]
    assert tags.count("path") == 2 and tags.count("rect") == 1 + 4


def test_what_spans_say_is_never_markup() -> None:
    bad = '<script>\x00\ud800 & "quoted" ]]>'
    root = ElementTree.fromstring(svg(bad, [SpanNode(kind="span", name=bad, error=bad)]))
    assert not [e for e in root.iter() if e.tag.endswith("script")]


def test_an_empty_trace_is_drawn_too(tmp_path: Path) -> None:
    drawn = recording.Trace("nothing", None).visualize("a.svg", path=tmp_path / "new")
    assert drawn == tmp_path / "new" / "a.svg" and drawn.exists()


def test_where_nothing_can_be_written_the_text_is_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert recording.Trace("t", None).visualize(path=tmp_path / "file") is None
    assert "not drawn: " in capsys.readouterr().out


def test_before_the_first_trace_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_last", None)
    with pytest.raises(UsageError, match="nothing was traced yet"):
        tracer.last_trace()
