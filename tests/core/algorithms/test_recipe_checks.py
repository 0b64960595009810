"""A driver that knows no importance weights gets a recipe without them."""

from __future__ import annotations

import pytest

from agentlightning.algorithms.recipe_checks import check_supported_fields, without_unsupported_default
from agentlightning.recipes import GRPO
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


def test_what_no_driver_can_do_is_to_be_dropped() -> None:
    recipe = GRPO(top_p=0.9, kl=0.1)
    with pytest.raises(ConfigError, match=r"top_p=0\.9 \(cut\).*; drop it$"):
        check_supported_fields(recipe, "small", frozenset({"kl"}), {"top_p": "cut"})
    with pytest.raises(ConfigError, match="; drop it, or use a driver that implements it"):
        check_supported_fields(recipe, "small", frozenset({"top_p"}))
