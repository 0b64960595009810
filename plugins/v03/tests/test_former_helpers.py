"""Small helpers of v0.3: logging, datasets, attributes, environment, what emitters wrote."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentlightning as agl
from agentlightning.algorithm.utils import batch_iter_over_dataset
from agentlightning.capture.context import AttemptContext, attempt_context
from agentlightning.emitter import get_message_value, get_object_value, get_rewards_from_span, is_reward_span
from agentlightning.env_var import (
    LightningEnvVar,
    resolve_bool_env_var,
    resolve_int_env_var,
    resolve_str_env_var,
)
from agentlightning.reward import reward
from agentlightning.semconv import AGL_OPERATION, LightningSpanAttributes
from agentlightning.utils.id import generate_id
from agentlightning.utils.otel import (
    extract_links_from_attributes,
    extract_tags_from_attributes,
    filter_and_unflatten_attributes,
    flatten_attributes,
    get_tracer,
    get_tracer_provider,
    make_link_attributes,
    make_tag_attributes,
    query_linked_spans,
    unflatten_attributes,
)
from agl_v03.logging_setup import our_loggers


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """The logger of core. It and those of the plugins are as before after the test."""
    every = [logging.getLogger(name) for name in our_loggers()]
    before = [(one.handlers[:], one.level, one.propagate) for one in every]
    yield every[0]
    for one, was in zip(every, before, strict=True):
        for handler in set(one.handlers) - set(was[0]):
            handler.close()
        one.handlers[:], one.level, one.propagate = was


def test_setup_logging_twice_logs_once(logger: logging.Logger, tmp_path: Path) -> None:
    file = tmp_path / "new" / "all.log"
    for _ in range(2):
        agl.setup_logging("DEBUG", color=False, files=str(file), submodule_levels={"agentlightning.a": 40})
    logging.getLogger("agentlightning.b").debug("heard %d", 1)
    logging.getLogger("agentlightning.a").info("not heard")
    (line,) = file.read_text().splitlines()
    assert "[DEBUG]" in line and line.endswith("heard 1")
    assert len([h for h in logger.handlers if getattr(h, "agl_console", False)]) == 1
    assert not logger.propagate


def test_setup_logging_is_heard_of_the_parts_that_are_plugins(logger: logging.Logger, tmp_path: Path) -> None:
    file, theirs = tmp_path / "all.log", logging.getLogger("theirs.module")
    part = logging.getLogger("agl_cluster.runners.supervisor")
    try:
        agl.setup_logging(console=False, files=str(file), disable_existing_loggers=True)
        assert theirs.disabled and not part.disabled
    finally:
        for known in logging.root.manager.loggerDict.values():
            if isinstance(known, logging.Logger):
                known.disabled = False
    part.info("worker 1 died")
    assert file.read_text().endswith("worker 1 died\n")


def test_setup_logging_leaves_other_loggers_alone(logger: logging.Logger) -> None:
    root, theirs = logging.getLogger().handlers[:], logging.getLogger("theirs")
    own = logging.NullHandler()
    agl.setup_logging(apply_to=["theirs"], extra_handlers=[own], console=False)
    try:
        assert logging.getLogger().handlers == root and own in theirs.handlers
    finally:
        theirs.handlers.clear()
    with pytest.raises(ValueError, match="no log level 'LOUD'"):
        agl.setup_module_logging("LOUD")
    with pytest.warns(FutureWarning, match="setup_logging"):
        assert agl.configure_logger(name="agentlightning.one").name == "agentlightning.one"


def test_a_dataset_has_items_and_a_length() -> None:
    assert isinstance(["task"], agl.Dataset) and not isinstance(iter([]), agl.Dataset)
    assert agl.Dataset[str] is not None  # as v0.3's programs annotate
    batches = batch_iter_over_dataset([1, 2, 3, 4, 5], 2)
    seen = [item for _ in range(5) for item in next(batches)]
    assert sorted(seen) == sorted([1, 2, 3, 4, 5] * 2)  # each twice in two passes
    assert next(batch_iter_over_dataset([1, 2], 8)) == [1, 2]
    with pytest.raises(ValueError, match="both must be above 0"):
        next(batch_iter_over_dataset([], 2))


def test_variables_are_read_with_a_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    port, role, managed = (
        LightningEnvVar.AGL_SERVER_PORT,
        LightningEnvVar.AGL_CURRENT_ROLE,
        LightningEnvVar.AGL_MANAGED_STORE,
    )
    assert resolve_int_env_var(port, fallback=4747) == 4747
    monkeypatch.setenv("AGL_SERVER_PORT", "9999")
    monkeypatch.setenv("AGL_MANAGED_STORE", "Off")
    monkeypatch.setenv("AGL_CURRENT_ROLE", "runner")
    assert resolve_int_env_var(port) == 9999 and resolve_int_env_var(port, override=1) == 1
    assert resolve_bool_env_var(managed) is False and resolve_str_env_var(role) == "runner"
    monkeypatch.setenv("AGL_MANAGED_STORE", "perhaps")
    monkeypatch.setenv("AGL_SERVER_PORT", "x")
    with pytest.raises(ValueError, match="AGL_MANAGED_STORE is 'perhaps'"):
        resolve_bool_env_var(managed)
    with pytest.raises(ValueError, match="give a whole number"):
        resolve_int_env_var(port)


def test_attributes_nest_and_flatten() -> None:
    nested = {"a": {"b": [1, {"c": 2}]}, "d": "e"}
    flat = flatten_attributes(nested)
    assert flat == {"a.b.0": 1, "a.b.1.c": 2, "d": "e"} and unflatten_attributes(flat) == nested
    assert filter_and_unflatten_attributes(flat, "a") == {"b": [1, {"c": 2}]}
    assert AGL_OPERATION == "agentlightning.operation"


def test_tags_and_links_find_spans() -> None:
    marked = {**make_tag_attributes(["x", "y"]), **make_link_attributes({"task": "7", "span_id": "s1"})}
    assert LightningSpanAttributes.TAG.value == "agentlightning.tag"
    assert extract_tags_from_attributes(marked) == ["x", "y"]
    links = extract_links_from_attributes(marked)
    spans = [
        agl.Span(rollout_id="r", attempt_id="a", name="n", span_id=f"s{i}", attributes={"task": "7"})
        for i in range(3)
    ]
    assert query_linked_spans(spans, links) == [spans[1]]
    assert get_tracer_provider() is not None and get_tracer() is not None
    assert len(generate_id(20)) == 20 and generate_id(20) != generate_id(20)


def emitted(function: Any) -> list[agl.Span]:
    spans: list[agl.Span] = []
    with attempt_context(AttemptContext("ro-1", "at-1", sink=spans.append)):
        function()
    return spans


def test_emitted_values_are_read_back() -> None:
    (message,) = emitted(lambda: agl.emit_message("hello"))
    (found,) = emitted(lambda: agl.emit_object({"n": 1}))
    (one,) = emitted(lambda: agl.emit_reward(0.5))
    (two,) = emitted(lambda: agl.emit_reward({"style": 0.1, "task": 0.9}, primary_key="task"))
    assert get_message_value(message) == "hello" and get_message_value(found) is None
    assert get_object_value(found) == {"n": 1} and get_object_value(one) is None
    assert is_reward_span(one) and not is_reward_span(message) and get_rewards_from_span(message) == []
    assert get_rewards_from_span(one) == [{"name": "reward", "value": 0.5}]
    assert [entry["name"] for entry in get_rewards_from_span(two)] == ["task", "style"]


async def test_the_decorator_reward_emits_what_a_function_returns() -> None:
    @reward
    def score(answer: str) -> float:
        return float(len(answer))

    @reward
    async def later() -> float | None:
        return None

    spans = emitted(lambda: score("four"))
    assert agl.find_final_reward(spans) == 4.0 and score.__name__ == "score"
    assert score("four") == 4.0  # outside a rollout it only returns
    with attempt_context(AttemptContext("ro-1", "at-1", sink=spans.append)):
        assert await later() is None
    assert len(spans) == 1  # what is missing is not emitted


def test_without_propagation_a_span_is_only_returned() -> None:
    span = agl.emit_reward(1.0, propagate=False)  # outside an attempt
    assert agl.get_reward_value(span) == 1.0
    assert emitted(lambda: agl.emit_message("x", propagate=False)) == []

    @agl.operation(propagate=False)
    def work(x: int) -> int:
        return x + 1

    assert emitted(lambda: work(1)) == []


def test_operations_in_the_forms_of_v03() -> None:
    @agl.operation
    def plain(x: int) -> int:
        return x + 1

    def block() -> None:
        with agl.operation(conversation="c") as op:
            op.set_input(task={"q": 1})
            op.set_output({"status": "ok"})

    (first,) = emitted(lambda: plain(1))
    (second,) = emitted(block)
    assert first.attributes["agl.operation.output"] == 2 and first.attributes["agl.operation.input"] == {
        "x": 1
    }
    assert first.attributes["agl.operation.name"].endswith("plain")
    assert second.attributes["agl.operation.input"] == {"conversation": "c", "task": {"q": 1}}
    assert second.attributes["agl.operation.output"] == {"status": "ok"}


def test_a_process_has_one_active_tracer() -> None:
    one = agl.OtelTracer()
    agl.set_active_tracer(one)
    assert agl.get_active_tracer() is one
    with pytest.raises(ValueError, match="is active already"):
        agl.set_active_tracer(agl.OtelTracer())
    agl.clear_active_tracer()
    assert agl.get_active_tracer() is None
