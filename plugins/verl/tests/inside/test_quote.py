"""Whatever a text holds, Hydra reads that text."""

from __future__ import annotations

import pytest

pytest.importorskip("verl", reason="verl has an environment of its own: make test-verl-inside")

from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given, strategies as st

from agl_verl.config.quote import quote

LETTERS = st.characters(min_codepoint=32, exclude_categories=["Cs", "Cc"])


@given(st.text(LETTERS))
@example("true")
@example("7b")
@example("a, b (c)")
@example("it's")
@example("a\\'b\\\\")
@example(r"\d+.(q|v)_proj$")
def test_a_text_is_read_as_it_was(text: str) -> None:
    parser = OverridesParser.create()
    assert parser.parse_override(f"a.b={quote(text)}").value() == text
    assert parser.parse_override(f"a.b=[{quote(text)},x]").value() == [text, "x"]
