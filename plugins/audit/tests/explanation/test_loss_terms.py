"""What pulls at a token: every term of the loss, with what is known of it and what only the driver knew."""

from __future__ import annotations

import math
from typing import Any

import pytest
from core.credit.builders import PATIENT
from core.credit.reference import clip_term
from hypothesis import given, strategies as st

from agentlightning.recipes import GRPO
from agl_audit.explanation.loss_terms import LossTerm, TrainedToken, loss_terms, net_effect


def token(**fields: Any) -> TrainedToken:
    return TrainedToken(
        **{"advantage": 0.5, "weight": 0.1, "logprob": -1.0, "version": 3, "trained": 3, **fields}
    )


def found(recipe: Any, **fields: Any) -> dict[str, LossTerm]:
    return {pull.term: pull for pull in loss_terms(recipe, token(**fields))}


def said(recipe: Any, **fields: Any) -> str:
    return net_effect(loss_terms(recipe, token(**fields)))


def test_a_fresh_token_in_one_optimizer_step_has_ratio_1_and_is_not_clipped() -> None:
    got = found(GRPO())
    assert list(got) == ["policy gradient", "clip"]
    assert got["policy gradient"].size == pytest.approx(0.05) and got["clip"].size == 0.0
    assert "does not act" in got["clip"].text
    assert said(GRPO()) == "made likelier" and said(GRPO(), advantage=-0.5) == "made less likely"


def test_a_fresh_token_of_a_corrected_step_has_an_importance_weight() -> None:
    plain = found(GRPO(), gap=0.4, corrected=False)
    assert "importance weight" not in plain and plain["clip"].size is None
    got = found(GRPO(), gap=0.4, corrected=True)
    assert got["clip"].size == 0.0  # ratios are taken against the trainer's own weights
    weight = got["importance weight"]
    assert weight.size is None and "at most 2" in weight.text and "0.4" in weight.text
    masked = GRPO(correction={"kind": "mask", "level": "sequence", "cap": 4.0})
    text = found(masked, corrected=True)["importance weight"].text
    assert "its call's" in text and "0 outside [0.25, 4]" in text
    assert "importance weight" not in found(GRPO(), corrected=True, version=2)  # stale


def test_nothing_pulls_only_where_no_term_does() -> None:
    assert said(GRPO(), advantage=0.0).startswith("nothing pulls at it")
    entropy = said(GRPO(entropy=0.01), advantage=0.0)
    assert entropy.startswith("pulled by the entropy term alone") and "nothing pulls" not in entropy
    both = said(GRPO(entropy=0.01, kl=0.1), advantage=0.0)
    assert both.startswith("pulled by the entropy term and the KL term alone")
    assert said(GRPO(kl=0.1)).startswith("made likelier by the policy gradient, and pulled by the KL term")


def test_the_kl_term_is_never_called_zero_as_any_policy_may_be_the_reference() -> None:
    for fields in ({}, {"trained": 0, "version": 0}):
        assert found(GRPO(kl=0.1), **fields)["KL term"].size is None
        assert "nothing pulls" not in said(GRPO(kl=0.1), advantage=0.0, **fields)
    assert found(GRPO(kl=0.1), weight=0.0)["KL term"].size == 0.0


@pytest.mark.parametrize(
    ("fields", "side"),
    [
        ({"advantage": 0.5}, "above 1.3"),
        ({"advantage": -0.5}, "below 0.9, and above 3 (dual clip)"),
    ],
)
def test_the_clip_says_which_side_it_zeroes(fields: dict[str, float], side: str) -> None:
    recipe = GRPO(clip_low=0.1, clip_high=0.3, clip_ratio_c=3.0, epochs=2)
    clip = found(recipe, **fields)["clip"]
    assert clip.size is None and clip.text.startswith(f"zeroes its policy gradient at ratios {side}")
    assert "the driver alone knew" in clip.text and "unless the clip zeroed it" in said(recipe, **fields)


@PATIENT
@given(st.floats(-0.6, 0.6), st.sampled_from([0.5, -0.5]), st.sampled_from([None, 1.5]), st.floats(0.05, 0.3))
def test_outside_the_range_is_where_the_loss_is_flat(change, advantage, dual, low) -> None:
    """Against the loss itself: its derivative by the logprob is 0 outside, and not inside."""
    recipe = GRPO(clip_low=low, clip_high=0.2, clip_ratio_c=dual, epochs=2)
    step = 1e-7
    up, down = (clip_term(change + d, 0.0, advantage, recipe) for d in (step, -step))
    bounds = [math.log(1.2), math.log(1 - low), math.log(dual or 9.0)]
    if min(abs(change - bound) for bound in bounds) < 1e-6:
        return  # at the kink both are right
    text = found(recipe, advantage=advantage, logprob=-1.0, now=-1.0 + change)["clip"].text
    assert ("outside the range" in text) == (up == down) and ("inside the range" in text) == (up != down)


def test_stale_tokens_have_ratios_that_only_the_driver_knew() -> None:
    clip = found(GRPO(max_staleness=2), version=1)["clip"]
    assert clip.size is None and "sampled by version 1, trained at version 3" in clip.text
    capped = found(GRPO(max_staleness=2, importance_cap=2.0), version=1)
    assert capped["clip"].size == 0.0 and capped["importance cap"].size is None
    assert "at most 2" in capped["importance cap"].text
    assert said(GRPO(max_staleness=2, importance_cap=2.0), version=1).startswith("made likelier; how far")
    assert found(GRPO(importance_cap=2.0))["importance cap"].size == 0.0
    assert "is not known" in found(GRPO(), version=-1)["clip"].text
    assert "is not known" in found(GRPO(), trained=None)["clip"].text


def test_what_was_sampled_otherwise_has_a_weight() -> None:
    pull = found(GRPO(), off_policy=True, version=1, logprob=math.log(0.5))
    assert list(pull) == ["policy gradient", "clip", "importance weight"]
    assert pull["clip"].size == 0.0 and pull["importance weight"].size is None
    assert "over the recorded one, 0.5, at most 2; that factor" in pull["importance weight"].text
    now = {"logprob": math.log(0.5), "off_policy": True}
    assert found(GRPO(), now=math.log(0.1), **now)["importance weight"].text.endswith("would be 0.2")
    assert found(GRPO(off_policy_cap=1.5), now=0.0, **now)["importance weight"].text.endswith("would be 1.5")
    assert said(GRPO(), off_policy=True).startswith("made likelier; how far")
    several = found(GRPO(epochs=2), now=math.log(0.1), **now)["clip"]
    assert "under the policy shown" not in several.text  # its ratio is to weights that are gone


def test_other_losses_and_a_critic() -> None:
    assert "clip" not in found(GRPO(loss="reinforce"))
    assert "its call" in found(GRPO(ratio_level="sequence"))["policy gradient"].text
    valued = GRPO(critic=True)
    assert found(valued)["policy gradient"].size is None and "which way" in said(valued)
    assert (
        "under the policy shown" not in found(GRPO(ratio_level="sequence", epochs=2), now=-0.9)["clip"].text
    )


def test_a_bounded_ratio_drops_no_token() -> None:
    named = found(GRPO(loss="cispo", clip_low=1.0, epochs=2))
    assert "clip" not in named and named["ratio bound"].size is None
    assert "below 0 or above 1.2 counts as that bound; its policy gradient stays" in named["ratio bound"].text
    assert found(GRPO(loss="cispo"))["ratio bound"].size == 0.0
    assert "zeroed" not in said(GRPO(loss="cispo", epochs=2))


def test_a_gap_between_engine_and_trainer_is_said_and_may_clip() -> None:
    assert found(GRPO(), gap=1e-5)["clip"].size == 0.0
    assert "at most 1e-05" in found(GRPO(), gap=1e-5)["clip"].text
    wide = found(GRPO(), gap=0.5)["clip"]
    assert wide.size is None and "engine and trainer differ by up to 0.5" in wide.text
    assert "unless the clip zeroed it" in said(GRPO(), gap=0.5)
