"""One reading of ``select`` for runs, marks and policy maps."""

from __future__ import annotations

from typing import Any

import pytest

from agentlightning.types.select import BadSelect, caller_name, policy_for, selector, with_role

WOLF = {"agent": "wolf_3", "role": "wolf", "node": "night"}


@pytest.mark.parametrize(
    ("select", "chosen"),
    [
        (None, True),
        (True, True),
        (False, False),
        ("wolf_3", True),
        ("wolf", True),
        ("night", True),
        ("wol", False),
        (["seer", "wolf"], True),
        (("seer", "re:w.*"), True),
        (["seer"], False),
        ("re:wolf_[0-9]+", True),
        ("re:nig", False),
        ("re:.*ht", True),
        (lambda tags: tags.get("node") == "night", True),
        (lambda tags: 0, False),
        (lambda tags, more=1: more, True),
    ],
)
def test_names_patterns_and_predicates(select: Any, chosen: bool) -> None:
    assert selector(select)(WOLF) is chosen


def test_other_tags_are_for_predicates() -> None:
    assert not selector("7")({"agent": "a", "turn": "7"})
    assert selector(lambda tags: tags["turn"] == "7")({"agent": "a", "turn": "7"})


@pytest.mark.parametrize(
    ("select", "match"),
    [
        ("", "policies: '' is no name: give a name"),
        ("re:", "has no pattern after it"),
        ("re:[", "'\\[' is not a regular expression"),
        (["a", "re:["], "'\\[' is not a regular expression"),
        ([], "an empty list, which means nobody"),
        ({"a": 1}, r"is \{'a': 1\} \(dict\)"),
        (["a", None], "give a name, a list of names"),
        (lambda: True, "does not take one argument, a call's tags"),
    ],
)
def test_what_cannot_be_read_is_refused(select: Any, match: str) -> None:
    with pytest.raises(BadSelect, match=match):
        selector(select, "policies")


def test_a_coroutine_function_is_no_predicate() -> None:
    async def later(tags: dict[str, str]) -> bool:
        return True

    with pytest.raises(BadSelect, match=r"later\(\) is a coroutine function"):
        selector(later)


def test_a_predicate_that_raises_says_for_which_tags_and_what_to_do() -> None:
    with pytest.raises(BadSelect, match=r"raised KeyError: 'side' for the tags .*wolf_3.*tags.get"):
        selector(lambda tags: tags["side"] == "wolves")(WOLF)


def test_a_predicate_cannot_change_the_tags() -> None:
    tags = dict(WOLF)
    selector(lambda tags: tags.pop("agent"))(tags)
    assert tags == WOLF


def test_the_first_policy_that_matches() -> None:
    policies = {"wolf_3": "alpha", "re:wolf.*": "wolves", "unknown": "rest"}
    assert policy_for(policies, WOLF) == "alpha"
    assert policy_for(policies, {"agent": "x", "role": "wolf"}) == "wolves"
    assert policy_for(policies, with_role({})) == "rest"
    assert policy_for(policies, {"agent": "seer"}) is None and policy_for({}, WOLF) is None


@pytest.mark.parametrize(
    ("tags", "role"),
    [
        ({}, "unknown"),
        ({"team": "salon"}, "unknown"),
        ({"role": "unknown"}, "unknown"),
        ({"agent": "a", "role": "unknown"}, "a"),
        ({"agent": "a"}, None),
        ({"node": "n"}, None),
        ({"node": "n", "role": "unknown"}, None),
        ({"role": "critic"}, "critic"),
    ],
)
def test_whom_nobody_named_has_the_role_unknown(tags: dict[str, str], role: str | None) -> None:
    before = dict(tags)
    assert with_role(tags).get("role") == role
    assert with_role(with_role(tags)) == with_role(tags) and tags == before


def test_how_a_caller_is_called() -> None:
    assert [caller_name(t) for t in ({}, {"role": "r"}, {"node": "n", "role": "r"}, WOLF)] == [
        "unknown",
        "r",
        "n",
        "wolf_3",
    ]
