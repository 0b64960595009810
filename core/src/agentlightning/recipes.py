"""Recipes: RL algorithms as data, under their papers' names.

A recipe owns no loop: a driver runs it and declares which fields it supports. Each function here is one
recipe, with its paper's formula; it says the values that differ from those of
:class:`~agentlightning.types.Recipe`, and takes any field of it as an override: ``GRPO(group_size=16)``.
``get("grpo", kl=0.04)`` is ``GRPO(kl=0.04)``; plugins add recipes by the hook ``agl_recipes``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from agentlightning.types import Recipe
from agentlightning.types.base import meant

PER_CALL_RULES = ("per_call", "discounted", "per_agent")
"""Credit rules that give the calls of a rollout different numbers: recipes with them compare turns, as
measured in ``docs/credit.md``, "Which baseline for which rule"."""

FIELDS: tuple[str, ...] = tuple(f.name for f in msgspec.structs.fields(Recipe))
"""The fields of a recipe, all of which can be overridden."""


def make(overrides: Mapping[str, Any], **defaults: Any) -> Recipe:
    """Return a recipe. ``ValueError`` for an unknown field or a value of another type.

    If the overrides choose another credit rule than the recipe's own, one of ``PER_CALL_RULES``, ``group_by``
    becomes ``["group", "turn"]``, unless it is overridden.
    """
    where = f"recipe {defaults.get('name', 'recipe')!r}"
    for field in overrides:
        if field not in FIELDS:
            raise ValueError(f"{where} has no field {field!r}{meant(field, FIELDS)}")
    fields = {**defaults, **overrides}
    rule = fields.get("credit")
    if rule in PER_CALL_RULES and rule != defaults.get("credit"):
        fields["group_by"] = overrides.get("group_by", ["group", "turn"])
    try:
        return msgspec.convert(fields, Recipe)
    except msgspec.ValidationError as error:
        raise ValueError(f"{where}: {error}") from None


RecipeFactory = Callable[..., Recipe]
RECIPES: dict[str, RecipeFactory] = {}
"""The built-in recipes by name."""
PAPERS: dict[str, str] = {}
"""Recipe → its paper."""


def get(name: str, /, recipes: Mapping[str, RecipeFactory] = RECIPES, **overrides: Any) -> Recipe:
    """Return the recipe of that name, with fields overridden. ``ValueError`` for an unknown name or field."""
    if name not in recipes:
        raise ValueError(f"no recipe {name!r}; known: {', '.join(sorted(recipes))}")
    return recipes[name](**overrides)


def _published(name: str, paper: str) -> Callable[[RecipeFactory], RecipeFactory]:
    """Enter a recipe under its name, with its paper."""

    def enter(factory: RecipeFactory) -> RecipeFactory:
        RECIPES[name], PAPERS[name] = factory, paper
        return factory

    return enter


@_published("cispo", "arXiv 2506.13585")
def CISPO(**overrides: Any) -> Recipe:
    """CISPO: Clipped Importance Sampling Policy Optimization. MiniMax-M1, https://arxiv.org/abs/2506.13585
    (section 3.1, equations 4 and 5).

        A_i = (r_i - mean(r)) / (std(r) + 1e-6)                            over the G rollouts of one task
        J   = 1/sum_i |o_i| sum_i sum_t sg(min(rho_t, 1 + eps)) A_i log pi(o_t)        sg: no gradient

    The clip bounds how much a token weighs and never removes its gradient, where PPO's clip drops a token
    whose probability has moved too far, often the rare word that a new line of thought begins with. There is
    no lower bound (``clip_low=1``), as in the paper, which tunes ``eps`` and does not say its value; 0.28 is
    DAPO's. With one optimizer step a batch, every ratio is 1 and the gradient is GRPO's over all tokens.

    **Values.** The paper makes 16 rounds of updates from a batch; 4 are our choice, for smaller batches. It
    has no KL term either, and takes dynamic sampling and the length penalty from DAPO, which are settings of
    a run and of a reward.
    """
    return make(
        overrides,
        name="cispo",
        scale="std",
        loss_aggregation="token",
        loss="cispo",
        clip_low=1.0,
        clip_high=0.28,
        minibatches=4,
    )


@_published("dapo", "arXiv 2503.14476")
def DAPO(**overrides: Any) -> Recipe:
    """DAPO: Decoupled Clip and Dynamic sAmpling Policy Optimization. Yu et al.,
    https://arxiv.org/abs/2503.14476 (equation 8).

        A_i = (r_i - mean(r)) / (std(r) + 1e-6)                            over the G rollouts of one task
        J   = 1/sum_i |o_i| sum_i sum_t min(rho_t A_i, clip(rho_t, 1 - eps_low, 1 + eps_high) A_i)
        with 0 < #correct < G                                              in every group of the batch

    The upper clip is wider than the lower one, so that rare tokens can become likely; every token of the
    batch weighs the same; groups whose rollouts all earned the same take no part. To replace such groups by
    others, as the paper does, set ``training.dynamic_sampling``. The paper's penalty for over-long answers is
    part of its reward.

    **Values.** Group size, clip ranges and the missing KL term are the paper's (sections 2.3 and 4.1). It
    takes 16 optimizer steps from a batch of 512 tasks; one is our choice, for smaller batches
    (``DAPO(minibatches=16)``).
    """
    return make(
        overrides,
        name="dapo",
        group_size=16,
        scale="std",
        loss_aggregation="token",
        clip_high=0.28,
        filter_zero_std_groups=True,
    )


@_published("dr_grpo", "arXiv 2503.20783")
def DrGRPO(**overrides: Any) -> Recipe:
    """Dr. GRPO: GRPO Done Right. Liu et al., https://arxiv.org/abs/2503.20783 (section 3.2).

        A_i = r_i - mean(r)                                                over the G rollouts of one task
        J   = 1/G sum_i 1/L sum_t min(rho_t A_i, clip(rho_t, 1 - eps, 1 + eps) A_i)

    Two divisions of GRPO are gone: by the group's standard deviation, which gives tasks that are nearly
    always or nearly never solved more weight, and by a rollout's own length, which punishes a long wrong
    answer less than a short one. ``L`` is a constant, the budget of generated tokens of a rollout:
    ``loss_divisor``. It scales the loss and nothing else, so with AdamW it hardly matters; a run that clips
    gradients by their norm sets it near the length of its rollouts.

    **Values.** Groups of 8, one epoch and no KL term are those of the authors' program, whose budget is 3,000
    tokens: ``DrGRPO(loss_divisor=3000)``. The default of 1,024 is our choice.
    """
    return make(overrides, name="dr_grpo", loss_aggregation="constant", loss_divisor=1024.0)


@_published("flow_grpo", "arXiv 2510.05592")
def FlowGRPO(**overrides: Any) -> Recipe:
    """Flow-GRPO: GRPO for agents of many turns. AgentFlow, https://arxiv.org/abs/2510.05592 (section 3.2).

        A_i = (R_i - mean(R)) / (std(R) + 1e-6)                            over the G rollouts of one task
        J   = 1/G sum_i 1/T_i sum_t 1/|a_it| sum_j min(rho_ij A_i, clip(rho_ij, 1 - eps, 1 + eps) A_i)

    The outcome ``R_i`` of a rollout is broadcast to each of its ``T_i`` turns (calls), so that a task of many
    turns becomes one-turn updates with the same credit. Turns of a rollout weigh the same, however long they
    are: GRPO gives a long answer more of its rollout's share. The paper adds a KL term;
    ``FlowGRPO(kl=0.001)`` puts it back.

    **Values.** Groups of 8 and a KL coefficient of 0.001 are those of the authors' released configuration,
    which clips at 0.3 above: ``FlowGRPO(clip_high=0.3)``. The same range on both sides is our choice.
    """
    return make(overrides, name="flow_grpo", scale="std", loss_aggregation="nested")


@_published("gigpo", "arXiv 2505.10978")
def GiGPO(**overrides: Any) -> Recipe:
    """GiGPO: Group-in-Group Policy Optimization. Feng et al., https://arxiv.org/abs/2505.10978 (section 4).

        A^E_i  = (R_i - mean(R)) / (std(R) + 1e-6)                    over the G rollouts of one task
        G_it   = r_it + gamma G_i(t+1)                                     return from turn t on
        A^S_it = (G_it - mean(G)) / (std(G) + 1e-6)               over calls of the group in one state
        A_it   = A^E_i + omega A^S_it

    Rollouts of one task pass through the same states: the first call always, later ones where a board, a page
    or a file is the same again. Calls made in one state are compared by what followed, which tells good turns
    from bad ones without another rollout. ``omega`` is ``step_weight``. A state is the call's tag ``state``
    if it has one, else its prompt: an agent whose prompts hold their whole history names its states, ``with
    agl.tagged(state=board)``. A state that only one call of the group was in gives no comparison, and its
    ``A^S`` is 0.

    **Values.** ``gamma = 0.95``, ``omega = 1`` and groups of 8 are those of ROLL's implementation. The paper
    also divides by 1 instead of the deviation, for hard tasks: ``GiGPO(scale="none")``.
    """
    return make(overrides, name="gigpo", gamma=0.95, step_weight=1.0, scale="std")


@_published("grpo", "arXiv 2402.03300")
def GRPO(**overrides: Any) -> Recipe:
    """GRPO: Group Relative Policy Optimization. DeepSeekMath, https://arxiv.org/abs/2402.03300 (section 4.1).

        A_i = (r_i - mean(r)) / (std(r) + 1e-6)                            over the G rollouts of one task
        J   = 1/G sum_i 1/|o_i| sum_t min(rho_t A_i, clip(rho_t, 1 - eps, 1 + eps) A_i)
        rho_t = pi(o_t) / pi_old(o_t)

    Here ``o_i`` is everything the policy wrote in rollout i, over all its calls, so a rollout with many calls
    weighs as much as one with few. ``std`` is the sample standard deviation (the paper does not say; see
    ``credit.baselines``).

    **No KL term by default.** The paper has ``beta = 0.04``; it needs a reference policy in memory, and with
    small learning rates on verifiable rewards it is commonly left out. ``GRPO(kl=0.04)`` puts it back.

    **Values.** The paper (section 4.2) samples 64 rollouts a task and makes one update a batch; groups of 8
    are our choice, for less money. ``eps = 0.2`` is PPO's.
    """
    return make(overrides, name="grpo", scale="std")


@_published("gspo", "arXiv 2507.18071")
def GSPO(**overrides: Any) -> Recipe:
    """GSPO: Group Sequence Policy Optimization. Zheng et al., https://arxiv.org/abs/2507.18071 (section 4.1).

        A_i = (r_i - mean(r)) / (std(r) + 1e-6)                            over the G rollouts of one task
        s_i = (pi(y_i | x) / pi_old(y_i | x)) ** (1 / |y_i|)               one ratio for a sequence
        J   = 1/G sum_i min(s_i A_i, clip(s_i, 1 - eps_low, 1 + eps_high) A_i)

    A sequence is what the policy wrote in one call, so an agent's rollout has a ratio for each of its calls,
    and weighs as much as any other rollout. The clip ranges are the paper's; they are narrow because a mean
    over tokens varies little. With one optimizer step a batch, every ratio is 1 and the gradient is GRPO's.

    **Values.** Clip ranges and four optimizer steps a batch are the paper's (section 5.1). Groups of 8 are
    our choice.
    """
    return make(
        overrides,
        name="gspo",
        scale="std",
        ratio_level="sequence",
        clip_low=3e-4,
        clip_high=4e-4,
        minibatches=4,
    )


@_published("reinforce++", "arXiv 2501.03262")
def REINFORCEPlusPlus(**overrides: Any) -> Recipe:
    """REINFORCE++: REINFORCE with a baseline and a scale of the whole batch. Hu et al.,
    https://arxiv.org/abs/2501.03262 (section 3).

        A_i = (r_i - mean_batch(r)) / (std_batch(r) + 1e-6)                over all rollouts of the step
        J   = 1/sum_i |o_i| sum_i sum_t min(rho_t A_i, clip(rho_t, 1 - eps, 1 + eps) A_i)

    No groups: one rollout a task, and tasks are compared with each other. Mean and deviation are over
    rollouts, each of which counts once; the paper normalises over tokens, where a long rollout counts more.
    The paper subtracts a KL penalty from the reward; ``REINFORCEPlusPlus(kl=…)`` has it in the loss.

    **Values.** One rollout a task is the paper's first variant. Its second, "with baseline", subtracts the
    mean of a group and divides by the deviation of the batch, which is no recipe here. ``eps = 0.2`` is
    PPO's.
    """
    return make(
        overrides,
        name="reinforce++",
        group_size=1,
        baseline="batch",
        group_by=["batch"],
        scale="std",
        loss_aggregation="token",
    )


@_published("rloo", "arXiv 2402.14740")
def RLOO(**overrides: Any) -> Recipe:
    """RLOO: REINFORCE Leave-One-Out. Ahmadian et al., https://arxiv.org/abs/2402.14740 (section 2.3).

        A_i = r_i - 1/(k - 1) sum_{j != i} r_j                             over the k rollouts of one task
        J   = 1/k sum_i A_i log pi(o_i)                                   log pi(o_i): sum over all its tokens

    The whole sequence is one action: token log-probabilities are *summed*, not averaged, hence
    ``loss_aggregation="constant"`` with ``loss_divisor=1`` (weight 1 / rollouts for every token). Advantages
    are not scaled.

    The loss is ``clip`` at ratio 1, which *is* REINFORCE: with one optimizer step per batch of fresh samples
    (``epochs=1, minibatches=1, max_staleness=0``) the gradient of ``rho * A`` at ``rho = 1`` is ``A * grad
    log pi``, and the clip never acts. With several steps a batch it becomes clipped RLOO. No KL term by
    default; the paper adds it to the reward.

    **Values.** The paper compares ``k = 2`` and ``k = 4``, with a KL coefficient of 0.03 (appendix C); groups
    of 8 are our choice, so that recipes are alike.
    """
    return make(overrides, name="rloo", baseline="rloo", loss_aggregation="constant")
