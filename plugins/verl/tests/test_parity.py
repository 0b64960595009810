"""Parity with verl's core_algos, where the definitions coincide, and a record of where they do not.

``verl_core_algos.json`` was written by ``bench/verl_core_algos.py`` in an environment that has verl; it holds
verl's inputs and outputs.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from core.credit.builders import make_call, make_record
from core.credit.reference import clip_term

from agentlightning.credit import assign
from agentlightning.plugins.manager import build
from agentlightning.recipes import GRPO, RLOO
from agentlightning.types import Recipe
from agl_verl import plugin
from agl_verl.pass_at_k import GRPOPassK
from agl_verl.tree import VERL

FILE = json.loads(Path(__file__).with_name("verl_core_algos.json").read_text())
CASES = FILE["cases"]
ESTIMATORS = {"grpo_std": GRPO(), "grpo_no_std": GRPO(scale="none"), "rloo": RLOO()} | {
    "passk_std": GRPOPassK(),
    "passk_no_std": GRPOPassK(scale="none"),
}
SAYS = "algorithm.adv_estimator"
TREES = {
    "grpo_std": {SAYS: "grpo"},
    "grpo_no_std": {SAYS: "grpo_vectorized", "algorithm.norm_adv_by_std_in_grpo": False},
    "rloo": {SAYS: "rloo"},
    "passk_std": {SAYS: "grpo_passk"},
    "passk_no_std": {SAYS: "grpo_passk", "algorithm.norm_adv_by_std_in_grpo": False},
}
"""Estimator of verl → the part of its tree that asks for it."""
FUNCTIONS = build([plugin], discover=False).credit_functions
TOLERANCE = 1e-9  # verl's own outputs are float64 here


def records(case):
    """One rollout of one call per sequence of verl's batch."""
    rows = zip(case["index"], case["lengths"], case["rewards"], case["old_logprobs"], strict=True)
    return [
        make_record(
            f"r{i}",
            [make_call(f"c{i}", [1], [2] * n, 0, f"r{i}", logprobs=old)],
            reward=reward,
            group=group,
            sample=i,
        )
        for i, (group, n, reward, old) in enumerate(rows)
    ]


def by_rollout(case, recipe):
    """Our rows in the order of verl's sequences."""
    rows = {row.rollout_id: row for row in assign(records(case), recipe, **FUNCTIONS).rows}
    return [rows[f"r{i}"] for i in range(len(case["index"]))]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{len(case['index'])}-sequences")
@pytest.mark.parametrize("by", ["recipe", "tree"])
@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
def test_advantages(case, estimator, by):
    recipe = ESTIMATORS[estimator] if by == "recipe" else VERL(TREES[estimator]).recipe
    rows = by_rollout(case, recipe)
    for row, group, theirs in zip(rows, case["index"], case["advantages"][estimator], strict=True):
        ours = row.segments[0].advantage
        if case["index"].count(group) == 1:
            # They differ here: verl hands a lone sequence its raw reward (in float32), we have nothing to
            # compare it with and give 0.
            assert ours == 0.0
            if theirs is None:
                continue  # verl refuses it
            assert theirs == pytest.approx(case["rewards"][int(row.rollout_id[1:])], rel=2e-6)
        else:
            assert ours == pytest.approx(theirs, abs=TOLERANCE)


def mode_recipe(mode, case):
    """The recipe whose weights are verl's aggregation mode, one call per rollout; verl's clip range."""
    loss_aggregation, constant = {
        "token-mean": ("token", 1.0),
        "seq-mean-token-mean": ("rollout", 1.0),
        "seq-mean-token-sum": ("constant", 1.0),
        "seq-mean-token-sum-norm": ("constant", float(FILE["loss_scale_factor"])),
        "token-sum": ("constant", 1 / len(case["lengths"])),
    }[mode]
    return Recipe(
        name="t",
        loss_aggregation=loss_aggregation,
        loss_divisor=constant,
        clip_low=FILE["clip"]["clip_ratio_low"],
        clip_high=FILE["clip"]["clip_ratio_high"],
        clip_ratio_c=FILE["clip"]["clip_ratio_c"],
    )


def tree_recipe(mode):
    """The recipe of verl's own tree with that mode; ``None``: the tree says nothing of it. Clip ratios below
    and of negative advantages are verl's defaults.
    """
    actor = {"clip_ratio_high": FILE["clip"]["clip_ratio_high"]}
    if mode is not None:
        actor["loss_agg_mode"] = mode
    if mode == "seq-mean-token-sum-norm":
        actor["loss_scale_factor"] = FILE["loss_scale_factor"]
    return VERL({SAYS: "grpo", "actor_rollout_ref": {"actor": actor}}).recipe


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{len(case['index'])}-sequences")
@pytest.mark.parametrize("mode", [None, *sorted(set(CASES[0]["losses"]) - {"token-sum"})])
def test_a_tree_is_the_loss_that_verl_computes(case, mode):
    check_loss(case, tree_recipe(mode), mode or "token-mean")


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{len(case['index'])}-sequences")
@pytest.mark.parametrize("mode", sorted(CASES[0]["losses"]))
def test_weights_are_verls_aggregation_modes(case, mode):
    check_loss(case, mode_recipe(mode, case), mode)


def check_loss(case, recipe, mode):
    loss, rows = 0.0, by_rollout(case, recipe)
    for row, advantage, new in zip(rows, case["advantages"]["grpo_std"], case["logprobs"], strict=True):
        for t, logprob in enumerate(new, start=1):
            loss += row.weights[t] * clip_term(logprob, row.logprobs[t], advantage, recipe)
    # seq-mean-token-mean: verl divides a sequence's sum by its tokens + 1e-8
    tolerance = 1e-8 if mode == "seq-mean-token-mean" else 1e-12
    assert loss == pytest.approx(case["losses"][mode]["loss"], rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("mode", sorted(CASES[0]["losses"]))
def test_gradients_by_logprob(mode):
    """d loss / d logprob = -weight * A * ratio where the clip does not act, else 0; central differences."""
    case, step = CASES[0], 1e-6
    recipe = mode_recipe(mode, case)
    for i, row in enumerate(by_rollout(case, recipe)):
        advantage = case["advantages"]["grpo_std"][i]
        theirs = case["losses"][mode]["grad"][i]
        for t, new in enumerate(case["logprobs"][i], start=1):
            up, down = (clip_term(new + d, row.logprobs[t], advantage, recipe) for d in (step, -step))
            assert row.weights[t] * (up - down) / (2 * step) == pytest.approx(theirs[t - 1], abs=1e-7)


def test_the_file_says_what_made_it():
    assert FILE["versions"]["verl"] == "0.9.1"
    assert {"token-mean", "seq-mean-token-sum", "seq-mean-token-mean"} <= CASES[0]["losses"].keys()


def test_where_sequences_are_not_rollouts_definitions_part():
    """verl's ``seq-mean`` averages over rows, so a rollout of two rows counts twice; ours counts it once."""
    two = [make_call("a", [1], [2], 0), make_call("b", [9], [2, 2, 2], 1)]
    batch = assign([make_record(calls=two, reward=1.0), make_record("r1", reward=0.0)], GRPO())
    assert [sum(row.weights) for row in batch.rows] == pytest.approx([1 / 8, 3 / 8, 1 / 2])
