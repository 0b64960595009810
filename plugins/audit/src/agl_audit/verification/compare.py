"""Compare a step's logged fingerprints with the recomputed ones, root causes first.

A rollout's inputs (status, attempt, rewards, calls) are causes; its rows, advantages and weights follow
from the inputs of the whole step. Invariant: if a rollout has equal inputs and other rows, the code is
named as the cause only if nothing else in the step has changed, because other rollouts of its group affect
its advantages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from agentlightning.types import RolloutFingerprint
from agl_audit.verification.differences import Difference, make_difference

ROW_DIGESTS = ("tokens", "advantages", "weights")
INPUTS: Mapping[str, str] = MappingProxyType(
    {
        "group": "its group, its task or its place in the group was changed",
        "supplied": "which calls its agent's own record names was changed",
        "wire": "what the agent's process saw of its calls was changed, added or removed",
        "attempts": "one of its earlier attempts, or of their calls, was changed, added or removed",
        "content": "the order of its calls was changed",
        "emitted": "the time or another fact of one of its rewards was changed",
        "rollout": "its task, mode, seed, resources, configuration, reason or times were changed",
        "execution": "its attempt's worker, reason, times or what else is known of it was changed",
    }
)
"""Further inputs of a rollout (``RolloutFingerprint.inputs``) → what a difference means."""
CREDIT_INPUTS = ("group", "supplied", "wire", "attempts")
"""The inputs that credit reads."""
EXECUTION_INPUTS = ("rollout", "execution", "emitted")
ORDER_INPUTS = ("content",)
DERIVED = frozenset({"no-reward", "no-call", "over-length"})
"""Kinds of failure that credit derives from calls and rewards, which are compared themselves."""


def input_differences(
    then: RolloutFingerprint, now: RolloutFingerprint, of: str | None = None
) -> list[Difference]:
    """Return the inputs of a rollout that changed since its fingerprint was logged. ``of``: its evaluation.

    The inputs that credit read come first; facts of the execution follow only if nothing else explains them.
    """
    differ = partial(make_difference, of=of, step=then.step, rollout=then.rollout_id)
    same_attempt = then.attempt_id == now.attempt_id

    def edited(kind: str, name: str) -> Iterator[Difference]:
        was, is_ = getattr(then, kind), getattr(now, kind)
        if was != is_:
            what = f"{name} was {_or_none(was)} when it was trained, the store says {_or_none(is_)}"
            yield differ(kind, f"{what} (edited after training)", then=was, now=is_)

    def inputs(names: Iterable[str]) -> Iterator[Difference]:
        for name in names if same_attempt else ():
            was, is_ = then.inputs.get(name), now.inputs.get(name)
            if was is not None and was != is_:
                yield differ(name, f"{INPUTS[name]} (edited after training)", then=was, now=is_)

    found = list(edited("status", "status"))
    if not same_attempt:
        what = f"attempt {then.attempt_id} was trained, the store's latest is {now.attempt_id}"
        found.append(differ("attempt", what, then=then.attempt_id, now=now.attempt_id))
    found += edited("reward", "reward")
    if then.reward == now.reward and then.rewards_digest != now.rewards_digest:
        what = (
            "its final reward is the same, but another of its rewards (of a call, an agent, or under another "
            "name) was changed, added or removed after training"
        )
        found.append(differ("rewards", what, then=then.rewards_digest, now=now.rewards_digest))
    calls = list(_call_differences(then, now, differ)) if same_attempt else []
    read = list(inputs(CREDIT_INPUTS))
    derived = not DERIVED.isdisjoint((then.failure, now.failure)) or then.status != now.status
    explained = derived and bool([*found, *calls, *read])
    failure = [] if then.failure is None or explained else list(edited("failure", "kind of failure"))
    execution = inputs(EXECUTION_INPUTS if not [*found, *failure] else ())
    order = inputs(ORDER_INPUTS if not calls else ())
    return [*found, *calls, *read, *execution, *order, *failure]


def _or_none(value: Any) -> Any:
    return "none" if value == "" else value


def _call_differences(
    then: RolloutFingerprint, now: RolloutFingerprint, differ: Callable[..., Difference]
) -> Iterator[Difference]:
    """Yield the changed calls, each by itself, as far as the fingerprint tells calls apart."""
    ledgers = f"what decides whether it is trained: {_ledger(then)} then, {_ledger(now)} now"
    digests = {"then": then.calls_digest, "now": now.calls_digest}
    if not then.parts:
        yield from _all_calls_differences(then, now, ledgers, differ)
        return
    for name in dict.fromkeys([*then.parts, *now.parts]):
        was, is_ = then.parts.get(name), now.parts.get(name)
        if was is None or is_ is None:
            what = "it was recorded, and is not in the store any more"
            if was is None:
                what = "it was not there when the rollout's fingerprint was logged: added"
            yield differ("calls", what, call=name, then=then.calls, now=now.calls)
        elif changed := [part for part in was if was[part] != is_.get(part)]:
            verb = "were" if changed[-1].endswith("s") else "was"
            what = f"its {_listed(changed)} {verb} changed after training"
            what += f"; {ledgers}" if then.ledger != now.ledger and now.ledger else ""
            yield differ("call", what, call=name, **digests)
    if then.parts == now.parts and (then.calls, then.calls_digest) != (now.calls, now.calls_digest):
        what = "its fingerprint contradicts itself about its calls (the fingerprint was edited)"
        yield differ("fingerprint", what, **digests)


def _all_calls_differences(
    then: RolloutFingerprint, now: RolloutFingerprint, ledgers: str, differ: Callable[..., Difference]
) -> Iterator[Difference]:
    if then.calls != now.calls:
        what = f"{then.calls} calls were recorded when it was trained, the store has {now.calls}"
        yield differ("calls", what, then=then.calls, now=now.calls)
    elif then.calls_digest != now.calls_digest:
        part = "tags, sampling, status, usage, or an untrained call (the trained tokens are the same)"
        if then.ledger != now.ledger:
            part = ledgers
        elif then.tokens_digest != now.tokens_digest:
            part = "token ids, logprobs or policy version (its rows hold other ones)"
        what = f"one of its {then.calls} recorded calls was changed after training: {part}"
        yield differ("call", what, then=then.calls_digest, now=now.calls_digest)


def changed_outputs(then: RolloutFingerprint, now: RolloutFingerprint) -> list[str]:
    """Name which of rows, tokens, advantages, weights and ledger of a rollout differ from training."""
    fields = {"rows": "rows", **{name: f"{name}_digest" for name in ROW_DIGESTS}, "ledger": "ledger"}
    return [name for name, field in fields.items() if getattr(then, field) != getattr(now, field)]


def consequences(
    step: int, changed: Mapping[str, list[str]], groups: Mapping[str, str | None], roots: Sequence[str]
) -> Difference:
    """Describe the consequences in the rest of the step. ``changed``: rollout → outputs that differ;
    ``groups``: rollout → group; ``roots``: rollouts whose own inputs changed.
    """
    own = sorted({name for rollout in roots for name in changed.get(rollout, ())})
    itself = "the rollout itself" if len(roots) == 1 else f"the {len(roots)} rollouts themselves"
    near = [r for r, what in changed.items() if r not in roots and "advantages" in what]
    same_groups = bool(roots) and {groups.get(r) for r in near} <= {groups.get(r) for r in roots}
    weights = [r for r, what in changed.items() if "weights" in what]
    parts = [f"{', '.join(own)} of {itself}"] if own else []
    if near:
        parts.append(f"advantages of {plural(near, 'other rollout')}{' of its group' if same_groups else ''}")
    if weights:
        parts.append(f"weights of {plural(weights, 'rollout')}")
    return make_difference("consequence", f"as a consequence: {', '.join(parts)}", step=step)


def code_difference(
    then: RolloutFingerprint, names: Sequence[str], versions: Sequence[tuple[str, str, str]]
) -> Difference:
    """Describe a rollout with equal calls and rewards but other rows: the code between them has changed."""
    suspects = "the code or a plugin that makes rows"
    if not then.inputs:  # logged by a version that logged less
        suspects += ", the rollout's group or what the wire layer saw of its calls"
    moved = ", ".join(f"{name} {was} → {now}" for name, was, now in versions)
    why = moved or "the packages recorded at training time have the same versions now"
    what = (
        f"{', '.join(names)} differ although its calls and rewards are equal: {suspects} has changed ({why})"
    )
    return make_difference("code", what, step=then.step, rollout=then.rollout_id)


def plural(items: Sequence[Any], noun: str) -> str:
    """``3 rollouts``."""
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _ledger(fingerprint: RolloutFingerprint) -> str:
    ledger = fingerprint.ledger
    out = ", ".join(f"{n} {reason}" for reason, n in ledger.items() if reason not in ("made", "trained"))
    return f"{ledger.get('trained', 0)} trained" + (f" ({out})" if out else "")
