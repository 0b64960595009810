from __future__ import annotations

import asyncio
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from contract.capturing import Recording
from hypothesis import given, strategies as st
from opentelemetry import trace

import agentlightning as agl
from agentlightning import semconv
from agentlightning.capture import COUNTS, end_attempt
from agentlightning.capture.delivery import remember_response
from agentlightning.capture.emit import (
    BODY,
    emit_annotation,
    emit_object,
    emit_reward,
    find_final_reward,
    find_reward_spans,
    get_reward_value,
)
from agentlightning.types import Span
from agentlightning.types.record import reward_of


@pytest.fixture
def recording() -> Recording:
    COUNTS.clear()
    return Recording("emit", None)


@pytest.mark.parametrize("value", [1, 0.5, True, -2])
def test_a_reward_is_the_rollouts(recording: Recording, value: float) -> None:
    with recording.active():
        span = emit_reward(value)
    assert recording.spans == [span]
    assert find_final_reward(recording.spans) == float(value)
    reward = reward_of(span)
    assert reward and (reward.value, reward.name, reward.final, reward.call_id) == (
        value,
        "reward",
        True,
        None,
    )


class Scalar:
    def __init__(self, value: Any) -> None:
        self.value = value

    def item(self) -> Any:
        return self.value


def test_scalars_of_tensor_libraries_are_numbers(recording: Recording) -> None:
    with recording.active():
        assert get_reward_value(emit_reward(Scalar(0.25))) == 0.25  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "1.0", [1.0], Scalar("x"), object()])
def test_what_is_no_number_is_refused_and_told_why(recording: Recording, value: Any) -> None:
    with recording.active(), pytest.raises(ValueError, match="missing is not zero"):
        emit_reward(value)
    assert recording.spans == []


def test_a_reward_of_several_dimensions(recording: Recording) -> None:
    with recording.active():
        span = emit_reward({"right": 1.0, "short": 0}, primary_key="right")
        for key in (None, "elegant"):
            with pytest.raises(ValueError, match=r"primary_key.*'right', 'short'"):
                emit_reward({"right": 1.0, "short": 0.0}, primary_key=key)
        with pytest.raises(ValueError, match="short"):
            emit_reward({"right": 1.0, "short": math.nan}, primary_key="right")
    assert get_reward_value(span) == 1.0
    assert span.attributes[semconv.REWARD_DIMENSIONS] == {"right": 1.0, "short": 0.0}


def test_a_reward_of_a_call(recording: Recording) -> None:
    remember_response("at-emit", "chatcmpl-7", "00000000000000aa")
    with recording.active():
        by_call = emit_reward(1, call="at-emit-0.0")
        by_response_id = emit_reward(1, call="chatcmpl-7")
        by_response = emit_reward(1, call=SimpleNamespace(id="chatcmpl-7"))
        unseen = emit_reward(1, call=SimpleNamespace(id="chatcmpl-of-another-process"))
        with pytest.raises(ValueError, match="names no model call"):
            emit_reward(1, call=3)
    rewards = [reward_of(span) for span in (by_call, by_response_id, by_response)]
    assert [(r.call_id, r.span_id, r.final) for r in rewards if r] == [
        ("at-emit-0.0", None, False),
        (None, "00000000000000aa", False),
        (None, "00000000000000aa", False),
    ]
    other = reward_of(unseen)
    assert other and other.attributes[semconv.RESPONSE_ID] == "chatcmpl-of-another-process"


def test_a_reward_of_an_agent(recording: Recording) -> None:
    with recording.active():
        span = emit_reward(0.5, agent="writer", name="style", attributes={"judge": "gpt"})
        both = emit_reward(0.5, agent="writer", final=True)
    reward = reward_of(span)
    assert reward and (reward.agent, reward.name, reward.final) == ("writer", "style", False)
    assert reward.attributes["judge"] == "gpt"
    assert both.attributes[semconv.REWARD_FINAL] is True


@given(st.lists(st.tuples(st.floats(-5, 5), st.booleans()), max_size=8))
def test_the_final_reward_is_the_last_that_is_final(emitted: list[tuple[float, bool]]) -> None:
    recording = Recording("many", None)
    with recording.active():
        emit_object("noise")
        for value, final in emitted:
            emit_reward(value, final=final)
    finals = [value for value, final in emitted if final]
    assert find_final_reward(recording.spans) == (finals[-1] if finals else None)
    assert len(find_reward_spans(recording.spans)) == len(emitted)


def test_a_span_without_a_number_is_no_reward() -> None:
    text = {semconv.REWARD_VALUE: "1"}
    span = Span(rollout_id="r", attempt_id="a", name=semconv.REWARD_SPAN, attributes=text)
    read = reward_of(span)
    assert get_reward_value(span) is None and read is not None and math.isnan(read.value)


def test_the_other_emitters(recording: Recording) -> None:
    with recording.active():
        emit_object({"deep": [1, {2}]}, attributes={"level": 1})
        emit_annotation({"night": 2})
    thing, note = recording.spans
    assert thing.attributes == {BODY: {"deep": [1, "{2}"]}, "level": 1}
    assert note.attributes == {"night": 2}
    assert COUNTS.snapshot() == {"convert-stringified": 1}


@pytest.mark.usefixtures("capturing")
def test_emitted_spans_hang_below_the_current_one(recording: Recording) -> None:
    with recording.active():
        with trace.get_tracer("x").start_as_current_span(
            "agent-span", attributes={semconv.AGENT_NAME: "writer"}
        ):
            emitted = emit_reward(1.0)
        alone = emit_reward(1.0)
    (agent,) = recording.named("agent-span")
    assert (emitted.parent_id, emitted.trace_id) == (agent.span_id, agent.trace_id)
    assert emitted.attributes[semconv.AGENT_NAME] == "writer"
    assert alone.parent_id is None and len(alone.trace_id) == 32


def test_outside_an_attempt_emitting_is_an_error(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RuntimeError, match="no current attempt"):
        emit_reward(1.0)
    recording.context.attempt_id = "at-emit-ended"
    end_attempt("at-emit-ended")
    with recording.active(), pytest.raises(RuntimeError, match="has ended"):
        emit_object("late")
    monkeypatch.setenv("AGL_EMIT_OUTSIDE", "ignore")
    assert get_reward_value(emit_reward(1.0)) == 1.0
    assert recording.spans == []
    assert COUNTS.snapshot() == {"emit-outside-attempt": 2, "late-span": 1}


@pytest.mark.usefixtures("capturing")
async def test_emitting_from_tasks_and_threads() -> None:
    recordings = [Recording(f"thread-{number}", None) for number in range(8)]
    pool = ThreadPoolExecutor(2)  # its workers serve all attempts in turn

    async def work(number: int) -> None:
        with recordings[number].active():
            await asyncio.to_thread(emit_reward, number)
            await asyncio.get_running_loop().run_in_executor(pool, emit_reward, number)
            await asyncio.create_task(asyncio.sleep(0))
            thread = threading.Thread(target=emit_reward, args=(number,))
            thread.start()
            await asyncio.to_thread(thread.join)
            with agl.tagged(agent="a"):
                emit_reward(number)

    await asyncio.gather(*(work(number) for number in range(8)))
    for number, recording in enumerate(recordings):
        assert [get_reward_value(span) for span in recording.spans] == [float(number)] * 4
    with pytest.raises(RuntimeError, match="no current attempt"):
        pool.submit(emit_reward, 1.0).result()  # the workers kept nothing
    pool.shutdown()


def test_public_names() -> None:
    assert agl.emit_reward is emit_reward and agl.find_final_reward is find_final_reward
