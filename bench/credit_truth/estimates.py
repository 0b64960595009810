"""What credit makes of rollouts of a shape, and how near it comes to the truth."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from itertools import chain
from random import Random
from typing import NamedTuple

from shapes import DIFFICULTIES, POLICY, Shape, State, Step, gradient, play, values

from agentlightning.credit.baselines import advantages
from agentlightning.credit.groups import CreditedCall, turns
from agentlightning.credit.rules import RULES
from agentlightning.types import Call, Recipe, Record, Reward, Rollout

TASKS, SAMPLES = 8, 8
"""Tasks of a step, rollouts of a task."""
LOCATIONS = {"group": ["group"], "agent": ["group", "agent"], "turn": ["group", "turn"]}
BASELINES = ("group", "rloo", "batch", "none")
SCALES = ("none", "std")
RULE_NAMES = ("broadcast", "last", "per_call", "discounted", "discounted 0.9", "per_agent")

Vector = dict[tuple[str, State, int], float]


class Case(NamedTuple):
    """One way to make advantages. ``process`` is GRPO's process supervision, for comparison."""

    rule: str
    baseline: str
    scale: str
    location: str


class Played(NamedTuple):
    """A rollout with what credit sees of it."""

    steps: list[Step]
    record: Record


def cases(shape: Shape) -> list[Case]:
    """Every case that means something for a shape: rewards of calls need a dense one, those of agents two."""
    out = []
    for rule in RULE_NAMES:
        if (rule == "per_call" and not shape.dense) or (rule == "per_agent" and len(shape.agents) == 1):
            continue
        named = ["group"] if rule in ("broadcast", "last") else list(LOCATIONS)
        if len(shape.agents) == 1 and "agent" in named:
            named.remove("agent")
        out += [Case(rule, b, s, where) for where in named for b in BASELINES for s in SCALES]
    return [*out, Case("process", "group", "std", "group")] if shape.dense else out


def steps_of(shape: Shape, batches: int, seed: int) -> list[list[Played]]:
    """The rollouts of ``batches`` steps, all sampled by the policy."""
    random, value = Random(f"{shape.name} {seed}"), values(shape)
    out = []
    for batch in range(batches):
        played = []
        for task in range(TASKS):
            difficulty = random.choice(DIFFICULTIES)
            for sample in range(SAMPLES):
                name = f"b{batch}t{task}s{sample}"
                steps = play(shape, difficulty, value, random)
                played.append(Played(steps, _record(shape, name, f"t{task}", steps)))
        out.append(played)
    return out


def judge(shape: Shape, batches: Sequence[Sequence[Played]]) -> dict[str, dict[str, float]]:
    """Case → rank correlation with the true advantages, and signal to noise of a step's gradient."""
    truth = gradient(shape, values(shape))
    true = [step.advantage for played in chain(*batches) for step in played.steps]
    ranks = _ranks(true)
    out = {}
    for case in cases(shape):
        found = [estimate(shape, case, batch) for batch in batches]
        flat = list(chain.from_iterable(chain.from_iterable(found)))
        steps = [_gradient(shape, batch, own) for batch, own in zip(batches, found, strict=True)]
        out[" · ".join(case)] = {
            "rank": round(_correlation(ranks, _ranks(flat)), 3),
            "snr": round(_signal_to_noise(truth, steps), 3),
            "largest": round(max(map(abs, flat)), 2),
        }
    return out


def estimate(shape: Shape, case: Case, batch: Sequence[Played]) -> list[list[float]]:
    """The advantage of every call of a step; 0 where a case does not train it."""
    if case.rule == "process":
        return _process(batch)
    rule, _, gamma = case.rule.partition(" ")
    recipe = Recipe(
        name="t", credit=rule, gamma=float(gamma or 1.0), baseline=case.baseline, scale=case.scale,
        group_by=LOCATIONS[case.location],
    )  # fmt: skip
    credited = []
    for played in batch:
        record = _as_emitted(shape, rule, played)
        credits, at = RULES[rule](record, recipe), turns(record.calls)
        for call in record.calls:
            credit = credits.get(call.call_id)
            if credit is not None:
                credited.append(CreditedCall(record.rollout, call, credit, at[call.call_id]))
    found = advantages(credited, recipe).calls
    return [
        [found[c.call_id].value if c.call_id in found else 0.0 for c in played.record.calls]
        for played in batch
    ]


def _record(shape: Shape, name: str, group: str, steps: Sequence[Step]) -> Record:
    calls = [
        Call(call_id=f"{name}c{i}", rollout_id=name, attempt_id=name, sequence=i,
             tags={"agent": shape.agent(step.state)})
        for i, step in enumerate(steps)
    ]  # fmt: skip
    return Record(rollout=Rollout(rollout_id=name, group_id=group), calls=calls)


def _as_emitted(shape: Shape, rule: str, played: Played) -> Record:
    """The record with the rewards that a user of the rule would emit: of calls where the rule reads them and
    the shape has them, else of agents, else of the rollout.
    """
    steps, record = played
    if rule in ("per_call", "discounted") and shape.dense:
        rewards = [
            Reward(value=step.rewards.get(shape.agent(step.state), 0.0), call_id=call.call_id)
            for step, call in zip(steps, record.calls, strict=True)
        ]
    elif rule == "per_agent":
        rewards = [
            Reward(value=math.fsum(step.rewards.get(agent, 0.0) for step in steps), agent=agent)
            for agent in shape.agents
        ]
    else:
        rewards = [Reward(value=math.fsum(math.fsum(step.rewards.values()) for step in steps))]
    return Record(rollout=record.rollout, calls=record.calls, rewards=rewards)


def _process(batch: Sequence[Played]) -> list[list[float]]:
    """GRPO with process supervision (arXiv 2402.03300, section 4.1.3): all rewards of a group's calls by
    their common mean and standard deviation, summed from each call on.
    """
    out: dict[str, list[float]] = {}
    for start in range(0, len(batch), SAMPLES):
        group = batch[start : start + SAMPLES]
        own = [[math.fsum(step.rewards.values()) for step in played.steps] for played in group]
        flat = list(chain.from_iterable(own))
        centre, spread = statistics.fmean(flat), statistics.stdev(flat)
        for played, rewards in zip(group, own, strict=True):
            scaled = [(reward - centre) / (spread + 1e-6) for reward in rewards]
            ahead = [math.fsum(scaled[t:]) for t in range(len(scaled))]
            out[played.record.rollout.rollout_id] = ahead
    return [out[played.record.rollout.rollout_id] for played in batch]


def _gradient(shape: Shape, batch: Sequence[Played], found: Sequence[Sequence[float]]) -> Vector:
    """The gradient estimate of one step, every call with the same weight."""
    out: Vector = {}
    for played, own in zip(batch, found, strict=True):
        for step, advantage in zip(played.steps, own, strict=True):
            for action, probability in enumerate(POLICY):
                key = (shape.agent(step.state), step.state, action)
                pull = advantage * ((action == step.action) - probability)
                out[key] = out.get(key, 0.0) + pull / len(batch)
    return out


def _signal_to_noise(truth: Vector, steps: Sequence[Vector]) -> float:
    """The mean part of a step's gradient along the true one, over the root mean square of all the rest:
    variance, and bias to other directions.
    """
    length = math.hypot(*truth.values())
    along = [math.fsum(step.get(key, 0.0) * value for key, value in truth.items()) / length for step in steps]
    signal = statistics.fmean(along)
    rest = [
        math.fsum(
            (step.get(key, 0.0) - signal * truth.get(key, 0.0) / length) ** 2 for key in {*truth, *step}
        )
        for step in steps
    ]
    noise = math.sqrt(statistics.fmean(rest))
    return signal / noise if noise else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks, ties with their mean rank; what differs by rounding is a tie."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    ranks, i = [0.0] * len(values), 0
    while i < len(order):
        j = i
        while j + 1 < len(order) and values[order[j + 1]] - values[order[i]] <= 1e-9:
            j += 1
        for k in range(i, j + 1):
            ranks[order[k]] = (i + j) / 2
        i = j + 1
    return ranks


def _correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Pearson's, which of ranks is Spearman's; 0 where one of them never varies."""
    if len(set(one)) < 2 or len(set(other)) < 2:
        return 0.0
    return statistics.correlation(one, other)


def mean_over(found: Iterable[dict[str, float]], key: str) -> float:
    """The mean of one figure."""
    return statistics.fmean(one[key] for one in found)
