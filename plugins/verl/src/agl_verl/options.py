"""The driver's own settings, and what they are in verl's configuration."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from agentlightning.types import Recipe, UsageError


class OptionError(UsageError, ValueError):
    """An option that the driver does not have, or a value that cannot be used."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``backend.options`` of a run with the ``verl`` driver."""

    python: str = sys.executable
    """Interpreter of the environment that has verl; agents and their frameworks need not live in it."""
    device: Literal["cpu", "cuda"] = "cpu"
    ranks: int = 1
    """Data-parallel training workers (FSDP)."""
    lr: float = 1e-4
    """Learning rate of AdamW, constant."""
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    clip_norm: float = 1.0
    max_len: int = 2048
    """Tokens of prompt and answer together."""
    micro_tokens: int = 4096
    """Tokens of one forward pass of a worker."""
    engine_threads: int | None = None
    """Of the engine; ``None``: torch's own choice."""
    slots: int = 64
    """Answers the engine writes at a time."""
    save_every: int = 0
    """Steps between checkpoints; there is always one after the last step."""
    keep: int = 2
    """Checkpoints that are kept."""
    start_seconds: float = 600.0
    """How long Ray, the workers and the engine may take to stand."""
    overrides: list[str] = []
    """Further lines for verl's configuration, in Hydra's form ``key=value``; they win."""


def read_options(given: Mapping[str, Any] | None) -> Options:
    """``given`` as Options; OptionError for what cannot be used."""
    fields = {field.name for field in msgspec.structs.fields(Options)}
    for name in given or {}:
        if name not in fields:
            near = difflib.get_close_matches(name, fields, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(sorted(fields))}"
            raise OptionError(f"backend.options: the verl driver has no option {name!r}{hint}")
    try:
        found = msgspec.convert(dict(given or {}), Options)
    except msgspec.ValidationError as error:
        raise OptionError(f"backend.options: {error}") from None
    if found.ranks < 1 or found.keep < 1 or found.save_every < 0 or found.lr <= 0:
        raise OptionError(
            "backend.options: ranks and keep must be 1 or more, save_every 0 or more, lr above 0"
        )
    for line in found.overrides:
        key = line.partition("=")[0].lstrip("+~")
        for name, reason in REFUSED.items():
            if key == name or key.startswith((f"{name}.", f"{name}_")):
                raise OptionError(f"backend.options.overrides: {line}: {reason}")
    return found


REFUSED = {
    "actor_rollout_ref.model.lora": "LoRA is not built: verl saves models with the adapters apart, which no "
    "engine of ours loads",
    "algorithm.adv_estimator": "advantages come from credit; choose them with the recipe",
    "actor_rollout_ref.rollout.n": "groups are made by the algorithm: the recipe's group_size",
    "trainer.use_v1": "the driver is written for verl's V1 trainer",
    "trainer.v1.trainer_mode": "only verl's synchronous mode is built",
}
"""Keys that would make a run another than it says, each with the reason."""


def overrides(policy: str, recipe: Recipe, seed: int, o: Options, folder: str) -> list[str]:
    """verl's configuration, line by line. ``folder``: for what is written before the run has one."""
    actor, rollout, reference = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref"))
    lines = [
        f"actor_rollout_ref.model.path={policy}",
        "actor_rollout_ref.model.use_remove_padding=False",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        # The data are placeholders, one a step: tasks belong to the algorithm.
        "data.train_files=[]",
        "data.val_files=[]",
        "data.custom_cls.path=pkg://agl_verl.inside.dataset",
        "data.custom_cls.name=Steps",
        "data.train_batch_size=1",
        "data.dataloader_num_workers=0",
        "data.shuffle=False",
        f"data.seed={seed % 2**31}",
        f"data.max_prompt_length={o.max_len}",
        f"data.max_response_length={o.max_len}",
        # Rows come with their advantages; the sum over all tokens of the step is the loss that credit means.
        "algorithm.adv_estimator=agl",
        "algorithm.use_kl_in_reward=False",
        f"{actor}.loss_agg_mode=token-sum",
        f"{actor}.ppo_mini_batch_size=1",
        f"{actor}.use_dynamic_bsz=True",
        f"{actor}.ppo_max_token_len_per_gpu={o.micro_tokens}",
        f"{actor}.ppo_epochs={recipe.epochs}",
        # Rows come sorted by length when several ranks share them.
        f"{actor}.shuffle={recipe.minibatches > 1}",
        f"{actor}.data_loader_seed={seed % 2**31}",
        f"{actor}.clip_ratio={recipe.clip_low}",
        f"{actor}.clip_ratio_low={recipe.clip_low}",
        f"{actor}.clip_ratio_high={recipe.clip_high}",
        f"{actor}.clip_ratio_c={recipe.clip_ratio_c or NO_DUAL_CLIP}",
        # Terms of the loss, which are the recipe's own then (inside/loss.py): here they say what to compute.
        f"{actor}.entropy_coeff={recipe.entropy}",
        f"{actor}.use_kl_loss={bool(recipe.kl)}",
        f"{actor}.kl_loss_coef={recipe.kl}",
        f"{actor}.grad_clip={o.clip_norm}",
        f"{actor}.optim.lr={o.lr}",
        f"{actor}.optim.weight_decay={o.weight_decay}",
        f"{actor}.optim.betas=[{o.betas[0]},{o.betas[1]}]",
        f"{actor}.checkpoint.save_contents=[model,optimizer,extra,hf_model]",
        f"{rollout}.name=embedded",
        f"{rollout}.n=1",
        f"{rollout}.tensor_model_parallel_size=1",
        f"{rollout}.temperature={recipe.temperature}",
        f"{rollout}.free_cache_engine=False",
        f"{rollout}.calculate_log_probs=True",
        f"{rollout}.log_prob_use_dynamic_bsz=True",
        f"{rollout}.log_prob_max_token_len_per_gpu={o.micro_tokens}",
        f"{reference}.log_prob_use_dynamic_bsz=True",
        f"{reference}.log_prob_max_token_len_per_gpu={o.micro_tokens}",
        f"{rollout}.agent.num_workers=1",
        f"+{rollout}.agent.agent_loop_manager_class=agl_verl.inside.manager.Manager",
        f"+{rollout}.engine_kwargs.embedded.slots={o.slots}",
        f"+{rollout}.engine_kwargs.embedded.max_len={o.max_len}",
        f"+{rollout}.engine_kwargs.embedded.device={o.device}",
        "reward.num_workers=1",
        f"trainer.device={o.device}",
        f"trainer.n_gpus_per_node={o.ranks}",
        "trainer.nnodes=1",
        "trainer.use_v1=True",
        "trainer.v1.trainer_mode=sync",
        "trainer.v1.sampler.custom_sampler.path=pkg://agl_verl.inside.sampler",
        "trainer.v1.sampler.custom_sampler.name=StepBuffer",
        "trainer.logger=[file]",
        "trainer.project_name=agentlightning",
        "trainer.experiment_name=run",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
        "trainer.resume_mode=disable",
        "trainer.total_epochs=1",
        f"trainer.default_local_dir={folder}",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        "+ray_kwargs.ray_init.include_dashboard=False",
        # Ray's own bookkeeping wants several logical CPUs a worker; too few, and it waits without a word.
        f"ray_kwargs.ray_init.num_cpus={16 + 8 * o.ranks}",
    ]
    if o.engine_threads is not None:
        lines.append(f"+{rollout}.engine_kwargs.embedded.threads={o.engine_threads}")
    if o.device == "cpu":
        lines += [*cpu(actor), *cpu(reference), f"+ray_kwargs.ray_init.num_gpus={o.ranks}"]
    return [*lines, *o.overrides]


NO_DUAL_CLIP = 1e9
"""verl always has a dual clip; with this bound it never acts."""


def cpu(part: str) -> list[str]:
    """What a CPU needs: float32 and FSDP 2. (And logical GPUs, which Ray counts.)"""
    precision = [
        f"+{part}.fsdp_config.mixed_precision.{kind}_dtype=fp32" for kind in ("param", "reduce", "buffer")
    ]
    return [
        f"{part}.strategy=fsdp2",
        f"{part}.fsdp_config.strategy=fsdp2",
        f"{part}.fsdp_config.model_dtype=fp32",
        f"{part}.fsdp_config.use_torch_compile=False",
        *precision,
    ]
