"""``Trainer(algorithm=agl.VERL(config))``: read verl's configuration as a recipe for the driver ``verl``.

Entries about the algorithm become recipe fields, entries about the machine become driver options; the rest
goes to verl unchanged. Invariant: each entry has one place; an entry without one is refused by name before
anything starts. What the tree does not say is what verl 0.9's own configuration says (:data:`FIELDS`,
:data:`SETTINGS`), unless the section ``agentlightning`` names a recipe: then it is what that recipe says.

Where verl says *sequence*, a rollout is meant: all that the policy wrote of one sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentlightning import recipes
from agentlightning.recipes import get
from agentlightning.types import Recipe
from agentlightning.types.base import ConfigError
from agl_verl.pass_at_k import GRPOPassK
from agl_verl.ppo import PPO

OURS = "agentlightning"
"""Section of the configuration for settings that verl does not have."""
SECTION = ("recipe", "options")
"""Its keys."""

RECIPES: Mapping[str, recipes.RecipeFactory] = {**recipes.RECIPES, "grpo_passk": GRPOPassK, "ppo": PPO}
"""What the section may name."""

ACTOR, CORRECTION = "actor_rollout_ref.actor", "algorithm.rollout_correction"
FIELDS: Mapping[str, Any] = {
    "group_size": 1, "temperature": 1.0, "gamma": 1.0, "lam": 1.0, "loss_aggregation": "token",
    "clip_low": 0.2, "clip_high": 0.2, "clip_ratio_c": 3.0, "kl": 0.0, "entropy": 0.0, "epochs": 1,
    "correction": None,
}  # fmt: skip
"""What verl's ``ppo_trainer`` says where a tree is silent, as recipe fields. Its estimator is ``gae``."""
SETTINGS: Mapping[str, Any] = {"lr": 1e-6, "weight_decay": 0.01}
"""And as options of the driver."""
CRITIC_LR = 1e-5
"""And for a critic."""
MINI_BATCH = 256
"""And as ``ppo_mini_batch_size``: tasks of one optimizer step."""
GROUP = {"baseline": "group", "scale": "std"}
ESTIMATORS: dict[str, dict[str, Any]] = {
    "grpo": GROUP,
    "grpo_vectorized": GROUP,
    "grpo_passk": {"baseline": "passk", "scale": "std"},
    "rloo": {"baseline": "rloo", "scale": "none"},
    "gae": {"critic": True},
}
"""verl's advantage estimators → recipe fields."""
WHITENED = "verl whitens it over the tokens of the step, which no recipe does; write "
UNWHITENED = "algorithm.adv_estimator: grpo with algorithm.norm_adv_by_std_in_grpo: false"
OTHER_ESTIMATORS = {
    "reinforce_plus_plus_baseline": f"{WHITENED}{UNWHITENED}, the same before it is whitened",
    "reinforce_plus_plus": f"{WHITENED}agentlightning.recipe: reinforce++ without an estimator, which "
    "normalises over rollouts",
}
"""Those that look like a recipe, and are none."""
AGGREGATIONS: dict[str, dict[str, Any]] = {
    "token-mean": {"loss_aggregation": "token"},
    "seq-mean-token-mean": {"loss_aggregation": "rollout"},
    "seq-mean-token-sum": {"loss_aggregation": "constant", "loss_divisor": 1.0},
    "seq-mean-token-sum-norm": {"loss_aggregation": "constant"},
}
"""verl's ``loss_agg_mode`` → recipe fields."""

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
    "actor_rollout_ref.actor.optim.clip_grad": "max_grad_norm",
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
    f"{CORRECTION}.rollout_rs": "recipe.correction weighs tokens; write rollout_is, or give "
    "agentlightning.recipe.correction",
    f"{CORRECTION}.bypass_mode": "ratios are taken against the trainer's own logprobs; write rollout_is",
    f"{CORRECTION}.rollout_is_batch_normalize": "weights are not divided by their mean; drop it",
    "algorithm.use_pf_ppo": "a step trains each rollout once; give more weight by its reward",
    "actor_rollout_ref.actor.policy_loss.loss_mode": "the fields `ratio_level` and `loss` of "
    "agentlightning.recipe say what is minimised (gspo and cispo are recipes)",
    "actor_rollout_ref.actor.grad_clip": "verl 0.9 does not read it; write "
    "actor_rollout_ref.actor.optim.clip_grad",
    "actor_rollout_ref.actor.shuffle": "mini-batches are drawn by the driver, from seed and step",
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
NOTHING = (False, None, "vanilla")
"""Values of refused entries that ask for nothing."""


class VERL:
    """A recipe trained by verl's trainer, through the driver ``verl``.

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
        chosen = own.get("recipe", {}) if recipe is None else recipe
        unnamed = isinstance(chosen, Mapping) and "name" not in chosen
        critic = tree.get("algorithm.adv_estimator", "gae" if unnamed else None) == "gae"
        wrong += drop_refused(tree, critic)
        self.policy: str | Path | None = tree.pop("actor_rollout_ref.model.path", None)
        """Folder of the model, if the tree names it."""
        self.batch_size: int | None = tree.pop("data.train_batch_size", None)
        """Tasks of a step, if the tree says."""
        wrong += mini_batches(tree, self.batch_size, chosen)
        fields = {
            **combined_fields(tree, wrong),
            **{RECIPE[key]: tree.pop(key) for key in [*tree] if key in RECIPE},
        }
        self.recipe = read_recipe(chosen, fields, "ppo" if critic else "grpo", wrong)
        found = {**SETTINGS, **({"critic_lr": CRITIC_LR} if self.recipe.critic else {})}
        found |= resource_options(tree)
        found |= {OPTIONS[key]: tree.pop(key) for key in [*tree] if key in OPTIONS}
        self.options: dict[str, Any] = {**found, **own.get("options", {}), **options}
        if tree:
            lines = [f"{key}={hydra_value(value)}" for key, value in tree.items()]
            self.options["overrides"] = [*lines, *self.options.get("overrides", [])]

    def fields(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a run that stand in the tree. ``given``: those beside it; its policy
        and options win over the tree's, and the tree's batch size over its own.
        """
        return {
            "algorithm": self.recipe,
            "driver": self.driver,
            "policy": given.get("policy") or self.policy,
            "options": {**self.options, **(given.get("options") or {})},
            "batch_size": self.batch_size or given.get("batch_size"),
        }


def hydra_value(value: Any) -> str:
    """Return ``value`` as Hydra writes it; ``None`` is ``null``."""
    return "null" if value is None else str(value)


def drop_refused(tree: dict[str, Any], critic: bool) -> list[str]:
    """Remove entries that belong elsewhere; return an error for each that asks for something."""
    reasons = {**REFUSED}
    if critic:
        del reasons["critic"]
    wrong = []
    for key in [*tree]:
        reason = next((why for name, why in reasons.items() if f"{key}.".startswith(f"{name}.")), None)
        if reason is not None and tree.pop(key) not in NOTHING:
            wrong.append(f"{key}: {reason}")
    return wrong


def mini_batches(tree: dict[str, Any], tasks: int | None, recipe: Any) -> list[str]:
    """Remove verl's size of a mini-batch; return an error where it makes several of a step of ``tasks``."""
    given = tree.pop(key := f"{ACTOR}.ppo_mini_batch_size", None)
    counted = "minibatches" in recipe if isinstance(recipe, Mapping) else bool(recipe)
    if given is None and (tasks is None or tasks <= MINI_BATCH or counted):
        return []
    if given is not None and given == tasks:
        return []
    said = f"{key} = {given}" if given is not None else f"{key} is {MINI_BATCH} in verl where nothing is said"
    return [f"{said}: mini-batches are counted, not sized; write agentlightning.recipe.minibatches"]


def combined_fields(tree: dict[str, Any], wrong: list[str]) -> dict[str, Any]:
    """Return recipe fields that are made of several entries, and remove the entries from ``tree``. Errors are
    added to ``wrong``.
    """
    fields = {**_estimator(tree, wrong), **_aggregation(tree, wrong), **_correction(tree)}
    if (clip := tree.pop(f"{ACTOR}.clip_ratio", None)) is not None:
        reads = {key: tree.get(f"{ACTOR}.{key}", 0.2) for key in ("clip_ratio_low", "clip_ratio_high")}
        if any(clip != bound for bound in reads.values()):
            wrong.append(
                f"{ACTOR}.clip_ratio = {clip}: verl 0.9 reads clip_ratio_low and clip_ratio_high, which are "
                "0.2 where nothing is said; write both"
            )
    coefficient, kind = tree.pop(f"{ACTOR}.kl_loss_coef", 0.001), tree.pop(f"{ACTOR}.kl_loss_type", "k3")
    if tree.pop(f"{ACTOR}.use_kl_loss", False):
        if kind not in K3:
            wrong.append(f"{ACTOR}.kl_loss_type = {kind!r}: ours is {' or '.join(K3)}")
        fields["kl"] = coefficient
    return fields


def _estimator(tree: dict[str, Any], wrong: list[str]) -> dict[str, Any]:
    """How advantages are made."""
    estimator = tree.pop(key := "algorithm.adv_estimator", None)
    by_spread = tree.pop("algorithm.norm_adv_by_std_in_grpo", True)
    if estimator in OTHER_ESTIMATORS:
        wrong.append(f"{key} = {estimator!r}: {OTHER_ESTIMATORS[estimator]}")
    elif estimator is not None and estimator not in ESTIMATORS:
        wrong.append(f"{key} = {estimator!r}: known are {', '.join(ESTIMATORS)}")
    fields = dict(ESTIMATORS.get(estimator, {}))
    if fields.get("scale") == "std" and not by_spread:
        fields["scale"] = "none"
    return fields


def _aggregation(tree: dict[str, Any], wrong: list[str]) -> dict[str, Any]:
    """What a token weighs."""
    mode = tree.pop(key := f"{ACTOR}.loss_agg_mode", None)
    divisor = tree.pop(factor := f"{ACTOR}.loss_scale_factor", None)
    if mode is not None and mode not in AGGREGATIONS:
        wrong.append(f"{key} = {mode!r}: known are {', '.join(AGGREGATIONS)}")
    fields = dict(AGGREGATIONS.get(mode, {}))
    if mode == "seq-mean-token-sum-norm":
        if divisor is None:
            wrong.append(f"{key} = {mode!r}: without {factor} verl divides by a batch's own width; write it")
        fields["loss_divisor"] = divisor or 1.0
    elif divisor is not None:
        wrong.append(f"{factor} = {divisor}: verl reads it with {key} = 'seq-mean-token-sum-norm' alone")
    return fields


def _correction(tree: dict[str, Any]) -> dict[str, Any]:
    """How tokens are weighed whose engine and trainer disagree. verl does so in every step."""
    given = {key: tree.pop(key) for key in [*tree] if f"{key}.".startswith(f"{CORRECTION}.")}
    if (level := given.get(f"{CORRECTION}.rollout_is")) is None:
        return {}
    floor, _, cap = str(given.get(f"{CORRECTION}.rollout_is_threshold", 2.0)).rpartition("_")
    bounds = {"kind": "mask", "floor": float(floor)} if floor else {"kind": "truncate"}
    return {"correction": {**bounds, "level": level, "cap": float(cap), "threshold": 0.0}}


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
    base: str,
    wrong: Sequence[str],
) -> Recipe:
    """Return the named or given recipe with ``fields`` of verl's tree; ``base``: whose name it has, if none
    is named, with :data:`FIELDS`.

    Raises one :class:`ConfigError` for all errors, ``wrong`` included.
    """
    found = [*wrong]
    if isinstance(given, Recipe):
        if fields:
            found.append(f"{', '.join(sorted(fields))}: said by the recipe and by verl's tree")
        _refuse(found)
        return given
    own = {"name": given} if isinstance(given, str) else dict(given)
    silent = {} if "name" in own else FIELDS
    name = own.pop("name", base)
    if name not in RECIPES:
        found.append(f"{OURS}.recipe: no recipe {name!r}; known: {', '.join(sorted(RECIPES))}")
    clash = sorted(set(own) & set(fields))
    found += [f"{OURS}.recipe.{field}: verl's tree says it too" for field in clash]
    try:
        recipe = get(name if name in RECIPES else base, RECIPES, **{**silent, **own, **fields})
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
