"""A driver that knows no importance weights gets a recipe without them."""

from __future__ import annotations

import pytest

from agentlightning.credit.checks import (
    check_credit_fields,
    check_supported_fields,
    without_unsupported_default,
)
from agentlightning.credit.rules import RULES
from agentlightning.hookspecs import hookimpl
from agentlightning.plugins.manager import build
from agentlightning.recipes import GRPO, RLOO, REINFORCEPlusPlus
from agentlightning.specs import CreditRuleSpec
from agentlightning.types import Recipe
from agentlightning.types.base import ConfigError


def test_the_default_is_switched_off_where_it_would_be_ignored() -> None:
    off = without_unsupported_default(GRPO(), frozenset())
    assert off.off_policy_cap is None and off.correction is None
    check_supported_fields(off, "other", frozenset())
    both = frozenset({"off_policy_cap", "correction"})
    assert without_unsupported_default(GRPO(), both) == GRPO()
    own = GRPO(off_policy_cap=5.0, correction={"cap": 3.0})
    assert without_unsupported_default(own, frozenset()) is own  # and is refused as any other field
    with pytest.raises(ConfigError, match="correction"):
        check_supported_fields(own, "other", frozenset({"off_policy_cap"}))


def test_no_driver_has_to_know_how_to_leave_calls_out() -> None:
    plain = Recipe(name="r", off_policy_cap=None)
    check_supported_fields(plain, "other", frozenset())


NOTHING_TO_COMPARE = [
    GRPO(group_size=1),
    GRPO(group_size=1, baseline="none", scale="std"),
    RLOO(group_size=1),
    GRPO(group_size=1, group_by=["group", "turn"]),
]


@pytest.mark.parametrize("recipe", NOTHING_TO_COMPARE)
def test_a_group_of_one_with_nothing_to_compare_is_refused(recipe: Recipe) -> None:
    with pytest.raises(ConfigError, match=r"recipe.group_size = 1 with .* set recipe.group_size to 4"):
        check_credit_fields(recipe, **build([], discover=False).credit_functions)


def test_a_group_of_one_that_is_compared_with_the_batch_or_with_nothing_is_fine() -> None:
    plugins = build([], discover=False)
    for recipe in (
        GRPO(group_size=1, baseline="none", scale="none"),
        GRPO(group_size=1, group_by=["batch"]),
        GRPO(group_size=1, baseline="batch"),
        REINFORCEPlusPlus(),
    ):
        check_credit_fields(recipe, **plugins.credit_functions)


def test_a_discount_that_nothing_reads_is_refused() -> None:
    class Own:
        @hookimpl
        def agl_credit_rules(self) -> list[CreditRuleSpec]:
            return [CreditRuleSpec("mine", RULES["broadcast"])]

    plugins = build([Own()], discover=False)
    for rule in ("broadcast", "per_call", "per_agent"):
        with pytest.raises(ConfigError, match=rf"recipe.gamma = 0.9 with recipe.credit = '{rule}': nothing"):
            check_credit_fields(GRPO(gamma=0.9, credit=rule), **plugins.credit_functions)
    for recipe in (
        GRPO(gamma=0.9, credit="discounted"),
        GRPO(gamma=0.9, step_weight=1.0),
        GRPO(gamma=0.9, credit="mine"),
        GRPO(gamma=0.9, critic=True),
    ):
        check_credit_fields(recipe, **plugins.credit_functions)


def test_what_no_driver_can_do_is_to_be_dropped() -> None:
    recipe = GRPO(top_p=0.9, kl=0.1)
    with pytest.raises(ConfigError, match=r"top_p=0\.9 \(cut\).*; drop it$"):
        check_supported_fields(recipe, "small", frozenset({"kl"}), {"top_p": "cut"})
    with pytest.raises(ConfigError, match="; drop it, or use a driver that implements it"):
        check_supported_fields(recipe, "small", frozenset({"top_p"}))
