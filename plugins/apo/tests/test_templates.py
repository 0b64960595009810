"""An edit keeps the placeholders of its template, as they were written."""

from __future__ import annotations

import pytest

from agentlightning.types import PromptTemplate
from agl_apo.templates import BadTemplate, edited, placeholders


def test_placeholders_as_they_are_written() -> None:
    assert placeholders(PromptTemplate(template="{a} {b:.2f} {c!r} {{not one}}")) == {"a", "b:.2f", "c!r"}
    jinja = PromptTemplate(template="{{ a }} {% if b %}x{% endif %}", engine="jinja")
    assert placeholders(jinja) == {"variable_begin a", "block_begin if b", "block_begin endif"}


@pytest.mark.parametrize(
    ("before", "text", "kind"),
    [
        ("say {x}", "", "empty"),
        ("say {x}", " say {x} ", "unchanged"),
        ("say {x}", "say it", "placeholder-lost"),
        ("say {x}", "say {x} {y}", "placeholder-unknown"),
        ("say {x}", "say {x.__class__}", "placeholder-lost"),
        ("say {x}", "say {x} {x!r}", "placeholder-unknown"),
        ("say {x}", "say {x", "unreadable-template"),
        ("say {x}", "say {x} {}", "placeholder-unknown"),
    ],
)
def test_what_is_refused(before: str, text: str, kind: str) -> None:
    with pytest.raises(BadTemplate) as refused:
        edited(PromptTemplate(template=before), text)
    assert refused.value.kind == kind


@pytest.mark.parametrize(
    "text", ["{{ x }} {% for i in range(10**9) %}a{% endfor %}", "{{ x.y }}", "{% raw %}"]
)
def test_a_model_adds_no_code_to_a_jinja_template(text: str) -> None:
    with pytest.raises(BadTemplate):
        edited(PromptTemplate(template="say {{ x }}", engine="jinja"), text)


def test_an_edit_fills_in_the_same_values() -> None:
    after = edited(PromptTemplate(template="say {x:>3}"), "Please say {x:>3}, no braces: {{}}")
    assert after.format(x=1) == "Please say   1, no braces: {}"
