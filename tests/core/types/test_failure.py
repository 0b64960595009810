"""The failure table: read from what a person wrote, and what it asks of the store."""

from __future__ import annotations

import math
from typing import Any

import pytest

from agentlightning.runner.settings import RunnerSection
from agentlightning.types.failure import (
    DEFAULT_FAILURE_TABLE,
    FAILURE_KINDS,
    FailureAction,
    failure_kind,
    failure_kind_of_end,
    read_failure_table,
)


@pytest.mark.parametrize(
    ("given", "action"),
    [
        (None, FailureAction()),
        ("leave-out", FailureAction()),
        ("retry", FailureAction(retry=True)),
        (-1, FailureAction(reward=-1.0)),
        (0.5, FailureAction(reward=0.5)),
        ({"retry": True, "reward": 0.0}, FailureAction(retry=True, reward=0.0)),
        ({"retry": True}, FailureAction(retry=True)),
        ({}, FailureAction()),
    ],
)
def test_an_action_as_a_person_writes_it(given: Any, action: FailureAction) -> None:
    assert read_failure_table({"timeout": given}) == {**DEFAULT_FAILURE_TABLE, "timeout": action}


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"tiemout": 0.0}, "unknown kind 'tiemout'; use one of agent-raised.*timeout"),
        ({"timeout": math.nan}, "failure.'timeout'.*finite"),
        ({"timeout": math.inf}, "failure.'timeout'.*finite"),
        ({"timeout": True}, "failure.'timeout'. = True: give a reward, 'retry', 'leave-out'"),
        ({"timeout": "again"}, "failure.'timeout'. = 'again': give a reward"),
        ({"timeout": {"rewrad": 1.0}}, "failure.'timeout'.*rewrad"),
        ({"timeout": {"reward": "1"}}, "failure.'timeout'.*give a reward"),
        ({"timeout": [1.0]}, "failure.'timeout'"),
        ({"no-reward": "retry"}, "failure.'no-reward'.: cannot be tried again"),
        ({"straggler": {"retry": True, "reward": 1.0}}, "failure.'straggler'.: cannot be tried again"),
    ],
)
def test_bad_tables_are_named(table: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_failure_table(table)


def test_by_default_nothing_becomes_a_number_and_what_is_nobodys_fault_is_tried_again() -> None:
    assert read_failure_table(None) == dict(DEFAULT_FAILURE_TABLE)
    assert all(action == FailureAction(retry=True) for action in DEFAULT_FAILURE_TABLE.values())
    config = RunnerSection(timeout_seconds=5.0).rollout_config(read_failure_table(None))
    assert (config.timeout_seconds, config.max_attempts) == (5.0, 3)
    assert config.retry_on == ["bad-record", "cancelled", "model-5xx", "unresponsive"]


def test_without_a_kind_to_try_again_there_is_one_attempt() -> None:
    never = read_failure_table(dict.fromkeys(DEFAULT_FAILURE_TABLE))
    config = RunnerSection(max_attempts=5).rollout_config(never)
    assert (config.max_attempts, config.retry_on) == (1, [])


@pytest.mark.parametrize(
    ("reason", "kind"),
    [(None, None), ("", None), ("timeout", "timeout"), ("timeout: 5 s", "timeout"), ("timeouts: 5 s", None)],
)
def test_a_reason_names_its_kind_by_its_first_word(reason: str | None, kind: str | None) -> None:
    assert failure_kind(reason) == kind


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        ("failed", "over-length: 9000 tokens", "over-length"),
        ("timeout", "longer than timeout_seconds", "timeout"),
        ("unresponsive", None, "unresponsive"),
        ("cancelled", "no more", "cancelled"),
        ("failed", "no more", "failed"),
        ("running", None, "failed"),
    ],
)
def test_every_end_has_one_kind(status: str, reason: str | None, kind: str) -> None:
    assert failure_kind_of_end(status, reason) == kind
    assert kind in FAILURE_KINDS
