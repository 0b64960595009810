"""Options, the lines they become in verl's configuration, and recipes that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

import agentlightning as agl
from agentlightning.credit.checks import check_supported_fields
from agentlightning.recipes import FIELDS
from agentlightning.types.base import ConfigError
from agl_verl.config.attention import AttentionError, resolved
from agl_verl.config.options import OptionError, data_parallel, overrides, read_options
from agl_verl.config.settings import Engine, Mode
from agl_verl.ppo import PPO
from agl_verl.supported_fields import SUPPORTED_FIELDS, UNSUPPORTED_FIELDS, Refused, plain, refuse


def lines(recipe: agl.Recipe | None = None, **given: object) -> dict[str, str]:
    made = overrides("/p", recipe or agl.GRPO(), 7, read_options(given), "/scratch")
    return dict(line.lstrip("+").split("=", 1) for line in made)


def test_a_misspelt_option_is_named() -> None:
    with pytest.raises(OptionError, match=r"no option 'rank'\. Did you mean 'ranks'"):
        read_options({"rank": 2})


@pytest.mark.parametrize(
    "given", [{"ranks": 0}, {"lr": 0.0}, {"keep_checkpoints": 0}, {"save_every": -1}, {"device": "tpu"}]
)
def test_values_that_cannot_be_used(given: dict[str, object]) -> None:
    with pytest.raises(OptionError):
        read_options(given)


def test_the_rows_own_advantages_and_the_sum_over_tokens() -> None:
    found = lines()
    assert found["algorithm.adv_estimator"] == "agl"
    assert found["actor_rollout_ref.actor.loss_agg_mode"] == "token-sum"
    assert found["actor_rollout_ref.rollout.n"] == "1"
    assert found["algorithm.use_kl_in_reward"] == "False"


def test_the_recipe_reaches_the_loss() -> None:
    recipe = agl.GRPO(clip_low=0.1, clip_high=0.3, clip_ratio_c=3.0, epochs=2, temperature=0.7)
    found = lines(recipe)
    actor = "actor_rollout_ref.actor."
    assert (found[actor + "clip_ratio_low"], found[actor + "clip_ratio_high"]) == ("0.1", "0.3")
    assert found[actor + "clip_ratio_c"] == "3.0"
    assert found[actor + "ppo_epochs"] == "2"
    assert found["actor_rollout_ref.rollout.temperature"] == "0.7"


def test_a_forward_pass_has_room_for_the_longest_row() -> None:
    limit = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
    assert (lines()[limit], lines(max_len=16_384)[limit]) == ("4096", "16384")
    assert lines(max_len=512, micro_batch_tokens=600)[limit] == "600"
    packed = {"device": "cuda", "ranks": 4, "attention": "flash_attention_2", "sequence_parallel": 4}
    assert lines(max_len=32_768, **packed)[limit] == "8192"
    with pytest.raises(OptionError, match=r"micro_batch_tokens: 4096 is less than max_len \(8192\)"):
        read_options({"max_len": 8192, "micro_batch_tokens": 4096})


def test_rows_are_shared_by_ranks_where_sequences_are_packed() -> None:
    packed = {"device": "cuda", "ranks": 8, "attention": "flash_attention_2", "sequence_parallel": 4}
    found = lines(**packed)
    assert found["actor_rollout_ref.actor.ulysses_sequence_parallel_size"] == "4"
    assert found["actor_rollout_ref.model.use_remove_padding"] == "True"
    assert data_parallel(read_options(packed)) == 2
    assert lines()["actor_rollout_ref.model.use_remove_padding"] == "False"


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"attention": "flash_attention_2"}, "is for GPUs"),
        ({"ranks": 4, "sequence_parallel": 3}, "4 ranks cannot share rows"),
        ({"ranks": 2, "sequence_parallel": 2}, "packed sequences alone"),
        ({"ranks": 2, "sequence_parallel": 2, "device": "cuda", "attention": "sdpa"}, "packed sequences"),
    ],
)
def test_attention_that_the_machine_does_not_have_is_refused(given: dict[str, object], what: str) -> None:
    with pytest.raises(AttentionError, match=what):
        read_options(given)


def test_attention_is_what_the_environment_has(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert resolved(read_options({})) == "sdpa"
    answers = {}
    for answer in ("True", "False"):
        python = tmp_path / answer
        python.write_text(f"#!/bin/sh\necho {answer}\n")
        python.chmod(0o700)
        answers[answer] = {"device": "cuda", "ranks": 2, "python": str(python)}
    assert resolved(read_options(answers["True"])) == "flash_attention_2"
    assert resolved(read_options(answers["False"])) == "sdpa"
    with pytest.raises(AttentionError, match="has no flash-attn"):
        resolved(read_options({**answers["False"], "sequence_parallel": 2}))
    nobody = read_options({"device": "cuda", "python": str(tmp_path / "none")})
    assert resolved(nobody) == "sdpa" and "cannot be asked" in caplog.text


def test_schedules_know_the_steps_of_the_run() -> None:
    made = overrides("/p", agl.GRPO(), 7, read_options({}), "/scratch", steps=40)
    assert "trainer.total_training_steps=40" in made
    assert "trainer.total_training_steps" not in lines()


def test_every_node_has_a_unit_of_the_queue() -> None:
    unit = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
    assert lines(nodes=4, ranks=8, ray_address="h:1")[unit] == "4"


def test_no_dual_clip_is_a_bound_that_never_acts() -> None:
    assert float(lines()["actor_rollout_ref.actor.clip_ratio_c"]) >= 1e9


def test_enough_logical_processors_for_every_rank() -> None:
    assert int(lines(ranks=2)["ray_kwargs.ray_init.num_cpus"]) >= 32
    assert lines(ranks=2)["ray_kwargs.ray_init.num_gpus"] == "2"
    assert "ray_kwargs.ray_init.num_gpus" not in lines(device="cuda")


def test_the_users_own_lines_win() -> None:
    found = lines(overrides=["data.max_prompt_length=9", "trainer.project_name=other"])
    assert (found["data.max_prompt_length"], found["trainer.project_name"]) == ("9", "other")


@pytest.mark.parametrize("line", [
    "actor_rollout_ref.model.lora_rank=8", "+actor_rollout_ref.model.lora.merge=True",
    "trainer.v1.colocate_async.num_warmup_batches=2", "algorithm.rollout_correction.rollout_is=token",
    "trainer.v1.trainer_mode=colocate_async", "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.actor.loss_agg_mode=token-mean", "algorithm.use_kl_in_reward=True",
    "actor_rollout_ref.actor.clip_ratio_high=0.4", "++actor_rollout_ref.actor.kl_loss_coef=0.1",
    "actor_rollout_ref.actor.policy_loss.loss_mode=gspo", "actor_rollout_ref.rollout.temperature=0.5",
    "actor_rollout_ref.rollout.top_p=0.9", "algorithm.filter_groups.enable=True", "trainer.save_freq=5",
    "trainer.total_training_steps=9", "trainer.val_before_train=True", "trainer.resume_mode=auto",
    "actor_rollout_ref.actor.shuffle=True", "actor_rollout_ref.actor.optim.clip_grad=0.5",
    "actor_rollout_ref.actor.calculate_entropy=True", "data.train_batch_size=8",
    "actor_rollout_ref.rollout={n: 4}", "~critic", "+trainer={nnodes: 2}",
])  # fmt: skip
def test_lines_that_would_make_it_another_run_are_refused(line: str) -> None:
    with pytest.raises(OptionError, match="overrides"):
        read_options({"overrides": [line]})


def test_lines_that_ask_for_nothing_pass() -> None:
    given = ["trainer.val_before_train=False", "trainer.test_freq=-1", "algorithm.use_kl_in_reward=False"]
    given += ["actor_rollout_ref.rollout.top_p=1.0", "actor_rollout_ref.actor.optim.lr_warmup_steps=3"]
    assert read_options({"overrides": given}).overrides == given


def test_a_folder_of_any_name_is_one_value() -> None:
    made = overrides("/a, b (2)/it's ü", PPO(), 7, read_options(None), "/s", "p")
    assert r"actor_rollout_ref.model.path='/a, b (2)/it\'s ü'" in made
    assert r"critic.model.path='/a, b (2)/it\'s ü'" in made


@pytest.mark.parametrize(("given", "why"), [
    ({"loss": "ppo"}, "not one of clip, cispo, reinforce"), ({"epochs": 0}, "at least 1"),
    ({"minibatches": 0}, "at least 1"), ({"importance_cap": 0.0}, "above 0"),
    ({"importance_cap": float("inf")}, "and finite"),
])  # fmt: skip
def test_recipes_that_verl_would_take_otherwise(given: dict[str, object], why: str) -> None:
    with pytest.raises(Refused, match=f"on verl: .*{why}"):
        refuse(agl.GRPO(**given))


def test_every_field_of_a_recipe_is_honoured_or_refused_with_a_reason() -> None:
    assert SUPPORTED_FIELDS | UNSUPPORTED_FIELDS.keys() == set(FIELDS) - {"name"}
    assert not SUPPORTED_FIELDS & UNSUPPORTED_FIELDS.keys()


@pytest.mark.parametrize(("given", "why"), [
    ({"top_p": 0.9}, "an update cannot recompute"),
])  # fmt: skip
def test_fields_that_are_not_built_are_refused_at_load(given: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=f"does not implement .*{why}"):
        check_supported_fields(agl.GRPO(**given), "verl", SUPPORTED_FIELDS, UNSUPPORTED_FIELDS)


@pytest.mark.parametrize("given", [
    {"kl": 0.1}, {"entropy": 0.1}, {"ratio_level": "sequence"}, {"loss": "reinforce"}, {"loss": "cispo"},
    {"max_staleness": 1}, {"importance_cap": 2.0},
])  # fmt: skip
def test_what_verls_own_loss_cannot_say_brings_its_loss(given: dict[str, object]) -> None:
    assert plain(agl.GRPO(clip_ratio_c=3.0, epochs=2, minibatches=4, clip_high=0.28)) and plain(agl.RLOO())
    assert not plain(agl.GRPO(**given))


def test_a_reference_is_computed_for_kl_only() -> None:
    key = "actor_rollout_ref.actor.use_kl_loss"
    assert lines()[key] == "False" and lines(agl.GRPO(kl=0.1))[key] == "True"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("actor_rollout_ref.actor.router_replay.mode=R3", r"router replay .*have no place"),
        ("actor_rollout_ref.rollout.enable_rollout_routing_replay=True", r"router replay"),
        ("model_engine=megatron", r"the driver trains with FSDP 2: .*more ranks, or lora"),
        ("actor_rollout_ref.actor.strategy=megatron", r"the driver trains with FSDP 2"),
        ("actor_rollout_ref.ref.megatron.tensor_model_parallel_size=2", r"the driver trains with FSDP 2"),
        ("critic.strategy=fsdp", r"the driver trains with FSDP 2"),
    ],
)
def test_megatron_and_router_replay_are_refused_with_the_reason(line: str, why: str) -> None:
    with pytest.raises(OptionError, match=why):
        read_options({"overrides": [line]})


def test_lines_that_ask_for_nothing_else_than_the_driver_does_are_taken() -> None:
    lines = [
        "actor_rollout_ref.actor.strategy=fsdp2",
        "actor_rollout_ref.rollout.enable_rollout_routing_replay=False",
        "actor_rollout_ref.actor.router_replay.mode=disabled",
    ]
    assert read_options({"overrides": lines}).overrides == lines


def test_the_gradient_norm_is_where_verl_reads_it() -> None:
    assert lines(max_grad_norm=0.25)["actor_rollout_ref.actor.optim.clip_grad"] == "0.25"
    assert "actor_rollout_ref.actor.grad_clip" not in lines()


def test_the_pages_deny_nothing_that_is_there() -> None:
    root = Path(__file__).parents[3]
    limits = (root / "plugins/verl/README.md").read_text().partition("## Limits")[2]
    for name in (*get_args(Mode), *get_args(Engine)):
        assert name.lower() in limits.lower(), f"the README's limits do not say what holds for {name}"
    assert "guided choice" in limits and "off_policy_cap" in limits and "are refused: verl's" not in limits
    replay = (root / "docs/verl.md").read_text().partition("**Router replay**")[2].partition("\n- **")[0]
    assert "return_routed_experts" in replay and "do not name" not in replay
