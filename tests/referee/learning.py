"""Rewards → advantages → rows → loss → optimizer steps, from the papers' formulas, a row at a time.

GRPO arXiv 2402.03300, Dr. GRPO arXiv 2503.20783, PPO's clip arXiv 1707.06347, a weight for tokens of older
versions arXiv 2110.00641, importance weights between engine and trainer arXiv 2510.18855, DPO arXiv
2305.18290 (equation 7).
"""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from network import AdamW, Network, Tensors, trained_names
from stored import Call, Rollout, Unjudged
from torch import Tensor

Recipe = dict[str, Any]
RULED = {
    "credit": ("broadcast",), "baseline": ("group",), "loss": ("clip",), "merge": (True,), "top_p": (1.0,),
    "loss_aggregation": ("rollout", "constant"), "ratio_level": ("token",), "step_weight": (0.0,),
    "critic": (False,), "entropy": (0.0,), "kl": (0.0,), "filter_zero_std_groups": (False,),
    "group_by": (["group"],), "clip_ratio_c": (None,),
}  # fmt: skip
"""Fields of a recipe → the values for which there is a rule here."""


DELTA = 2e-5
"""What float32 may make of a gradient, as a share of its tensor's largest entry."""


@dataclass
class Row:
    """A training sequence: calls that continue each other."""

    row_id: str
    rollout: str
    ids: list[int]
    temperature: float
    tokens: list[int] = field(default_factory=list)
    """Positions of the trained tokens; what follows has an entry for each."""
    old: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    advantage: float = 0.0
    weights: list[float] = field(default_factory=list)

    def add(self, call: Call) -> None:
        """Continue with a call whose prompt begins with the row's tokens."""
        self.ids = [*call.prompt, *call.response]
        self.tokens += range(len(call.prompt), len(self.ids))
        self.old += call.logprobs
        self.versions += call.versions
        self.calls += [self.calls[-1] + 1 if self.calls else 0] * len(call.response)


def check_rules(recipe: Recipe) -> None:
    """Raise Unjudged for a recipe without a rule here."""
    for name, known in RULED.items():
        if recipe[name] not in known:
            raise Unjudged(f"recipe.{name} = {recipe[name]!r}")


def rows_of(rollout: Rollout, policy: str, temperature: float) -> list[Row]:
    """The rows of a rollout's calls of a policy: each call continues the latest row that its prompt holds."""
    rows: list[Row] = []
    for call in rollout.calls:
        if call.policy != policy or not call.response:
            continue
        if call.temperature != temperature:
            raise Unjudged(f"a call of {rollout.rollout_id} was sampled at temperature {call.temperature}")
        row = next((r for r in reversed(rows) if call.prompt[: len(r.ids)] == r.ids), None)
        if row is None:
            rows.append(row := Row(f"{rollout.rollout_id}/{len(rows)}", rollout.rollout_id, [], temperature))
        row.add(call)
    return rows


def grouped(rollouts: Sequence[Rollout]) -> list[list[Rollout]]:
    """The rollouts of each group, in the order of the groups' names."""
    return [[one for one in rollouts if one.group == name] for name in sorted({o.group for o in rollouts})]


def advantages(rollouts: Sequence[Rollout], recipe: Recipe) -> dict[str, float]:
    """Rollout → its reward over the mean of its group, in sample standard deviations (GRPO) or as it is."""
    found = {}
    for group in grouped(rollouts):
        rewards = {one.rollout_id: one.credit for one in group if one.credit is not None}
        mean, largest = statistics.fmean(rewards.values()), max(map(abs, rewards.values()))
        apart = max(rewards.values()) - min(rewards.values()) > 1e-12 * largest  # else it is rounding
        scale = statistics.stdev(rewards.values()) + 1e-6 if apart and recipe["scale"] == "std" else 1.0
        found |= {name: (value - mean) / scale if apart else 0.0 for name, value in rewards.items()}
    return found


def weigh(rows: Sequence[Row], recipe: Recipe) -> None:
    """What each token weighs: the loss is the sum over tokens of weight × loss."""
    tokens: dict[str, int] = defaultdict(int)
    for row in rows:
        tokens[row.rollout] += len(row.tokens)
    for row in rows:
        of = tokens[row.rollout] if recipe["loss_aggregation"] == "rollout" else recipe["loss_divisor"]
        row.weights = [1 / (len(tokens) * of)] * len(row.tokens)


def minibatches(rows: Sequence[Row], count: int, seed: int, version: int) -> list[list[Row]]:
    """The rows in an order that their content gives, shuffled by seed and version, dealt out in turn."""

    def content(row: Row) -> tuple[Any, ...]:
        dense = [[0.0] * len(row.ids), [0.0] * len(row.ids)]
        for at, weight in zip(row.tokens, row.weights, strict=True):
            dense[0][at], dense[1][at] = row.advantage, weight
        return len(row.ids), row.ids, *dense, row.row_id

    found = sorted(rows, key=content)
    count = min(count, len(found))
    random.Random(f"{seed} {version}").shuffle(found)
    return [found[k::count] for k in range(count)]


def correction_weights(
    row: Row, now: Tensor, fresh: Tensor, recipe: Recipe, acts: bool
) -> tuple[Tensor, Tensor]:
    """Of each token: what its ratio is taken against, and its importance weight. ``now``: its logprobs before
    the step. Tokens of older versions have a cap of their own.
    """
    old, rule = reals(row.old), recipe["correction"]
    apart = now - old
    if rule is not None and rule["level"] == "sequence":
        of = torch.tensor(row.calls)
        apart = torch.zeros(int(of.max()) + 1, dtype=torch.float64).index_add(0, of, apart)[of]
    ratio = apart.clamp(-20, 20).exp()
    anchor, weight = old, torch.ones_like(old)
    for which, cap in ((fresh, rule["cap"] if acts else None), (~fresh, recipe["importance_cap"])):
        if cap is None:
            continue
        if rule is not None and rule["kind"] == "mask":
            floor = 1 / cap if rule["floor"] is None else rule["floor"]
            capped = torch.where((ratio >= floor) & (ratio <= cap), ratio, 0.0)
        else:
            capped = ratio.clamp(max=cap)
        anchor, weight = torch.where(which, now, anchor), torch.where(which, capped, weight)
    return anchor, weight


def token_losses(logp: Tensor, anchor: Tensor, row: Row, recipe: Recipe) -> Tensor:
    if recipe["loss"] == "reinforce":
        return -row.advantage * logp
    ratio, a = (logp - anchor).clamp(-20, 20).exp(), row.advantage
    return torch.maximum(-a * ratio, -a * ratio.clamp(1 - recipe["clip_low"], 1 + recipe["clip_high"]))


def reals(values: Sequence[Any]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def trained_logprobs(network: Network, row: Row) -> Tensor:
    return network.logprobs(row.ids, row.temperature)[torch.tensor(row.tokens) - 1]


@dataclass
class Made:
    """What a step did."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    empty: int = 0
    slack: Tensors = field(default_factory=dict)
    """How far rounding of the gradients may move each weight."""


def train(network: Network, adam: AdamW, rows: Sequence[Row], recipe: Recipe, version: int) -> Made:
    """Make the optimizer steps of a step of training, in place."""
    made, names, rule = Made(), trained_names(network), recipe["correction"]
    with torch.no_grad():
        before = {row.row_id: trained_logprobs(network, row) for row in rows}
    fresh = {row.row_id: torch.tensor(row.versions) == version for row in rows}
    gaps = [(before[r.row_id] - reals(r.old))[fresh[r.row_id]].abs() for r in rows]
    acts = rule is not None and len(every := torch.cat(gaps)) and float(every.mean()) >= rule["threshold"]
    shares = minibatches(rows, recipe["minibatches"], adam.seed, version)
    for share in shares * recipe["epochs"]:
        live = [row for row in share if row.advantage]
        if not live:
            made.empty += 1
            continue
        network.weights |= {name: network.weights[name].detach().requires_grad_() for name in names}
        loss = 0.0
        for row in live:
            anchor, weight = correction_weights(
                row, before[row.row_id], fresh[row.row_id], recipe, bool(acts)
            )
            each = weight * token_losses(trained_logprobs(network, row), anchor, row, recipe)
            (total := len(shares) * (reals(row.weights) * each).sum()).backward()
            loss += float(total.detach())
        grads = {name: g for name in names if (g := network.weights[name].grad) is not None}
        norm = math.sqrt(sum(float(g.square().sum()) for g in grads.values()))
        scale = 1.0 if (clip := adam.options["max_grad_norm"]) is None else min(1.0, clip / (norm + 1e-6))
        grads = {name: g * scale for name, g in grads.items()}
        network.weights |= {name: network.weights[name].detach() for name in names}
        adam.step(network.weights, grads)
        for name, slack in adam.slack(grads, DELTA * len(made.losses or [0])).items():
            made.slack[name] = made.slack.get(name, torch.zeros_like(slack)) + slack
        made.losses.append(loss)
        made.norms.append(norm)
    return made


def pairs(rollouts: Sequence[Rollout], rewards: dict[str, float]) -> list[tuple[Rollout, Rollout]]:
    """The best of each group with its worst, the second best with the second worst; unequal rewards alone."""
    found = []
    for group in grouped(rollouts):
        best = sorted(group, key=lambda one: (-rewards[one.rollout_id], one.sample, one.rollout_id))
        both = zip(best, reversed(best), strict=True)
        found += [(a, b) for a, b in both if rewards[a.rollout_id] > rewards[b.rollout_id]]
    return found


def stored_order(count: int, size: int, seed: int, steps: int) -> list[list[int]]:
    """Which items each step learns from: each epoch in an order of its own, no item twice in a step."""
    size, items = min(size, count), list[int]()
    for epoch in range(math.ceil(size * steps / count)):
        order = list(range(count))
        random.Random(f"{seed}:{epoch}").shuffle(order)
        items += order
    found = [items[size * step : size * (step + 1)] for step in range(steps)]
    if any(len({*batch}) < size for batch in found):
        raise Unjudged("a step that holds the end of one epoch and the beginning of the next")
    return found
