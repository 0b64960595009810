"""verl's configuration is read into recipe, options and what is handed on; each entry has one place."""

from __future__ import annotations

from typing import Any

import pytest

import agentlightning as agl
from agentlightning.recipes import FIELDS
from agentlightning.types.base import ConfigError
from agl_verl.ppo import PPO
from agl_verl.tree import OPTIONS, RECIPE, VERL

GRPO = {"algorithm.adv_estimator": "grpo"}
SETTINGS = {"lr": 1e-6, "weight_decay": 0.01}
"""verl's optimizer where a tree says nothing of it."""


def test_the_tree_names_recipe_options_policy_and_the_rest() -> None:
    found = VERL(
        {
            "algorithm": {"adv_estimator": "rloo", "use_kl_in_reward": False},
            "data": {"train_batch_size": 16, "max_prompt_length": 512},
            "actor_rollout_ref": {
                "model": {"path": "models/qwen"},
                "rollout": {"n": 4, "temperature": 0.8},
                "actor": {
                    "clip_ratio_low": 0.1, "clip_ratio_high": 0.3, "ppo_epochs": 2, "use_kl_loss": True,
                    "kl_loss_coef": 0.02, "kl_loss_type": "low_var_kl", "optim": {"lr": 1e-6},
                },
            },
            "trainer": {"n_gpus_per_node": 2, "save_freq": 5, "test_freq": None},
            "agentlightning": {"recipe": {"loss_aggregation": "token"}, "options": {"python": "py"}},
        },
        keep_checkpoints=3,
    )  # fmt: skip
    assert found.recipe == agl.GRPO(
        loss_aggregation="token", baseline="rloo", scale="none", group_size=4, temperature=0.8, clip_low=0.1,
        clip_high=0.3, clip_ratio_c=3.0, epochs=2, kl=0.02, correction=None,
    )  # fmt: skip
    assert found.options == {
        "ranks": 2, "save_every": 5, "lr": 1e-6, "weight_decay": 0.01, "python": "py", "keep_checkpoints": 3,
        "overrides": ["data.max_prompt_length=512"],
    }  # fmt: skip
    assert (found.policy, found.batch_size) == ("models/qwen", 16)


def test_an_entry_that_is_none_is_none_to_hydra() -> None:
    given = {"trainer.rollout_data_dir": None, "trainer.balance_batch": False}
    assert VERL(given).options["overrides"] == [
        "trainer.rollout_data_dir=null", "trainer.balance_batch=False",
    ]  # fmt: skip


def test_dotted_keys_say_the_same() -> None:
    nested = VERL({"trainer": {"n_gpus_per_node": 4}, "actor_rollout_ref": {"rollout": {"n": 2}}})
    dotted = VERL({"trainer.n_gpus_per_node": 4, "actor_rollout_ref.rollout.n": 2})
    assert (nested.recipe, nested.options) == (dotted.recipe, dotted.options)


def test_the_mode_of_verls_trainer_is_an_option() -> None:
    found = VERL({"trainer.v1.trainer_mode": "colocate_async"}).options
    assert found["mode"] == "colocate_async" and "overrides" not in found


def test_ranks_are_those_of_all_nodes_and_lora_is_one_option() -> None:
    found = VERL({
        **GRPO, "trainer": {"nnodes": 2, "n_gpus_per_node": 8},
        "ray_kwargs.ray_init.address": "10.0.0.1:6379",
        "actor_rollout_ref.model": {"lora_rank": 16, "lora_alpha": 32, "target_modules": ["q_proj"]},
    })  # fmt: skip
    assert found.options == {
        "nodes": 2, "ranks": 16, "ray_address": "10.0.0.1:6379",
        "lora": {"rank": 16, "alpha": 32, "targets": ["q_proj"]}, **SETTINGS,
    }  # fmt: skip
    nothing = {"trainer": {"nnodes": 1, "n_gpus_per_node": 1}, "actor_rollout_ref.model.lora_rank": 0}
    found = VERL({**GRPO, **nothing, "actor_rollout_ref.model.target_modules": "all-linear"})
    assert found.options == SETTINGS


def test_gae_is_ppo_with_a_critic() -> None:
    found = VERL({
        "algorithm": {"adv_estimator": "gae", "gamma": 0.99, "lam": 0.9},
        "critic": {"optim": {"lr": 1e-5}, "cliprange_value": 0.2}, "trainer.critic_warmup": 5,
        "agentlightning": {"recipe": {"credit": "per_call"}},
    })  # fmt: skip
    silent = {"clip_ratio_c": 3.0, "correction": None}
    assert found.recipe == PPO(gamma=0.99, lam=0.9, credit="per_call", **silent)
    assert found.options == {
        "critic_lr": 1e-5, "critic_warmup": 5, "overrides": ["critic.cliprange_value=0.2"], **SETTINGS,
    }  # fmt: skip
    assert VERL({"algorithm.adv_estimator": "gae"}).recipe == PPO(lam=1.0, **silent)
    assert VERL({"agentlightning": {"recipe": "ppo"}}).recipe == PPO()
    assert VERL({"agentlightning": {"recipe": "grpo_passk"}}).recipe.baseline == "passk"


def test_what_a_tree_does_not_say_is_what_verl_says() -> None:
    found = VERL({})
    assert found.recipe == PPO(lam=1.0, clip_ratio_c=3.0, correction=None)
    assert found.options == {**SETTINGS, "critic_lr": 1e-5}
    grpo = VERL({**GRPO, "actor_rollout_ref.rollout.n": 4}).recipe
    assert grpo == agl.GRPO(group_size=4, loss_aggregation="token", clip_ratio_c=3.0, correction=None)


def test_what_a_tree_does_not_say_is_what_the_named_recipe_says() -> None:
    named = {"agentlightning": {"recipe": "dapo"}}
    assert VERL(named).recipe == agl.DAPO()
    assert VERL({**named, "actor_rollout_ref.rollout.n": 4}).recipe == agl.DAPO(group_size=4)
    assert VERL(recipe="gspo").recipe == agl.GSPO()


def test_a_spread_does_not_divide_where_the_tree_says_so() -> None:
    assert VERL({**GRPO, "algorithm.norm_adv_by_std_in_grpo": False}).recipe.scale == "none"
    assert VERL({**GRPO, "algorithm.norm_adv_by_std_in_grpo": True}).recipe.scale == "std"


@pytest.mark.parametrize(("actor", "aggregation", "divisor"), [
    ({"loss_agg_mode": "token-mean"}, "token", 1.0),
    ({"loss_agg_mode": "seq-mean-token-mean"}, "rollout", 1.0),
    ({"loss_agg_mode": "seq-mean-token-sum"}, "constant", 1.0),
    ({"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": 512}, "constant", 512.0),
])  # fmt: skip
def test_the_mode_of_aggregation_is_what_a_token_weighs(
    actor: dict[str, Any], aggregation: str, divisor: float
) -> None:
    found = VERL({**GRPO, "actor_rollout_ref": {"actor": actor}}).recipe
    assert (found.loss_aggregation, found.loss_divisor) == (aggregation, divisor)


@pytest.mark.parametrize(("given", "wanted"), [
    ({"rollout_is": None, "rollout_rs": None, "bypass_mode": False, "loss_type": "ppo_clip"}, None),
    ({"rollout_is": "token"}, agl.Correction(threshold=0.0)),
    ({"rollout_is": "sequence", "rollout_is_threshold": 5.0},
     agl.Correction(level="sequence", cap=5.0, threshold=0.0)),
    ({"rollout_is": "token", "rollout_is_threshold": "0.5_5.0"},
     agl.Correction(kind="mask", floor=0.5, cap=5.0, threshold=0.0)),
])  # fmt: skip
def test_rollout_correction_is_a_correction_in_every_step(
    given: dict[str, Any], wanted: agl.Correction | None
) -> None:
    found = VERL({**GRPO, "algorithm": {"rollout_correction": given}})
    assert found.recipe.correction == wanted and "overrides" not in found.options


def test_values_that_verl_has_anyhow_are_taken() -> None:
    actor = {
        "clip_ratio": 0.2, "ppo_mini_batch_size": 8, "policy_loss": {"loss_mode": "vanilla"},
        "shuffle": False, "optim": {"clip_grad": 0.5},
    }  # fmt: skip
    found = VERL({**GRPO, "data.train_batch_size": 8, "actor_rollout_ref": {"actor": actor}})
    assert found.recipe.minibatches == 1 and found.options == {**SETTINGS, "max_grad_norm": 0.5}
    many = {**GRPO, "data.train_batch_size": 512, "agentlightning": {"recipe": {"minibatches": 2}}}
    assert VERL(many).recipe.minibatches == 2


def test_without_a_term_a_coefficient_says_nothing() -> None:
    assert VERL({"actor_rollout_ref.actor.kl_loss_coef": 0.5}).recipe.kl == 0.0


@pytest.mark.parametrize(("config", "said"), [
    ({"algorithm": {"adv_estimator": "remax"}}, "known are grpo.*gae"),
    ({"algorithm": {"use_kl_in_reward": True}}, "use_kl_loss"),
    ({"critic": {"optim": {"lr": 1e-5}}, "algorithm.adv_estimator": "grpo"},
     "critic.optim.lr: advantages come from credit"),
    ({"algorithm.adv_estimator": "reinforce_plus_plus_baseline"}, "whitens .*by_std_in_grpo: false"),
    ({"algorithm.adv_estimator": "reinforce_plus_plus"}, r"agentlightning.recipe: reinforce\+\+"),
    ({"actor_rollout_ref.actor.loss_agg_mode": "token-sum"}, "known are token-mean, .*sum-norm"),
    ({"actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-sum-norm"}, "loss_scale_factor .* write it"),
    ({"actor_rollout_ref.actor.loss_scale_factor": 512}, "loss_agg_mode = 'seq-mean-token-sum-norm' alone"),
    ({"actor_rollout_ref.actor.clip_ratio": 0.1}, "clip_ratio_low and clip_ratio_high"),
    ({"actor_rollout_ref.actor.policy_loss.loss_mode": "gspo"}, "agentlightning.recipe"),
    ({"actor_rollout_ref.actor.grad_clip": 0.5}, "optim.clip_grad"),
    ({"actor_rollout_ref.actor.shuffle": True}, "drawn by the driver"),
    ({"actor_rollout_ref.actor.ppo_mini_batch_size": 8, "data.train_batch_size": 32}, "recipe.minibatches"),
    ({"data.train_batch_size": 512}, "256 in verl where nothing is said.*recipe.minibatches"),
    ({"algorithm.rollout_correction.rollout_rs": "token_k1"}, "recipe.correction"),
    ({"algorithm.rollout_correction.bypass_mode": True}, "rollout_is"),
    ({"algorithm.use_pf_ppo": True}, "use_pf_ppo"),
    ({"trainer": {"total_epochs": 2}}, r"Trainer\(steps"),
    ({"actor_rollout_ref.actor.use_kl_loss": True, "actor_rollout_ref.actor.kl_loss_type": "mse"}, "k3"),
    ({"agentlightning": {"recipy": "grpo"}}, "no entry 'recipy'"),
    ({"agentlightning": {"recipe": "gpro"}}, "known: cispo, .*grpo, grpo_passk, gspo, ppo"),
    ({"agentlightning": {"recipe": {"group_sise": 2}}}, "group_size"),
    ({"agentlightning": {"recipe": {"group_size": 2}}, "actor_rollout_ref.rollout.n": 4}, "says it too"),
])  # fmt: skip
def test_what_belongs_elsewhere_is_refused_by_name(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        VERL(config)


def test_all_that_cannot_be_used_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        VERL({
            "algorithm": {"adv_estimator": "remax", "use_kl_in_reward": True},
            "actor_rollout_ref": {"actor": {"loss_agg_mode": "token-sum", "ppo_mini_batch_size": 8}},
            "trainer": {"total_epochs": 3, "resume_mode": "auto"},
            "agentlightning": {"recipy": "grpo", "recipe": {"group_sise": 2}},
        })  # fmt: skip
    said = str(refused.value)
    assert said.startswith("8 entries cannot be used:\n")
    for key in (
        "algorithm.adv_estimator", "algorithm.use_kl_in_reward", "actor_rollout_ref.actor.loss_agg_mode",
        "actor_rollout_ref.actor.ppo_mini_batch_size", "trainer.total_epochs", "trainer.resume_mode",
        "recipy", "group_sise",
    ):  # fmt: skip
        assert said.count(key) == 1, key


def test_a_recipe_and_the_tree_do_not_both_say_it() -> None:
    assert VERL(recipe=agl.RLOO(group_size=2)).recipe == agl.RLOO(group_size=2)
    with pytest.raises(ConfigError, match="group_size"):
        VERL({"actor_rollout_ref.rollout.n": 4}, recipe=agl.RLOO())


@pytest.mark.plugins
def test_several_policies_are_for_the_local_driver() -> None:
    from agentlightning.train.serving import driver_spec

    trainer = agl.Trainer(agl.VERL(), policy={"wolves": "a", "villagers": "b"})
    with pytest.raises(ConfigError, match="one policy a run"):
        driver_spec(trainer.plugins, trainer.config.backend.driver, trainer.config.served)


@pytest.mark.slow
@pytest.mark.plugins
def test_fields_beside_the_tree_win_but_for_its_batch_size() -> None:
    made = agl.Trainer(
        VERL({"data.train_batch_size": 32, "actor_rollout_ref.model.path": "tree"}, lr=0.5),
        policy="mine",
        options={"lr": 0.25, "weight_decay": 0.0},
        batch_size=4,
    ).config
    assert (made.backend.driver, made.backend.policy, made.training.batch_size) == ("verl", "mine", 32)
    assert made.backend.options == {"lr": 0.25, "weight_decay": 0.0, "critic_lr": 1e-5}
    alone = agl.Trainer(VERL({"actor_rollout_ref.model.path": "tree"}), batch_size=4).config
    assert (alone.backend.policy, alone.training.batch_size) == ("tree", 4)


def test_every_entry_goes_to_something_there_is() -> None:
    from agl_verl.config.options import Options

    assert set(RECIPE.values()) <= set(FIELDS)
    assert set(OPTIONS.values()) <= set(Options.__struct_fields__)
