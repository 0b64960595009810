"""Rewards of Agent Lightning 0.2 and 0.3 and of AgentOps are read as ours where spans come in."""

from __future__ import annotations

from typing import Any

import pytest

from agentlightning import find_final_reward, semconv
from agentlightning.capture import COUNTS, records
from agentlightning.capture.delivery import remember_response
from agentlightning.capture.records import BadRecord, admit, validated
from agentlightning.types import Reward, Span
from agentlightning.types.record import reward_of
from agl_v03 import plugin


@pytest.fixture(autouse=True)
def formats(monkeypatch: pytest.MonkeyPatch) -> None:
    """The formats, as :func:`agentlightning.plugins.load` takes them from the plugin."""
    monkeypatch.setattr(records, "REWARD_FORMATS", plugin.agl_reward_formats())


def span(name: str, **attributes: Any) -> Span:
    given = {key.replace("__", "."): value for key, value in attributes.items()}
    return Span(rollout_id="r", attempt_id="a", name=name, span_id="s", attributes=given)


def read(given: Span) -> Reward | None:
    return reward_of(validated(given))


def version3(value: Any, name: str = "primary", at: str = semconv.ANNOTATION_SPAN, **more: Any) -> Span:
    return span(at, agentlightning__reward__0__name=name, agentlightning__reward__0__value=value, **more)


@pytest.mark.parametrize(
    "given",
    [
        version3(0.5),
        version3(0.5, at=semconv.OPERATION_SPAN),
        span(semconv.REWARD_SPAN, reward=0.5),
        span("task", agentops__task__output='{"type": "reward", "value": 0.5}'),
        span("anything", agentops__entity__output='{"value": 0.5, "type": "reward"}'),
        span("anything", agentops__entity__output={"value": 0.5, "type": "reward"}),
    ],
)
def test_every_format_is_the_rollouts_reward(given: Span) -> None:
    found = read(given)
    assert found is not None and (found.value, found.name, found.final) == (0.5, "reward", True)
    assert find_final_reward([validated(given)]) == 0.5
    assert validated(validated(given)) == validated(given)  # once is enough


def test_of_several_the_first_is_trained_on_and_all_are_kept() -> None:
    more = {"agentlightning__reward__1__name": "speed", "agentlightning__reward__1__value": 2.0}
    kept = validated(version3(1.0, "quality", **more))
    assert kept.attributes["agl.reward.dimensions"] == {"quality": 1.0, "speed": 2.0}
    assert kept.attributes["agl.reward.read_from"] == semconv.ANNOTATION_SPAN
    found = reward_of(kept)
    assert found is not None and found.value == 1.0


def test_a_link_to_a_response_is_a_reward_of_that_call() -> None:
    link = {
        "agentlightning__link__0__key_match": semconv.RESPONSE_ID,
        "agentlightning__link__0__value_match": "r-7",
    }
    found = read(version3(1.0, **link))
    assert found is not None and (found.call_id, found.final) == ("r-7", False)
    remember_response("a", "r-7", "the-call")
    found = read(version3(1.0, **link))
    assert found is not None and (found.span_id, found.call_id) == ("the-call", None)


@pytest.mark.parametrize(
    "given",
    [
        span(semconv.ANNOTATION_SPAN, note="x"),
        span("other", agentlightning__reward__0__value=1.0),
        span("task", agentops__task__output='{not json "reward"'),
        span("task", agentops__task__output='{"type": "reward"}'),
        span("task", agentops__task__output='{"type": "hits", "about": "reward", "value": 1}'),
        span(semconv.ANNOTATION_SPAN, agentlightning__reward__0__name="primary"),
    ],
)
def test_what_is_no_reward_stays_as_it_is(given: Span) -> None:
    assert validated(given) is given and read(given) is None


@pytest.mark.parametrize("value", ["high", None, float("nan"), 10**400, [1.0]])
def test_a_reward_that_is_no_number_is_set_aside(value: Any) -> None:
    with pytest.raises(BadRecord, match=r"agl\.reward\.value"):
        validated(version3(value))
    assert admit(version3(value), "r", "a").name == semconv.BAD_RECORD_SPAN


@pytest.mark.parametrize(
    "given", [version3(0.5), span("task", agentops__task__output='{"type": "reward", "value": 0.5}')]
)
def test_without_the_plugin_such_a_reward_is_counted_and_told(
    given: Span, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(records, "REWARD_FORMATS", [])
    COUNTS.clear()
    assert validated(given) is given and COUNTS.snapshot() == {"reward-of-0.x": 1}
    assert "install agl-v03" in caplog.text


@pytest.mark.plugins
def test_loaded_plugins_translate(monkeypatch: pytest.MonkeyPatch) -> None:
    from agentlightning.plugins import load

    monkeypatch.setattr(records, "REWARD_FORMATS", given := [])
    monkeypatch.setattr("agentlightning.plugins.manager.REWARD_FORMATS", given)
    load()
    assert find_final_reward([validated(version3(0.5))]) == 0.5
