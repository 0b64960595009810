"""What is assumed of verl's configuration where a tree is silent is what verl's own files say."""

from __future__ import annotations

import pytest

pytest.importorskip("verl", reason="verl has an environment of its own: make test-verl-inside")

from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from agl_verl.tree import (
    ACTOR,
    AGGREGATIONS,
    CORRECTION,
    CRITIC_LR,
    FIELDS,
    MINI_BATCH,
    OPTIONS,
    RECIPE,
    SETTINGS,
)


@pytest.mark.filterwarnings("ignore")
def test_silence_means_what_verls_own_configuration_says() -> None:
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer")

    def says(key: str) -> object:
        return OmegaConf.select(config, key, throw_on_missing=True)

    for key, field in RECIPE.items():
        assert says(key) == FIELDS[field], key
    for key, option in OPTIONS.items():
        if option in SETTINGS:
            assert says(key) == SETTINGS[option], key
    assert says("critic.optim.lr") == CRITIC_LR
    assert says(f"{ACTOR}.ppo_mini_batch_size") == MINI_BATCH
    assert AGGREGATIONS[says(f"{ACTOR}.loss_agg_mode")]["loss_aggregation"] == FIELDS["loss_aggregation"]
    assert says("algorithm.adv_estimator") == "gae" and says("algorithm.norm_adv_by_std_in_grpo") is True
    assert says(f"{ACTOR}.use_kl_loss") is False and says(f"{ACTOR}.kl_loss_coef") == 0.001
    assert says(f"{ACTOR}.kl_loss_type") == "low_var_kl"
    assert says(f"{CORRECTION}.rollout_is") is None and FIELDS["correction"] is None
    assert says(f"{CORRECTION}.rollout_is_threshold") == 2.0
