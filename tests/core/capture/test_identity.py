from __future__ import annotations

import pytest
from opentelemetry import trace

from agentlightning import semconv
from agentlightning.capture import COUNTS, IDENTITY, caller_tags
from agentlightning.capture.context import tagged

pytestmark = pytest.mark.usefixtures("capturing")


def test_nobody_has_no_tags() -> None:
    assert caller_tags() == {}


def test_the_current_span_names_the_agent_and_its_role() -> None:
    with trace.get_tracer("x").start_as_current_span("a", attributes={semconv.AGENT_NAME: "writer"}):
        assert caller_tags() == {"agent": "writer", "role": "writer"}
        with tagged(role="author", phase="draft"):
            assert caller_tags() == {"agent": "writer", "role": "author", "phase": "draft"}
        with tagged(agent="editor"):
            assert caller_tags() == {"agent": "editor", "role": "editor"}


def test_an_adapter_that_fails_is_counted_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> dict[str, str]:
        raise LookupError("no context")

    monkeypatch.setattr("agentlightning.capture.identity.IDENTITY", [broken, lambda: {"node": "n1"}])
    assert caller_tags() == {"node": "n1"}
    assert COUNTS.snapshot() == {"identity-error": 1}


def test_the_registry_is_empty_without_adapters() -> None:
    assert IDENTITY == []
