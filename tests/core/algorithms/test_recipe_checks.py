"""A driver that knows no importance weights gets a recipe without them."""

from __future__ import annotations

from agentlightning.algorithms.recipe_checks import check_supported_fields, without_unsupported_default
from agentlightning.recipes import GRPO
from agentlightning.types import Recipe


def test_the_default_is_switched_off_where_it_would_be_ignored() -> None:
    assert without_unsupported_default(GRPO(), frozenset()).off_policy_cap is None
    assert without_unsupported_default(GRPO(), frozenset({"off_policy_cap"})) == GRPO()
    own = GRPO(off_policy_cap=5.0)
    assert without_unsupported_default(own, frozenset()) is own  # and is refused as any other field


def test_no_driver_has_to_know_how_to_leave_calls_out() -> None:
    plain = Recipe(name="r", off_policy_cap=None)
    check_supported_fields(plain, "other", frozenset())
