"""PPO through verl, made again by hand: GAE in plain Python, both losses in plain torch.

There is no second driver with a critic to compare with. So what verl's workers got and made is written down
by the tap, and every number between the rows and the two gradients is computed once more from the papers'
formulas (arXiv 1707.06347, arXiv 1506.02438), a row at a time and without padding. Of half of the rollouts
the calls are joined into one row, with a gap between them that the policy did not write.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from agentlightning.types import Batch, Recipe, Row, Segment
from agl_local.policy.folder import load_policy

GAP = 5
"""Tokens between two joined calls."""
VALUE_CLIP = 0.5
"""verl's ``critic.cliprange_value``."""
LIMIT = 1e-5
Tensors = dict[str, Tensor]
Apart = Callable[[Tensors, Tensors], dict[str, float]]


class Seen(NamedTuple):
    """A row as verl's workers had it."""

    ids: list[int]
    prompt: int
    """Tokens before the first that is trained."""
    mask: list[int]
    rewards: list[float]
    values: list[float]
    old: list[float]
    advantages: list[float]
    returns: list[float]


def joined(batch: Batch) -> Batch:
    """``batch`` with the rows of every other rollout as one, which is paid in part before its last call."""
    by_rollout: dict[str, list[Row]] = {}
    for row in batch.rows:
        by_rollout.setdefault(row.rollout_id, []).append(row)
    rows: list[Row] = []
    for number, (_, own) in enumerate(sorted(by_rollout.items())):
        rows += [_join(own)] if number % 2 and len(own) > 1 else own
    return Batch(rows=rows, ledgers=batch.ledgers, metrics=batch.metrics)


def _join(rows: Sequence[Row]) -> Row:
    """The first row, and behind it each further one's response after the end of its prompt; from call to call
    half of the return is left.
    """
    whole = copy.deepcopy(rows[0])
    for number, row in enumerate(rows[1:], 1):
        begin = next(t for t, trained in enumerate(row.mask) if trained)
        cut = max(begin - GAP, 0)
        shift = len(whole.token_ids) - cut
        for name in ("token_ids", "mask", "advantages", "logprobs", "weights", "versions"):
            getattr(whole, name).extend(getattr(row, name)[cut:])
        for segment in row.segments:
            start, end, left = segment.start + shift, segment.end + shift, segment.advantage / 2**number
            whole.segments.append(Segment(call_id=segment.call_id, start=start, end=end, advantage=left))
    return whole


def rows_of(written: Tensors) -> list[Seen]:
    """The rows of one optimizer step, padding left out."""
    found, at, before = [], 0, 0
    for prompt, response in written["lengths"].tolist():
        column = {
            name: written[name][at : at + response].tolist()
            for name in ("mask", "rewards", "values", "old", "advantages", "returns", "responses")
        }
        ids = written["prompts"][before : before + prompt].tolist() + column.pop("responses")
        at, before = at + response, before + prompt
        if any(column["mask"]):
            found.append(Seen(ids, prompt, **column))
    return found


def wanted_rewards(row: Row) -> list[float]:
    """What each token earns, from the returns of the row's calls."""
    found = [0.0] * len(row.token_ids)
    ends = sorted((s.end, s.advantage) for s in row.segments if s.trained)
    for (end, here), (_, later) in zip(ends, [*ends[1:], (0, 0.0)], strict=True):
        found[end - 1] = here - later
    return found


def gae(row: Seen, gamma: float, lam: float) -> list[float]:
    """Advantages of the trained tokens, last first in the making (arXiv 1506.02438, equation 16)."""
    tokens = [t for t, trained in enumerate(row.mask) if trained]
    found, following, advantage = [], 0.0, 0.0
    for t in reversed(tokens):
        delta = row.rewards[t] + gamma * following - row.values[t]
        advantage = delta + gamma * lam * advantage
        following = row.values[t]
        found.append(advantage)
    return found[::-1]


def trained(row: Seen, column: str) -> list[float]:
    """A column's entries of the trained tokens."""
    return [x for x, on in zip(getattr(row, column), row.mask, strict=True) if on]


def states(model: Any, row: Seen) -> tuple[Tensor, Tensor]:
    """Hidden states that predict the trained tokens, and these tokens."""
    ids = torch.tensor(row.ids)
    at = torch.tensor([row.prompt + t for t, on in enumerate(row.mask) if on])
    return model.hidden(ids[None])[0, at - 1], ids[at]


def policy_loss(model: Any, rows: Sequence[Seen], recipe: Recipe) -> Tensor:
    """PPO's clipped surrogate (arXiv 1707.06347, equation 7), the mean over all tokens."""
    each = []
    for row in rows:
        hidden, targets = states(model, row)
        logp = model.logits(hidden).log_softmax(-1).gather(1, targets[:, None])[:, 0]
        ratio = (logp - torch.tensor(trained(row, "old"))).exp()
        advantage = torch.tensor(trained(row, "advantages"))
        bounded = ratio.clamp(1 - recipe.clip_low, 1 + recipe.clip_high)
        each.append(-torch.minimum(ratio * advantage, bounded * advantage))
    return torch.cat(each).mean()


def value_loss(model: Any, head: Tensors, rows: Sequence[Seen]) -> tuple[Tensor, float]:
    """The squared error, pessimistic around the old values; and the largest distance to those."""
    each, distance = [], 0.0
    for row in rows:
        hidden, _ = states(model, row)
        now = (hidden @ head["score.weight"].T + head["score.bias"])[:, 0]
        old, returns = (torch.tensor(trained(row, name)) for name in ("values", "returns"))
        near = old + (now - old).clamp(-VALUE_CLIP, VALUE_CLIP)
        each.append(torch.maximum((now - returns) ** 2, (near - returns) ** 2))
        distance = max(distance, float((now.detach() - old).abs().max()))
    return 0.5 * torch.cat(each).mean(), distance


def gradients(parameters: Tensors, losses: Callable[[], Tensor], steps: int, lr: float) -> Iterator[Tensors]:
    """Of each optimizer step, AdamW between them."""
    optimizer = torch.optim.AdamW(parameters.values(), lr=lr, weight_decay=0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        losses().backward()  # type: ignore[no-untyped-call]
        yield {name: p.grad.clone() for name, p in parameters.items() if p.grad is not None}
        optimizer.step()


def compare(
    recipe: Recipe,
    batch: Batch,
    policy: list[Tensors],
    critic: list[Tensors],
    lr: float,
    start: Path,
    apart: Apart,
) -> dict[str, Any]:
    """Everything that can be compared. ``policy``, ``critic``: what the tap wrote, a step at a time;
    ``start``: the folder of the weights before.
    """
    rows = rows_of(policy[0])
    told = {"rows": len(rows), "rows_of_several_calls": sum(_calls(row) > 1 for row in rows),
            "tokens": sum(sum(row.mask) for row in rows), **_numbers(recipe, batch, rows)}  # fmt: skip
    model = load_policy(start).model
    ours = gradients(
        dict(model.named_parameters()), lambda: policy_loss(model, rows, recipe), len(policy), lr
    )
    steps = [apart(g, _grads(w)) for g, w in zip(ours, policy, strict=True)]
    told.update(_worst("gradient", steps))
    value = load_policy(start).model
    head = {
        name[7:]: t.clone().requires_grad_() for name, t in critic[0].items() if name.startswith("before/")
    }
    learnt = {n: p for n, p in value.named_parameters() if n.startswith("model.")} | head
    told["value_difference"] = value_loss(value, head, rows)[1]
    own = gradients(learnt, lambda: value_loss(value, head, rows)[0], len(critic), lr)
    told.update(_worst("value_gradient", [apart(g, _grads(w)) for g, w in zip(own, critic, strict=True)]))
    return told


def _numbers(recipe: Recipe, batch: Batch, rows: Sequence[Seen]) -> dict[str, float]:
    """How far rewards, advantages and returns are from those made by hand."""
    paid = sorted((row.token_ids, wanted_rewards(row)) for row in batch.rows if row.trained_tokens)
    seen = sorted((row.ids, [0.0] * row.prompt + row.rewards) for row in rows)
    same = [ids for ids, _ in paid] == [ids for ids, _ in seen]
    raw = [gae(row, recipe.gamma, recipe.lam) for row in rows]
    every = [a for one in raw for a in one]
    mean, scale = statistics.fmean(every), math.sqrt(statistics.variance(every) + 1e-8)
    return {
        "reward_difference": _far([r for _, r in paid], [r for _, r in seen]) if same else math.inf,
        "advantage_difference": _far(
            [[(a - mean) / scale for a in one] for one in raw], [trained(row, "advantages") for row in rows]
        ),
        "return_difference": _far(
            [[a + v for a, v in zip(one, trained(row, "values"), strict=True)]
             for one, row in zip(raw, rows, strict=True)],
            [trained(row, "returns") for row in rows],
        ),
    }  # fmt: skip


def _far(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> float:
    return max(abs(a - b) for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=True))


def _calls(row: Seen) -> int:
    """Stretches of the row that the policy wrote."""
    return sum(on and not before for before, on in zip([0, *row.mask], row.mask, strict=False))


def _grads(written: Tensors) -> Tensors:
    return {name[5:]: tensor for name, tensor in written.items() if name.startswith("grad/")}


def _worst(name: str, steps: Sequence[dict[str, float]]) -> dict[str, Any]:
    return {
        f"{name}_cosine": min(step["cosine"] for step in steps),
        f"{name}_relative_error": max(step["relative_error"] for step in steps),
        f"{name}_relative_errors": [step["relative_error"] for step in steps],
        f"{name}_norms": [step["norm"] for step in steps],
    }


def equal(told: dict[str, Any]) -> bool:
    """Whether verl did what the papers say."""
    near = ("reward_difference", "advantage_difference", "return_difference", "value_difference")
    return all(told[name] <= LIMIT for name in near) and all(
        told[f"{name}_cosine"] > 0.9999 and told[f"{name}_relative_error"] < 1e-3
        for name in ("gradient", "value_gradient")
    )
