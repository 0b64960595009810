"""The critic: a value model of its own beside the policy, as lines of verl's configuration.

verl makes it from the policy's weights with a value head, asks it for the value of every token before a
step's update, computes GAE and trains it on the returns. What reaches it of credit are rewards
(:mod:`agl_verl.returns`); its loss is the mean over the tokens of the step, clipped around the old values as
verl does (``critic.cliprange_value``, 0.5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentlightning.types import Recipe, UsageError
from agl_verl.config import attention
from agl_verl.config.quote import quote

if TYPE_CHECKING:
    from agl_verl.config.settings import Options

SAYS = {"critic": "verl's critic", "gamma": "in verl's GAE, per token", "lam": "in verl's GAE"}
"""What becomes of recipe fields with a critic, where it is not what becomes of them without."""


class CriticError(UsageError, ValueError):
    """An option for a critic that the recipe does not have."""


def check(recipe: Recipe, o: Options) -> None:
    """Raise CriticError for options that nobody would read."""
    for name, given in (("critic_lr", o.critic_lr is not None), ("critic_warmup", o.critic_warmup != 0)):
        if given and not recipe.critic:
            raise CriticError(
                f"backend.options.{name}: recipe {recipe.name!r} has no critic; drop it, or train `ppo`"
            )


def lines(policy: str, recipe: Recipe, seed: int, o: Options, tokens: int) -> list[str]:
    """For verl's configuration; they come behind those of the policy. ``tokens``: of a forward pass."""
    made = [
        "algorithm.adv_estimator=gae",
        f"algorithm.gamma={recipe.gamma}",
        f"algorithm.lam={recipe.lam}",
        "critic.enable=True",
        f"critic.model.path={quote(policy)}",
        f"critic.model.use_remove_padding={o.attention == 'flash_attention_2'}",
        f"+critic.model.override_config.attn_implementation={attention.name(o)}",
        "critic.loss_agg_mode=token-mean",
        "critic.ppo_mini_batch_size=1",
        "critic.use_dynamic_bsz=True",
        f"+critic.ppo_infer_max_token_len_per_gpu={tokens}",
        f"critic.ppo_epochs={recipe.epochs}",
        "critic.shuffle=False",
        f"critic.optim.lr={o.lr if o.critic_lr is None else o.critic_lr}",
        f"critic.optim.weight_decay={o.weight_decay}",
        f"critic.optim.betas=[{o.betas[0]},{o.betas[1]}]",
        f"critic.optim.clip_grad={o.max_grad_norm}",
        f"critic.fsdp.seed={seed % 2**31}",
    ]
    made += ["critic.strategy=fsdp2", "critic.fsdp.strategy=fsdp2"]
    if o.sequence_parallel > 1:
        made.append(f"critic.ulysses_sequence_parallel_size={o.sequence_parallel}")
    if o.device == "cpu":
        made += [
            "critic.fsdp.model_dtype=fp32",
            "critic.fsdp.use_torch_compile=False",
            *(f"+critic.fsdp.mixed_precision.{kind}_dtype=fp32" for kind in ("param", "reduce", "buffer")),
        ]
    return made
