"""LoRA as an option: its lines of verl's configuration, and settings that are refused."""

from __future__ import annotations

from typing import Any

import pytest

import agentlightning as agl
from agl_verl.config.lora import LoraError
from agl_verl.config.options import OptionError, overrides, read_options


def lines(**given: object) -> dict[str, str]:
    made = overrides("/p", agl.GRPO(), 7, read_options(given), "/scratch")
    return dict(line.lstrip("+").split("=", 1) for line in made)


def test_verl_is_told_of_the_matrices_and_saves_no_model_with_them_apart() -> None:
    found = lines(lora={"rank": 8, "targets": ["q_proj", "v_proj"]})
    model, actor = "actor_rollout_ref.model.", "actor_rollout_ref.actor."
    assert (found[model + "lora_rank"], found[model + "lora_alpha"]) == ("8", "16")
    assert found[model + "target_modules"] == "[q_proj,v_proj]"
    assert found[model + "lora.merge"] == "True"
    assert found[actor + "checkpoint.save_contents"] == "[model,optimizer,extra]"
    assert found[actor + "fsdp_config.seed"] == "7"


def test_targets_may_be_a_pattern() -> None:
    assert lines(lora={"rank": 8, "targets": ".*(q|v)_proj$"})["actor_rollout_ref.model.target_modules"] == (
        "'.*(q|v)_proj$'"
    )


def test_without_it_nothing_of_it_is_said() -> None:
    found = lines()
    assert not any("lora" in key for key in found)
    assert "hf_model" in found["actor_rollout_ref.actor.checkpoint.save_contents"]


@pytest.mark.parametrize("lora", [{"rank": 0}, {"rank": 4, "alpha": 0}, {"rank": 4, "targets": []}])
def test_values_that_cannot_be_used(lora: dict[str, Any]) -> None:
    with pytest.raises(LoraError, match=r"backend\.options\.lora"):
        read_options({"lora": lora})


def test_a_misspelt_setting_is_named() -> None:
    with pytest.raises(OptionError, match="ranks"):
        read_options({"lora": {"ranks": 8}})


def test_the_same_by_verls_own_lines_points_to_the_option() -> None:
    with pytest.raises(OptionError, match="with the option lora"):
        read_options({"overrides": ["actor_rollout_ref.model.lora_rank=8"]})
