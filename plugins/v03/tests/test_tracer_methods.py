"""The tracers' methods of Agent Lightning 0.1 to 0.3, in a subclass as other packages have one."""

from __future__ import annotations

from typing import Any

import pytest

import agentlightning as agl
from agentlightning.store import SQLiteStore
from agl_v03.tracer import Tracer


class Sub(agl.AgentOpsTracer):
    """As Agent Framework's lab package does: it begins its own instrumentation first."""

    told: list[str]

    def __init__(self) -> None:
        super().__init__(agentops_managed=True, instrument_managed=True, daemon=True)
        self.told = []

    def init(self) -> None:
        self.told.append("init")
        super().init()

    def init_worker(self, worker_id: int) -> None:
        super().init_worker(worker_id)
        self.told.append(f"init_worker {worker_id}")

    def teardown_worker(self, worker_id: int) -> None:
        super().teardown_worker(worker_id)
        self.told.append(f"teardown_worker {worker_id}")

    def teardown(self) -> None:
        super().teardown()
        self.told.append("teardown")

    def instrument(self, worker_id: int) -> None:
        self.told.append(f"instrument {worker_id}")

    def uninstrument(self, worker_id: int) -> None:
        self.told.append(f"uninstrument {worker_id}")


TOLD = ["init", "instrument 0", "init_worker 0", "uninstrument 0", "teardown_worker 0", "teardown"]


async def test_a_runner_tells_its_tracer_of_begin_and_end() -> None:
    store, tracer = SQLiteStore(":memory:"), Sub()
    runner = agl.LitAgentRunner[str](tracer)
    with runner.run_context(agent=lambda task: 1.0, store=store):
        assert tracer.told == TOLD[:3]
        await runner.step("x")
    assert tracer.told == TOLD
    await store.close()


def test_a_lifespan_does_too() -> None:
    tracer = Sub()
    with tracer.lifespan():
        assert tracer.worker_id == 0
    assert tracer.told == TOLD
    tracer.told, tracer.instrument_managed = [], False
    with tracer.lifespan():
        pass
    assert tracer.told == [one for one in TOLD if "instrument" not in one]


@pytest.mark.parametrize("made", [agl.OtelTracer(), Sub()])
def test_functions_are_traced(made: Tracer) -> None:
    assert made.trace_run(lambda x: (agl.emit_message("m"), x)[1], 2) == 2
    assert [span.name for span in made.get_last_trace()] == ["agentlightning.message"]


async def test_coroutine_functions_are_traced() -> None:
    async def work(x: int) -> int:
        agl.emit_message("m")
        return x + 1

    made = agl.OtelTracer()
    assert await made.trace_run_async(work, 2) == 3
    assert [span.name for span in made.get_last_trace()] == ["agentlightning.message"]


def test_a_context_may_be_entered_plainly_and_stores_what_it_recorded() -> None:
    """0.1's was a plain context manager, 0.2's an asynchronous one."""
    tracer = agl.OtelTracer()
    with tracer.trace_context("block") as inner, inner.start_as_current_span("step"):
        agl.emit_reward(0.5)
    assert {span.name for span in tracer.get_last_trace()} == {"step", "agentlightning.reward"}


def test_spans_are_made_and_operations_recorded() -> None:
    tracer = agl.OtelTracer()
    with tracer.trace_context():
        made = tracer.create_span("note", {"k": 1}, timestamp=12.5, status="ok")
        with tracer.operation_context("work", {"a": "b"}, start_time=1.0, end_time=3.0) as operation:
            operation.record_attributes({"c": 2})
            agl.emit_message("inside")
        with pytest.raises(ValueError, match="why"), tracer.operation_context("bad"):
            raise ValueError("why")
        assert operation.get_otel_span().get_span_context().is_valid
    spans = {span.name: span for span in tracer.get_last_trace()}
    assert (made.name, made.start_time, made.end_time) == ("note", 12.5, 12.5)
    assert spans["note"].attributes["k"] == 1 and spans["note"].status == "ok"
    work = spans["work"]
    assert (work.start_time, work.end_time) == (1.0, 3.0)
    assert {name: work.attributes[name] for name in ("a", "c")} == {"a": "b", "c": 2}
    assert spans["agentlightning.message"].parent_id == work.span_id
    assert spans["bad"].status == "error" and spans["bad"].events


def test_langchain_gets_a_handler_where_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    found = agl.OtelTracer().get_langchain_handler(["tag"])
    assert found is None  # plugins are not loaded here: nothing names LangChain's agents


@pytest.mark.plugins
def test_langchain_calls_the_handler() -> None:
    runnables = pytest.importorskip("langchain_core.runnables")
    handler: Any = agl.OtelTracer().get_langchain_callback_handler()
    chain = runnables.RunnableLambda(lambda x: x + 1)
    assert chain.invoke(1, {"callbacks": [handler]}) == 2


async def test_in_a_rollout_the_last_trace_is_its_own() -> None:
    """Whichever tracer is asked, and whatever others record at the same time."""
    shared = agl.OtelTracer()
    seen: dict[str, list[list[str]]] = {}

    class Asks(agl.LitAgent[str]):
        async def rollout_async(self, task: str, resources: Any, rollout: agl.Rollout) -> float:
            agl.emit_message(f"about {task}")
            with shared.trace_context():
                agl.emit_message(f"inner {task}")
            inner = shared.get_last_trace()
            seen[task] = [
                [str(s.attributes.get("agl.body")) for s in spans]
                for spans in (inner, self.tracer.get_last_trace())
            ]
            return 1.0

    store = SQLiteStore(":memory:")
    runner = agl.LitAgentRunner[str](shared)
    with runner.run_context(agent=Asks(), store=store):
        await runner.step("one")
        await runner.step("two")
    assert seen == {task: [[f"inner {task}"], [f"about {task}"]] for task in ("one", "two")}
    await store.close()
