"""``Trainer(algorithm=VERL(config))``: read verl's configuration as a recipe for the driver ``verl``.

Entries about the algorithm become recipe fields, entries about the machine become driver options; the rest
goes to verl unchanged. Invariant: each entry has one place; an entry without one is refused by name before
anything starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentlightning.recipes import RECIPES, get
from agentlightning.types import Recipe
from agentlightning.types.base import ConfigError

OURS = "agentlightning"
"""Section of the configuration for settings that verl does not have."""
SECTION = ("recipe", "options")
"""Its keys."""

ESTIMATORS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "grpo_vectorized": {},
    "rloo": {"baseline": "rloo", "scale": "none"},
    "reinforce_plus_plus_baseline": {"baseline": "group", "scale": "none"},
    "reinforce_plus_plus": {"baseline": "batch", "group_by": ["batch"], "scale": "std"},
    "gae": {"critic": True},
}
"""verl's advantage estimators → recipe fields."""

RECIPE = {
    "actor_rollout_ref.rollout.n": "group_size",
    "actor_rollout_ref.rollout.temperature": "temperature",
    "actor_rollout_ref.actor.clip_ratio_low": "clip_low",
    "actor_rollout_ref.actor.clip_ratio_high": "clip_high",
    "actor_rollout_ref.actor.clip_ratio_c": "clip_ratio_c",
    "actor_rollout_ref.actor.entropy_coeff": "entropy",
    "actor_rollout_ref.actor.ppo_epochs": "epochs",
    "algorithm.gamma": "gamma",
    "algorithm.lam": "lam",
}
"""Entry of verl's tree → field of the recipe."""

OPTIONS = {
    "actor_rollout_ref.actor.optim.lr": "lr",
    "actor_rollout_ref.actor.optim.weight_decay": "weight_decay",
    "actor_rollout_ref.actor.grad_clip": "max_grad_norm",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": "micro_batch_tokens",
    "actor_rollout_ref.rollout.name": "engine",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": "tensor_parallel",
    "actor_rollout_ref.rollout.gpu_memory_utilization": "engine_memory",
    "critic.optim.lr": "critic_lr",
    "trainer.critic_warmup": "critic_warmup",
    "ray_kwargs.ray_init.address": "ray_address",
    "trainer.save_freq": "save_every",
    "trainer.max_actor_ckpt_to_keep": "keep_checkpoints",
    "trainer.device": "device",
    "trainer.v1.trainer_mode": "mode",
}
"""Entry of verl's tree → option of the driver."""

REFUSED = {
    "algorithm.use_kl_in_reward": "a reward is what the agent emitted; give the KL term of the loss "
    "(actor_rollout_ref.actor.use_kl_loss)",
    "actor_rollout_ref.actor.loss_agg_mode": "the recipe's `loss_aggregation` says what a token weighs",
    "actor_rollout_ref.actor.policy_loss.loss_mode": "the recipe's `ratio_level` and `loss` say what "
    "is minimised",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "mini-batches are counted, not sized: the recipe's "
    "`minibatches`",
    "algorithm.filter_groups": "the recipe's `filter_zero_std_groups`, and Trainer(dynamic_sampling=…) for "
    "how many further batches a step may take",
    "data.train_files": "tasks go to Trainer.fit",
    "data.val_files": "tasks go to Trainer.fit",
    "trainer.test_freq": "Trainer(evaluate_every=…)",
    "trainer.total_training_steps": "Trainer(steps=…)",
    "trainer.total_epochs": "Trainer(steps=…)",
    "trainer.resume_mode": "Trainer(run=…, resume=True)",
    "critic": "advantages come from credit, and nothing asks a critic (but with adv_estimator=gae)",
}
"""Entries or sections that belong elsewhere → where."""


K3 = ("k3", "low_var_kl")


class VERL:
    """A recipe trained by verl's trainer, through the driver of ``plugins/verl``.

    ``config``: verl's own tree, nested or with dotted keys, and a section ``agentlightning`` with ``recipe``
    (a name, or fields) and ``options`` (those of the driver, e.g. ``python``: the interpreter that has verl).
    ``recipe`` and ``options`` may be given beside it, and win. Raises :class:`ConfigError`, which names
    all entries that belong elsewhere.
    """

    driver = "verl"

    def __init__(
        self, config: Mapping[str, Any] | None = None, *, recipe: Recipe | str | None = None, **options: Any
    ) -> None:
        given = dict(config or {})
        own = given.pop(OURS, {})
        wrong = [f"{OURS}: no entry {key!r}; it has recipe and options" for key in own if key not in SECTION]
        tree = dict(entries(given))
        base = "ppo" if tree.get("algorithm.adv_estimator") == "gae" else "grpo"
        wrong += drop_refused(tree)
        self.policy: str | Path | None = tree.pop("actor_rollout_ref.model.path", None)
        """Folder of the model, if the tree names it."""
        self.batch_size: int | None = tree.pop("data.train_batch_size", None)
        """Tasks of a step, if the tree says."""
        fields = {
            **combined_fields(tree, wrong),
            **{RECIPE[key]: tree.pop(key) for key in [*tree] if key in RECIPE},
        }
        self.recipe = read_recipe(
            recipe if recipe is not None else own.get("recipe", base), fields, base, wrong
        )
        found = resource_options(tree) | {OPTIONS[key]: tree.pop(key) for key in [*tree] if key in OPTIONS}
        self.options: dict[str, Any] = {**found, **own.get("options", {}), **options}
        if tree:
            lines = [f"{key}={hydra_value(value)}" for key, value in tree.items()]
            self.options["overrides"] = [*lines, *self.options.get("overrides", [])]


def hydra_value(value: Any) -> str:
    """Return ``value`` as Hydra writes it; ``None`` is ``null``."""
    return "null" if value is None else str(value)


def drop_refused(tree: dict[str, Any]) -> list[str]:
    """Remove entries that belong elsewhere; return an error for each that is neither null nor false."""
    reasons = {**REFUSED}
    if tree.get("algorithm.adv_estimator") == "gae":
        del reasons["critic"]
    wrong = []
    for key in [*tree]:
        reason = next((why for name, why in reasons.items() if f"{key}.".startswith(f"{name}.")), None)
        if reason is not None and tree.pop(key) not in (False, None):
            wrong.append(f"{key}: {reason}")
    return wrong


def combined_fields(tree: dict[str, Any], wrong: list[str]) -> dict[str, Any]:
    """Return recipe fields that are made of several entries, and remove the entries from ``tree``. Errors are
    added to ``wrong``.
    """
    actor, fields = "actor_rollout_ref.actor", {}
    if (estimator := tree.pop("algorithm.adv_estimator", None)) is not None:
        if estimator not in ESTIMATORS:
            known = ", ".join(ESTIMATORS)
            wrong.append(f"algorithm.adv_estimator = {estimator!r}: known are {known}")
        fields.update(ESTIMATORS.get(estimator, {}))
    if (clip := tree.pop(f"{actor}.clip_ratio", None)) is not None:
        fields.update(clip_low=clip, clip_high=clip)
    coefficient, kind = tree.pop(f"{actor}.kl_loss_coef", 0.001), tree.pop(f"{actor}.kl_loss_type", "k3")
    if tree.pop(f"{actor}.use_kl_loss", False):
        if kind not in K3:
            wrong.append(f"{actor}.kl_loss_type = {kind!r}: ours is {' or '.join(K3)}")
        fields["kl"] = coefficient
    return fields


def resource_options(tree: dict[str, Any]) -> dict[str, Any]:
    """Return driver options made of several entries, and remove the entries from ``tree``."""
    found: dict[str, Any]
    nodes, each = tree.pop("trainer.nnodes", 1), tree.pop("trainer.n_gpus_per_node", 1)
    found = {name: n for name, n in {"ranks": nodes * each, "nodes": nodes}.items() if n != 1}
    names = {"rank": "lora_rank", "alpha": "lora_alpha", "targets": "target_modules"}
    given = {name: tree.pop(f"actor_rollout_ref.model.{key}", None) for name, key in names.items()}
    if given["rank"]:  # 0 is verl's word for none
        found["lora"] = {name: value for name, value in given.items() if value is not None}
    return found


def entries(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted key and value of every leaf."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from entries(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def read_recipe(
    given: Recipe | str | Mapping[str, Any],
    fields: Mapping[str, Any],
    base: str = "grpo",
    wrong: Sequence[str] = (),
) -> Recipe:
    """Return the named or given recipe with ``fields`` of verl's tree; ``base``: the default recipe.

    Raises one :class:`ConfigError` for all errors, ``wrong`` included.
    """
    found = [*wrong]
    if isinstance(given, Recipe):
        if fields:
            found.append(f"{', '.join(sorted(fields))}: said by the recipe and by verl's tree")
        _refuse(found)
        return given
    own = {"name": given} if isinstance(given, str) else dict(given)
    name = own.pop("name", base)
    if name not in RECIPES:
        found.append(f"{OURS}.recipe: no recipe {name!r}; known: {', '.join(sorted(RECIPES))}")
    clash = sorted(set(own) & set(fields))
    found += [f"{OURS}.recipe.{field}: verl's tree says it too" for field in clash]
    try:
        recipe = get(name if name in RECIPES else base, **{**own, **fields})
    except ValueError as error:
        found.append(str(error))
    _refuse(found)
    return recipe


def _refuse(wrong: Sequence[str]) -> None:
    """Raise one error for all problems, so that they can be fixed at once."""
    if len(wrong) == 1:
        raise ConfigError(wrong[0])
    if wrong:
        listed = "".join(f"\n  {line}" for line in wrong)
        raise ConfigError(f"{len(wrong)} entries cannot be used:{listed}")
