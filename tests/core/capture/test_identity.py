from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator

from agentlightning import semconv
from agentlightning.capture import COUNTS, caller_tags, identity
from agentlightning.capture.context import baggage_tags, tagged
from agentlightning.capture.identity import CALLER_SOURCES, Caller, agent_tags

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
    def broken() -> Caller:
        raise LookupError("no context")

    sources = [lambda: Caller({"node": "n1"}, 0), broken]
    monkeypatch.setattr("agentlightning.capture.identity.CALLER_SOURCES", sources)
    assert caller_tags() == {"node": "n1"}
    assert COUNTS.snapshot() == {"identity-error": 1}


def test_there_are_no_sources_without_adapters() -> None:
    assert CALLER_SOURCES == []


def test_of_two_agents_the_nearer_one_calls() -> None:
    tracer = trace.get_tracer("x")
    with agent_tags(agent="outer", role="manager", node="n1"):
        with tracer.start_as_current_span("a", attributes={semconv.AGENT_NAME: "span"}):
            assert caller_tags() == {"agent": "span", "role": "span", "node": "n1"}
            with agent_tags(agent="inner"), tracer.start_as_current_span("of the inner one's") as plain:
                assert caller_tags() == {"agent": "inner", "role": "inner", "node": "n1"}
                assert plain.is_recording()
        assert caller_tags() == {"agent": "outer", "role": "manager", "node": "n1"}
        with agent_tags(role="critic"):
            assert caller_tags() == {"role": "critic", "node": "n1"}


def test_a_source_is_as_near_as_what_it_began_in(monkeypatch: pytest.MonkeyPatch) -> None:
    with agent_tags(agent="outer"):
        around = identity.CALLER.get()
        found = Caller({"agent": "found"}, 0, outer=around)
        monkeypatch.setattr("agentlightning.capture.identity.CALLER_SOURCES", [lambda: found])
        assert caller_tags()["agent"] == "found"
        with agent_tags(agent="inner"):
            assert caller_tags()["agent"] == "inner"


def test_tags_are_baggage() -> None:
    with tagged(phase="night", größe="1"):
        carrier: dict[str, str] = {}
        W3CBaggagePropagator().inject(carrier)
        there = W3CBaggagePropagator().extract(carrier)
        assert carrier["baggage"].isascii() and baggage_tags(there) == {"phase": "night", "größe": "1"}
    assert baggage_tags() == {}
