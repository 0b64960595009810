"""Spans of other people: stamped, forwarded, and left to the user's own processors too."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from contract.capturing import Recording
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagate import extract, inject
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agentlightning import capture, semconv
from agentlightning.capture import COUNTS
from agentlightning.capture.delivery import IGNORED_SCOPES, end_attempt
from agentlightning.capture.identity import CALLER_SOURCES
from agentlightning.capture.spans import AgentSpan, EventSpan


@pytest.fixture
def recording() -> Recording:
    return Recording("spans", None)


@pytest.fixture
def user() -> Iterator[tuple[TracerProvider, InMemorySpanExporter]]:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    before = trace._TRACER_PROVIDER
    trace._TRACER_PROVIDER = provider
    COUNTS.clear()
    yield provider, exporter
    capture.uninstall()
    trace._TRACER_PROVIDER = before


@pytest.mark.usefixtures("capturing")
def test_foreign_spans_are_stamped_and_forwarded(recording: Recording) -> None:
    tracer = trace.get_tracer("somebody")
    with (
        recording.active(),
        tracer.start_as_current_span("outer", attributes={"a": (1, 2)}) as outer,
        tracer.start_as_current_span("inner"),
    ):
        outer.add_event("noted", {"x": 1.5})
    inner, outer_span = recording.spans
    assert (inner.name, inner.parent_id, inner.trace_id) == ("inner", outer_span.span_id, outer_span.trace_id)
    assert outer_span.attributes["a"] == [1, 2]
    assert outer_span.events[0]["attributes"] == {"x": 1.5}
    assert outer_span.start_time <= inner.start_time <= inner.end_time <= outer_span.end_time
    for span in recording.spans:
        assert span.attributes[semconv.ROLLOUT_ID] == span.rollout_id == "ro-spans"
        assert span.attributes[semconv.ATTEMPT_ID] == span.attempt_id == "at-spans"


@pytest.mark.usefixtures("capturing")
def test_the_agents_name_is_inherited_from_the_live_parent(recording: Recording) -> None:
    tracer = trace.get_tracer("somebody")
    with recording.active(), tracer.start_as_current_span("agent") as parent:
        parent.set_attribute(semconv.AGENT_NAME, "late-named")
        with tracer.start_as_current_span("step"), tracer.start_as_current_span("deep"):
            pass
        with tracer.start_as_current_span("other", attributes={semconv.AGENT_NAME: "own"}):
            pass
    names = {span.name: span.attributes.get(semconv.AGENT_NAME) for span in recording.spans}
    assert names == {"deep": "late-named", "step": "late-named", "other": "own", "agent": "late-named"}


@pytest.mark.usefixtures("capturing")
def test_a_span_belongs_to_the_attempt_it_began_in(recording: Recording) -> None:
    other = Recording("other", None)
    with recording.active():
        span = trace.get_tracer("x").start_span("crossing")
    with other.active():
        span.end()
    assert [s.name for s in recording.spans] == ["crossing"] and other.spans == []


@pytest.mark.usefixtures("capturing")
def test_an_explicit_parent_is_enough_in_a_bare_thread(recording: Recording) -> None:
    tracer = trace.get_tracer("x")
    with recording.active():
        parent = tracer.start_span("parent")
    context = trace.set_span_in_context(parent)
    thread = threading.Thread(target=lambda: tracer.start_span("child", context=context).end())
    thread.start()
    thread.join()
    parent.end()
    assert [span.name for span in recording.spans] == ["child", "parent"]


@pytest.mark.usefixtures("capturing")
def test_late_and_ownerless_spans_are_counted(recording: Recording) -> None:
    recording.context.attempt_id = "at-ends-early"
    tracer = trace.get_tracer("x")
    tracer.start_span("nobody's").end()
    with recording.active():
        span = tracer.start_span("late")
    end_attempt(recording.context.attempt_id)
    span.end()
    assert recording.spans == []
    assert COUNTS.snapshot() == {"span-outside-attempt": 1, "late-span": 1}


@pytest.mark.usefixtures("capturing")
def test_quiet_scopes_make_no_spans(recording: Recording) -> None:
    IGNORED_SCOPES.add("plumbing")
    try:
        with recording.active(), trace.get_tracer("plumbing").start_as_current_span("noise") as noise:
            assert not noise.is_recording()
            with trace.get_tracer("agent").start_as_current_span("signal"):
                pass
    finally:
        IGNORED_SCOPES.remove("plumbing")
    assert [span.name for span in recording.spans] == ["signal"]


def _agent_span_under_a_seed(recording: Recording) -> trace.Span:
    """Begin what an agent that seeds the global generator begins in each of its rollouts."""
    with recording.active():
        random.seed(0)
        return trace.get_tracer("x").start_span(recording.context.attempt_id)


@pytest.mark.parametrize("own", [True, False], ids=["our provider", "the user's provider"])
def test_agents_that_seed_random_keep_their_own_spans(
    own: bool, user: tuple[TracerProvider, InMemorySpanExporter]
) -> None:
    if own:
        trace._TRACER_PROVIDER = None
    capture.install()
    recordings = [Recording(str(number), None) for number in range(8)]
    spans = [_agent_span_under_a_seed(recording) for recording in recordings]
    for span in spans:
        span.end()
    assert [[span.name for span in one.spans] for one in recordings] == [[f"at-{n}"] for n in range(8)]
    if own:
        assert len({one.spans[0].span_id for one in recordings}) == 8
        assert len({one.spans[0].trace_id for one in recordings}) == 8
    assert COUNTS.snapshot() == {}


TOOL = {semconv.OPERATION_NAME: "execute_tool"}


def _tools(recording: Recording) -> list[str]:
    spans = (
        span for span in recording.spans if span.attributes.get(semconv.OPERATION_NAME) == "execute_tool"
    )
    return [str(span.attributes[semconv.TOOL_NAME]) for span in spans]


@pytest.mark.usefixtures("capturing")
@pytest.mark.parametrize("framework", ["OpenTelemetry", "AgentSpan", "EventSpan"])
@pytest.mark.parametrize("named", ["add", "calc_add"])
def test_a_tool_run_that_two_instrumentations_see_counts_once(
    recording: Recording, framework: str, named: str
) -> None:
    """As where a framework's tool asks an MCP server: its client's span carries ids to the server's."""
    tracer, carrier = trace.get_tracer("mcp-python-sdk"), dict[str, str]()
    attributes = {**TOOL, semconv.TOOL_NAME: "add"}
    with recording.active(), ExitStack() as outer:
        if framework == "OpenTelemetry":
            told = {**TOOL, semconv.TOOL_NAME: named}
            outer.enter_context(tracer.start_as_current_span("tool", attributes=told))
        elif framework == "AgentSpan":
            outer.enter_context(AgentSpan.for_tool(named, "call_1", "{}").run())
        else:
            span = EventSpan(context=recording.context, title="tool")
            span.attributes.update(TOOL, **{semconv.TOOL_NAME: named})
            CALLER_SOURCES.append(span.caller)
            outer.callback(CALLER_SOURCES.remove, span.caller)
            outer.callback(span.end)
        with tracer.start_as_current_span("MCP send tools/call add"):
            inject(carrier)
            server = extract(carrier, Context())
            tracer.start_span("tools/call add", context=server, attributes=attributes).end()
    assert _tools(recording) == [named]
    assert len(recording.spans) == 3, "the others stay"


@pytest.mark.usefixtures("capturing")
def test_tools_within_tools_count_each(recording: Recording) -> None:
    with recording.active(), AgentSpan.for_tool("research", "call_1", "{}").run():
        AgentSpan.for_tool("search", "call_2", "{}").start().end()
        with AgentSpan.for_agent("helper").run():
            AgentSpan.for_tool("research", "call_3", "{}").start().end()
    assert sorted(_tools(recording)) == ["research", "research", "search"]


@pytest.mark.usefixtures("capturing")
def test_the_agent_that_asks_a_server_is_known_there(recording: Recording) -> None:
    carrier = dict[str, str]()
    with recording.active():
        with AgentSpan.for_agent("solver").run():
            inject(carrier)
            detached = trace.get_tracer("mcp").start_span("tools/call", context=extract(carrier, Context()))
        detached.end()
    assert recording.named("tools/call")[0].attributes[semconv.AGENT_NAME] == "solver"


def test_the_users_processors_are_kept(
    user: tuple[TracerProvider, InMemorySpanExporter], recording: Recording
) -> None:
    provider, exporter = user
    capture.install()
    assert trace.get_tracer_provider() is provider
    with recording.active(), trace.get_tracer("x").start_as_current_span("seen by both"):
        pass
    IGNORED_SCOPES.add("plumbing")
    with recording.active(), trace.get_tracer("plumbing").start_as_current_span("the user's alone"):
        pass
    IGNORED_SCOPES.remove("plumbing")
    capture.uninstall()
    with recording.active(), trace.get_tracer("x").start_as_current_span("after"):
        pass
    assert [span.name for span in recording.spans] == ["seen by both"]
    assert [s.name for s in exporter.get_finished_spans()] == ["seen by both", "the user's alone", "after"]
    assert not (exporter.get_finished_spans()[-1].attributes or {})


def test_installing_again_adds_no_second_processor(
    user: tuple[TracerProvider, InMemorySpanExporter], recording: Recording
) -> None:
    for _ in range(3):
        capture.install()
        capture.install()
        capture.uninstall()
        capture.uninstall()
    capture.install()
    with recording.active(), trace.get_tracer("x").start_as_current_span("once"):
        pass
    assert len(recording.spans) == 1
    assert len(user[0]._active_span_processor._span_processors) == 2


@pytest.mark.usefixtures("capturing")
def test_a_provider_set_later_is_followed(recording: Recording) -> None:
    own = trace.get_tracer_provider()
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    once = trace._TRACER_PROVIDER_SET_ONCE
    was = once._done
    try:
        trace.set_tracer_provider(provider)
        assert trace.get_tracer_provider() is provider is not own
        with recording.active(), trace.get_tracer("x").start_as_current_span("theirs and ours"):
            pass
        assert len(exporter.get_finished_spans()) == len(recording.spans) == 1
    finally:
        once._done = was
        trace._TRACER_PROVIDER = None


def test_uninstall_takes_our_own_provider_away() -> None:
    before = trace._TRACER_PROVIDER
    capture.install()
    assert capture.installed() and trace._TRACER_PROVIDER is not before
    capture.uninstall()
    assert not capture.installed() and trace._TRACER_PROVIDER is before


def test_the_switch_is_a_function_in_whatever_order_modules_are_imported() -> None:
    """Importing a submodule binds its name on the package: no submodule may be called ``install``."""
    code = "import agentlightning.capture.{0} as m; from agentlightning import capture; capture.installed(); "
    for first in ("installation", "context"):
        check = code.format(first) + "capture.install(); capture.uninstall()"
        subprocess.run([sys.executable, "-c", check], check=True, timeout=300)


def test_the_package_loads_no_opentelemetry() -> None:
    code = "import sys, agentlightning.capture; assert not [m for m in sys.modules if 'opentel' in m]"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
