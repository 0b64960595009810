"""The driver's settings, read, and what they are in verl's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from agentlightning.types import Recipe, UsageError
from agentlightning.types.base import meant
from agl_verl.config import attention, backends, critic, engines, modes
from agl_verl.config.lora import lines as lora_lines
from agl_verl.config.modes import ROLLOUT
from agl_verl.config.quote import quote
from agl_verl.config.settings import Options
from agl_verl.process import cluster

LEAST_TOKENS = 4096
"""Tokens of a forward pass where nothing is said."""


class OptionError(UsageError, ValueError):
    """An option that the driver does not have, or a value that cannot be used."""


def tokens_a_pass(o: Options) -> int:
    """Return the tokens that a worker computes in one forward pass."""
    if o.micro_batch_tokens is None:
        return max(LEAST_TOKENS, -(-o.max_len // o.sequence_parallel))
    return o.micro_batch_tokens


def data_parallel(o: Options) -> int:
    """Return among how many groups of ranks the rows are shared."""
    return o.ranks // o.sequence_parallel


def read_options(given: Mapping[str, Any] | None) -> Options:
    """``given`` as Options; OptionError for what cannot be used."""
    given = dict(given or {})
    fields = {field.name for field in msgspec.structs.fields(Options)}
    for name in given:
        if name not in fields:
            hint = meant(name, sorted(fields))
            raise OptionError(f"backend.options: the verl driver has no option {name!r}{hint}")
    try:
        found = msgspec.convert(given, Options)
    except msgspec.ValidationError as error:
        raise OptionError(f"backend.options: {error}") from None
    if found.critic_warmup < 0 or not (found.critic_lr is None or found.critic_lr > 0):
        raise OptionError("backend.options: critic_warmup must be 0 or more, critic_lr above 0")
    if found.ranks < 1 or found.keep_checkpoints < 1 or found.save_every < 0 or found.lr <= 0:
        raise OptionError(
            "backend.options: ranks and keep must be 1 or more, save_every 0 or more, lr above 0"
        )
    cluster.check(found)
    attention.check(found)
    if tokens_a_pass(found) * found.sequence_parallel < found.max_len:
        raise OptionError(
            f"backend.options.micro_batch_tokens: {found.micro_batch_tokens} is less than max_len "
            f"({found.max_len}), so that the first long row would end the run; drop it, or lower max_len"
        )
    engines.check(found)
    modes.check(found)
    if found.lora is not None:
        found.lora.check()
    for line in found.overrides:
        if reason := refused(line):
            raise OptionError(f"backend.options.overrides: {line}: {reason}")
    return found


def refused(line: str) -> str | None:
    """Why a line of verl's configuration has no place among ``overrides``; ``None``: it has one."""
    key, _, value = line.partition("=")
    key = key.strip().lstrip("+~")
    for name, reason in REFUSED.items():
        if value.strip().lower() in NOTHING.get(name, ()):
            continue
        if key == name or key.startswith((f"{name}.", f"{name}_")):
            return reason
        if name.startswith(f"{key}."):
            return f"a whole section, {name} among it; give its entries one by one"
    return None


REFUSED = {
    **attention.REFUSED,
    **backends.REFUSED,
    **cluster.REFUSED,
    **engines.REFUSED,
    **modes.REFUSED,
    "actor_rollout_ref.model.lora": "say it with the option lora: {rank, alpha, targets}; engine and export "
    "get the sums then",
    "actor_rollout_ref.model.target_modules": "say it with the option lora: {rank, alpha, targets}",
    "actor_rollout_ref.model.path": "the policy is the run's: backend.policy",
    "actor_rollout_ref.actor.loss_agg_mode": "the recipe's loss_aggregation says what a token weighs",
    "actor_rollout_ref.actor.policy_loss": "the recipe's ratio_level and loss say what is minimised",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "mini-batches are counted, not sized: the recipe's "
    "minibatches",
    "actor_rollout_ref.actor.ppo_epochs": "the recipe's epochs",
    "actor_rollout_ref.actor.shuffle": "mini-batches are drawn by the driver, from seed and step",
    "actor_rollout_ref.actor.grad_clip": "verl 0.9 does not read it; say it with the option max_grad_norm",
    "actor_rollout_ref.actor.optim.clip_grad": "say it with the option max_grad_norm",
    "actor_rollout_ref.actor.clip_ratio": "the recipe's clip_low, clip_high and clip_ratio_c",
    "actor_rollout_ref.actor.entropy_coeff": "the recipe's entropy",
    "actor_rollout_ref.actor.calculate_entropy": "each step measures the entropy before its update",
    "actor_rollout_ref.actor.use_kl_loss": "the recipe's kl",
    "actor_rollout_ref.actor.kl_loss": "the recipe's kl",
    "actor_rollout_ref.rollout.temperature": "the recipe's temperature",
    "actor_rollout_ref.rollout.top": "tokens must be sampled from the whole distribution",
    "algorithm.adv_estimator": "advantages come from credit; choose them with the recipe",
    "algorithm.filter_groups": "the recipe's filter_zero_std_groups, and training.dynamic_sampling",
    "algorithm.use_kl_in_reward": "a reward is what the agent emitted; the recipe's kl is a term of the loss",
    "algorithm.gamma": "the recipe's gamma",
    "algorithm.lam": "the recipe's lam",
    "critic.enable": "a critic is the recipe's to have: ppo",
    "critic.ppo_epochs": "the recipe's epochs",
    "critic.shuffle": "mini-batches are drawn by the driver, from seed and step",
    "critic.ppo_mini_batch_size": "mini-batches are counted, not sized: the recipe's minibatches",
    "data.train": "tasks belong to the algorithm",
    "data.val": "tasks belong to the algorithm",
    "data.custom_cls": "tasks belong to the algorithm",
    "trainer.critic_warmup": "say it with the option critic_warmup",
    "trainer.default_local_dir": "checkpoints lie in the run's folder",
    "trainer.device": "say it with the option device",
    "trainer.logger": "steps are read from verl's file; a run's trackers are the algorithm's",
    "trainer.max_actor_ckpt_to_keep": "say it with the option keep",
    "trainer.max_critic_ckpt_to_keep": "say it with the option keep",
    "trainer.resume": "a run goes on by its id: --run ID --resume",
    "trainer.save_freq": "say it with the option save_every",
    "trainer.test_freq": "the algorithm evaluates: evaluate_every",
    "trainer.total": "the algorithm's steps",
    "trainer.val": "the algorithm evaluates: evaluate_every",
    "actor_rollout_ref.rollout.n": "groups are made by the algorithm: the recipe's group_size",
    "trainer.use_v1": "the driver is written for verl's V1 trainer",
}
"""Keys that would make a run another than it says, each with the reason."""

OFF = frozenset({"false", "null", "-1", "0"})
NOTHING = {
    **backends.NOTHING,
    "algorithm.filter_groups": OFF,
    "algorithm.use_kl_in_reward": OFF,
    "actor_rollout_ref.rollout.top": frozenset({"-1", "1", "1.0"}),
    "trainer.test_freq": OFF,
    "trainer.val": OFF,
}
"""Of these keys the values that ask for nothing, which is no reason to refuse."""


def overrides(
    policy: str, recipe: Recipe, seed: int, o: Options, folder: str, name: str = "policy", steps: int = 0
) -> list[str]:
    """verl's configuration, line by line. ``folder``: for what is written before the run has one; ``name``:
    by which agents' calls ask for the policy; ``steps``: of the run, which schedules of the learning rate
    end with (0: not known).
    """
    lines = [
        f"actor_rollout_ref.model.path={quote(policy)}",
        *attention.lines(o),
        *_data(o, seed),
        # Rows come with their advantages; the sum over all tokens of the step is the loss that credit means.
        "algorithm.adv_estimator=agl",
        # It computes figures that a step without a trained token does not have; core corrects stale tokens.
        "algorithm.rollout_correction=null",
        "algorithm.use_kl_in_reward=False",
        *_actor(recipe, o),
        *_rollout(recipe, o, name),
        *_trainer(o, folder),
        *([f"trainer.total_training_steps={steps}"] if steps else []),
    ]
    if o.lora is not None:
        lines += lora_lines(o.lora, seed)
    if recipe.critic:
        lines += critic.lines(policy, recipe, seed, o, tokens_a_pass(o))
    for part in (ACTOR, REFERENCE):
        lines += [f"{part}.strategy=fsdp2", f"{part}.fsdp_config.strategy=fsdp2"]
        lines += cpu(part) if o.device == "cpu" else []
    return [*lines, *o.overrides]


ACTOR, REFERENCE = "actor_rollout_ref.actor", "actor_rollout_ref.ref"


def _data(o: Options, seed: int) -> list[str]:
    return [
        # The data are placeholders, one a step: tasks belong to the algorithm.
        "data.train_files=[]",
        "data.val_files=[]",
        "data.custom_cls.path=pkg://agl_verl.inside.steps.dataset",
        "data.custom_cls.name=Steps",
        "data.train_batch_size=1",
        "data.dataloader_num_workers=0",
        "data.shuffle=False",
        f"data.seed={seed % 2**31}",
        f"data.max_prompt_length={o.max_len}",
        f"data.max_response_length={o.max_len}",
    ]


def _actor(recipe: Recipe, o: Options) -> list[str]:
    return [
        f"{ACTOR}.loss_agg_mode=token-sum",
        f"{ACTOR}.ppo_mini_batch_size=1",
        f"{ACTOR}.use_dynamic_bsz=True",
        f"{ACTOR}.ppo_max_token_len_per_gpu={tokens_a_pass(o)}",
        f"{ACTOR}.ppo_epochs={recipe.epochs}",
        # Mini-batches are drawn by the driver, and rows come in their order.
        f"{ACTOR}.shuffle=False",
        f"{ACTOR}.clip_ratio={recipe.clip_low}",
        f"{ACTOR}.clip_ratio_low={recipe.clip_low}",
        f"{ACTOR}.clip_ratio_high={recipe.clip_high}",
        f"{ACTOR}.clip_ratio_c={recipe.clip_ratio_c or NO_DUAL_CLIP}",
        # Terms of the loss, which are the recipe's own then (inside/loss.py): here they say what to compute.
        f"{ACTOR}.entropy_coeff={recipe.entropy}",
        f"{ACTOR}.use_kl_loss={bool(recipe.kl)}",
        f"{ACTOR}.kl_loss_coef={recipe.kl}",
        f"{ACTOR}.optim.clip_grad={o.max_grad_norm}",
        f"{ACTOR}.optim.lr={o.lr}",
        f"{ACTOR}.optim.weight_decay={o.weight_decay}",
        f"{ACTOR}.optim.betas=[{o.betas[0]},{o.betas[1]}]",
        f"{ACTOR}.checkpoint.save_contents=[model,optimizer,extra,hf_model]",
    ]


def _rollout(recipe: Recipe, o: Options, name: str) -> list[str]:
    return [
        f"{ROLLOUT}.n=1",
        f"{ROLLOUT}.temperature={recipe.temperature}",
        f"{ROLLOUT}.calculate_log_probs=True",
        f"{ROLLOUT}.log_prob_use_dynamic_bsz=True",
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu={tokens_a_pass(o)}",
        f"{REFERENCE}.log_prob_use_dynamic_bsz=True",
        f"{REFERENCE}.log_prob_max_token_len_per_gpu={tokens_a_pass(o)}",
        f"{ROLLOUT}.agent.num_workers=1",
        f"+{ROLLOUT}.agent.agent_loop_manager_class=agl_verl.inside.steps.manager.Manager",
        *engines.lines(o, name),
    ]


def _trainer(o: Options, folder: str) -> list[str]:
    return [
        "reward.num_workers=1",
        f"trainer.device={o.device}",
        "trainer.use_v1=True",
        *modes.lines(o),
        "trainer.logger=[file]",
        "trainer.project_name=agentlightning",
        "trainer.experiment_name=run",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
        "trainer.resume_mode=disable",
        "trainer.total_epochs=1",
        f"trainer.default_local_dir={quote(folder)}",
        f"transfer_queue.backend.SimpleStorage.num_data_storage_units={o.nodes}",
        *cluster.lines(o),
    ]


NO_DUAL_CLIP = 1e9
"""verl always has a dual clip; with this bound it never acts."""


def cpu(part: str) -> list[str]:
    """What a CPU needs: float32. (And logical GPUs, which Ray counts.)"""
    precision = [
        f"+{part}.fsdp_config.mixed_precision.{kind}_dtype=fp32" for kind in ("param", "reduce", "buffer")
    ]
    return [
        f"{part}.fsdp_config.model_dtype=fp32",
        f"{part}.fsdp_config.use_torch_compile=False",
        *precision,
    ]
