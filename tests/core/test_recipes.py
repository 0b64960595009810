"""Recipes: the papers' values, and overrides that are checked."""

from __future__ import annotations

import inspect

import msgspec
import pytest

from agentlightning import recipes
from agentlightning.credit.baselines import BASELINES
from agentlightning.credit.checks import check_recipe
from agentlightning.credit.rules import RULES
from agentlightning.types import Recipe


def test_grpo_has_the_papers_values_and_no_kl():
    recipe = recipes.GRPO()
    expected = {
        "name": "grpo",
        "group_size": 8,
        "credit": "broadcast",
        "baseline": "group",
        "group_by": ["group"],
        "scale": "std",
        "loss_aggregation": "rollout",
        "loss": "clip",
        "clip_low": 0.2,
        "clip_high": 0.2,
        "kl": 0.0,
    }
    assert {name: getattr(recipe, name) for name in expected} == expected


def test_rloo_sums_logprobs_and_leaves_one_out():
    recipe = recipes.RLOO()
    assert (recipe.baseline, recipe.scale, recipe.loss_aggregation, recipe.loss_divisor) == (
        "rloo",
        "none",
        "constant",
        1.0,
    )
    assert (recipe.epochs, recipe.minibatches, recipe.max_staleness, recipe.kl) == (1, 1, 0, 0.0)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("dr_grpo", {"loss_aggregation": "constant", "loss_divisor": 1024.0}),
        ("dapo", {"group_size": 16, "scale": "std", "loss_aggregation": "token", "clip_high": 0.28,
                  "filter_zero_std_groups": True}),
        ("gspo", {"scale": "std", "ratio_level": "sequence", "clip_low": 3e-4, "clip_high": 4e-4,
                  "minibatches": 4}),
        ("cispo", {"scale": "std", "loss_aggregation": "token", "loss": "cispo", "clip_low": 1.0,
                   "clip_high": 0.28, "minibatches": 4}),
        ("reinforce++", {"group_size": 1, "baseline": "batch", "group_by": ["batch"], "scale": "std",
                         "loss_aggregation": "token"}),
        ("flow_grpo", {"scale": "std", "loss_aggregation": "nested"}),
        ("gigpo", {"scale": "std", "gamma": 0.95, "step_weight": 1.0}),
    ],
)  # fmt: skip
def test_a_named_recipe_has_its_papers_values_and_no_others(name, fields):
    recipe = recipes.get(name)
    assert (recipe.name, recipe.uses()) == (name, fields)


def test_each_recipe_names_its_paper_and_gives_its_formula():
    assert recipes.PAPERS.keys() == recipes.RECIPES.keys()
    for name, factory in recipes.RECIPES.items():
        text = inspect.getdoc(factory)
        assert recipes.PAPERS[name].removeprefix("arXiv ") in text and "    A" in text, name


@pytest.mark.parametrize("name", sorted(recipes.RECIPES))
def test_every_recipe_can_be_credited_overridden_and_sent(name):
    recipe = recipes.get(name, group_size=3, gamma=1, group_by=["group", "side"])
    check_recipe(recipe, RULES, BASELINES)
    assert (recipe.name, recipe.group_size, recipe.gamma) == (name, 3, 1.0)
    assert msgspec.json.decode(msgspec.json.encode(recipe), type=Recipe) == recipe


@pytest.mark.parametrize("name", ["grpo", "rloo"])
@pytest.mark.parametrize(
    ("overrides", "group_by"),
    [
        ({}, ["group"]),
        ({"credit": "last"}, ["group"]),
        ({"credit": "a plugin's"}, ["group"]),
        ({"credit": "per_call"}, ["group", "turn"]),
        ({"credit": "discounted"}, ["group", "turn"]),
        ({"credit": "per_agent"}, ["group", "turn"]),
        ({"credit": "per_call", "group_by": ["group", "side"]}, ["group", "side"]),
        ({"credit": "per_call", "group_by": ["group"]}, ["group"]),
        ({"credit": "discounted", "baseline": "none", "scale": "none"}, ["group", "turn"]),
    ],
)
def test_the_grouping_follows_the_rule_unless_it_is_said(name, overrides, group_by):
    recipe = recipes.get(name, **overrides)
    assert recipe.group_by == group_by
    assert recipe.scale == overrides.get("scale", recipes.get(name).scale)


def test_what_a_recipe_says_of_its_own_rule_stands():
    assert recipes.make({}, name="mine", credit="per_call", group_by=["side"]).group_by == ["side"]
    assert recipes.make({"credit": "per_call"}, name="mine", credit="per_call").group_by == ["group"]


def test_a_fitting_field_is_shared_with_no_other_recipe():
    recipes.GRPO(credit="per_call").group_by.append("side")
    assert recipes.GRPO(credit="per_call").group_by == ["group", "turn"]


def test_get_takes_a_plugins_recipes():
    assert recipes.get("mine", {"mine": lambda **o: recipes.make(o, name="mine")}, kl=0.5).kl == 0.5


def test_a_recipe_shares_nothing_with_the_next():
    recipes.GRPO().group_by.append("side")
    assert recipes.GRPO().group_by == ["group"]


@pytest.mark.parametrize(
    ("name", "overrides", "words"),
    [
        ("gpro", {}, "no recipe 'gpro'; known: cispo, .*grpo, gspo, rei"),
        (
            "grpo",
            {"loss_agregation": "token"},
            "no field 'loss_agregation'. Did you mean 'loss_aggregation'",
        ),
        ("grpo", {"xyzzy": 1}, "no field 'xyzzy'. Known here: name"),
        ("grpo", {"group_size": "eight"}, "recipe 'grpo'.*int.*group_size"),
        ("rloo", {"loss_aggregation": "row"}, "recipe 'rloo'.*row.*loss_aggregation"),
    ],
)
def test_mistakes_are_named(name, overrides, words):
    with pytest.raises(ValueError, match=words):
        recipes.get(name, **overrides)
