"""What differs between a step as it was sealed and as the store gives it now, root causes first.

A rollout's inputs (status, attempt, rewards, calls) are causes; its rows, advantages and weights follow from
the inputs of the whole step. Invariant: a rollout whose inputs are equal and whose rows differ is put down to
the code only if nothing else in the step has changed, because its neighbours have a say in its advantages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from agentlightning.types import RolloutFingerprint
from agentlightning.types.base import Model

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
"""Those that credit reads."""
EXECUTION_INPUTS = ("rollout", "execution", "emitted")
ORDER_INPUTS = ("content",)
DERIVED = frozenset({"no-reward", "no-call", "over-length"})
"""Kinds of failure that credit reads off calls and rewards, which are compared themselves."""


class Difference(Model):
    """One thing that is not what was trained."""

    step: int | None
    rollout_id: str | None
    kind: str
    """Root causes as in ``docs/audit.md``, and ``consequence`` of the others."""
    call_id: str | None = None
    """The call that differs, where it is known."""
    of: str | None = None
    """What it is of, where that is no step: an evaluation, a checkpoint, a file, the record, the chain."""
    then: Any = None
    now: Any = None
    text: str = ""
    """One sentence for a person, with step and rollout."""


def make_difference(
    step: int | None,
    rollout_id: str | None,
    kind: str,
    then: Any,
    now: Any,
    what: str,
    *,
    of: str | None = None,
    call_id: str | None = None,
) -> Difference:
    """A difference whose text begins with where it is."""
    names = (
        of,
        f"step {step}" if step is not None and step >= 0 else None,
        f"rollout {rollout_id}" if rollout_id else None,
        f"call {call_id}" if call_id else None,
    )
    where = ", ".join(name for name in names if name)
    return Difference(
        step=step if step is None or step >= 0 else None, rollout_id=rollout_id, call_id=call_id, of=of,
        kind=kind, then=then, now=now, text=f"{where}: {what}",
    )  # fmt: skip


def input_differences(
    then: RolloutFingerprint, now: RolloutFingerprint, of: str | None = None
) -> Iterator[Difference]:
    """What of a rollout's inputs has changed since it was sealed. ``of``: the evaluation it belongs to."""
    found = [*_status_differences(then, now), *_rewards(then, now)]
    calls = list(_calls(then, now))
    read = list(_inputs(then, now, CREDIT_INPUTS))
    failure = list(_failure(then, now, bool([*found, *calls, *read])))
    execution = (
        EXECUTION_INPUTS if not [*found, *failure] else ()
    )  # from which facts of rollout and attempt follow
    inputs = [*read, *_inputs(then, now, execution), *(_inputs(then, now, ORDER_INPUTS) if not calls else ())]
    for kind, was, is_, what in found:
        yield make_difference(then.step, then.rollout_id, kind, was, is_, what, of=of)
    for call_id, kind, was, is_, what in calls:
        yield make_difference(then.step, then.rollout_id, kind, was, is_, what, of=of, call_id=call_id)
    for kind, was, is_, what in [*inputs, *failure]:
        yield make_difference(then.step, then.rollout_id, kind, was, is_, what, of=of)


def changed_outputs(then: RolloutFingerprint, now: RolloutFingerprint) -> list[str]:
    """Which of a rollout's rows, tokens, advantages, weights and ledger are not what was trained."""
    names = [
        name for name in ROW_DIGESTS if getattr(then, f"{name}_digest") != getattr(now, f"{name}_digest")
    ]
    if then.rows != now.rows:
        names.insert(0, "rows")
    return [*names, "ledger"] if then.ledger != now.ledger else names


def consequences(
    step: int,
    changed: Mapping[str, list[str]],
    groups: Mapping[str, str | None],
    roots: Sequence[str],
) -> Difference:
    """What followed in the rest of the step. ``changed``: rollout → outputs that differ; ``groups``:
    rollout → group; ``roots``: rollouts whose own inputs changed.
    """
    their = {groups.get(rollout) for rollout in roots}
    near = [r for r, what in changed.items() if r not in roots and "advantages" in what]
    if near and their and all(groups.get(r) in their for r in near):
        first = f"advantages of {len(near)} other rollout{_s(near)} of its group"
    else:
        first = f"advantages of {len(near)} other rollout{_s(near)}" if near else ""
    weights = [r for r, what in changed.items() if "weights" in what]
    second = f"weights of {len(weights)} rollout{_s(weights)}" if weights else ""
    own = sorted({name for r in roots for name in changed.get(r, ())})
    third = f"{', '.join(own)} of the rollout{_s(roots)} itself" if own and len(roots) == 1 else ""
    if own and len(roots) != 1:
        third = f"{', '.join(own)} of the {len(roots)} rollouts themselves"
    listed = ", ".join(part for part in (third, first, second) if part)
    return make_difference(step, None, "consequence", None, None, f"as a consequence: {listed}")


def blame_code(
    then: RolloutFingerprint, names: Sequence[str], versions: Sequence[tuple[str, str, str]]
) -> Difference:
    """Equal calls and rewards, other rows: what turns the ones into the others has changed."""
    moved = ", ".join(f"{name} {was} → {now}" for name, was, now in versions)
    suspects = "the code or a plugin that makes rows"
    if not then.inputs:  # sealed by a version that logged less
        suspects += ", the rollout's group or what the wire layer saw of its calls"
    what = f"{suspects} has changed"
    still = "the packages recorded at training time have the same versions now"
    return make_difference(
        then.step,
        then.rollout_id,
        "code",
        None,
        None,
        f"{', '.join(names)} differ although its calls and rewards are equal: {what} ({moved or still})",
    )


def _status_differences(
    then: RolloutFingerprint, now: RolloutFingerprint
) -> Iterator[tuple[str, Any, Any, str]]:
    if then.status != now.status:
        yield "status", then.status, now.status, _edited_text("status", then.status, now.status)
    if then.attempt_id != now.attempt_id:
        what = f"attempt {then.attempt_id} was trained, the store's latest is {now.attempt_id}"
        yield "attempt", then.attempt_id, now.attempt_id, what


def _failure(
    then: RolloutFingerprint, now: RolloutFingerprint, explained: bool
) -> Iterator[tuple[str, Any, Any, str]]:
    """The kind of failure, unless it follows from calls or rewards that have changed (``explained``)."""
    if then.failure is None or then.failure == now.failure:
        return
    if not explained or (DERIVED.isdisjoint((then.failure, now.failure)) and then.status == now.status):
        was, is_ = then.failure or "none", now.failure or "none"
        yield "failure", then.failure, now.failure, _edited_text("kind of failure", was, is_)


def _inputs(
    then: RolloutFingerprint, now: RolloutFingerprint, names: Iterable[str]
) -> Iterator[tuple[str, Any, Any, str]]:
    if then.attempt_id != now.attempt_id:  # whose own attempt, wire spans and past are others
        return
    for name in names:
        was, is_, what = then.inputs.get(name), now.inputs.get(name), INPUTS[name]
        if was is not None and was != is_:
            yield name, was, is_, f"{what} (edited after training)"


def _rewards(then: RolloutFingerprint, now: RolloutFingerprint) -> Iterator[tuple[str, Any, Any, str]]:
    if then.reward != now.reward:
        yield "reward", then.reward, now.reward, _edited_text("reward", then.reward, now.reward)
    elif then.rewards_digest != now.rewards_digest:
        what = (
            "its final reward is the same, but another of its rewards (of a call, an agent, or under another "
            "name) was changed, added or removed after training"
        )
        yield "rewards", then.rewards_digest, now.rewards_digest, what


def _calls(
    then: RolloutFingerprint, now: RolloutFingerprint
) -> Iterator[tuple[str | None, str, Any, Any, str]]:
    """(call, kind, then, now, what). Seals of older versions do not tell calls apart."""
    if then.attempt_id != now.attempt_id:
        return
    if not then.parts:
        yield from _calls_together(then, now)
        return
    for call_id in [*then.parts, *(name for name in now.parts if name not in then.parts)]:
        was, is_ = then.parts.get(call_id), now.parts.get(call_id)
        if is_ is None:
            yield call_id, "calls", then.calls, now.calls, "it was recorded, and is not in the store any more"
        elif was is None:
            yield (
                call_id,
                "calls",
                then.calls,
                now.calls,
                "it was not there when the rollout was sealed: added",
            )
        elif changed := [part for part in was if was[part] != is_.get(part)]:
            what = (
                f"its {_listed(changed)} {'were' if changed[-1][-1] == 's' else 'was'} changed after training"
            )
            decides = f"; {_decides(then, now)}" if then.ledger != now.ledger and now.ledger else ""
            yield call_id, "call", then.calls_digest, now.calls_digest, what + decides
    if then.parts == now.parts and (then.calls, then.calls_digest) != (now.calls, now.calls_digest):
        what = "its seal contradicts itself: what it says of the calls together is not what it says of each"
        yield None, "seal", then.calls_digest, now.calls_digest, f"{what} (the seal was edited)"


def _calls_together(
    then: RolloutFingerprint, now: RolloutFingerprint
) -> Iterator[tuple[str | None, str, Any, Any, str]]:
    if then.calls != now.calls:
        what = f"{then.calls} calls were recorded when it was trained, the store has {now.calls}"
        yield None, "calls", then.calls, now.calls, what
    elif then.calls_digest != now.calls_digest:
        if then.ledger != now.ledger:
            field = _decides(then, now)
        elif then.tokens_digest != now.tokens_digest:
            field = "token ids, logprobs or policy version (its rows hold other ones)"
        else:
            field = "tags, sampling, status, usage, or an untrained call (the trained tokens are the same)"
        what = f"one of its {then.calls} recorded calls was changed after training: {field}"
        yield None, "call", then.calls_digest, now.calls_digest, what


def _decides(then: RolloutFingerprint, now: RolloutFingerprint) -> str:
    return f"what decides whether it is trained: {_ledger(then)} then, {_ledger(now)} now"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _ledger(seal: RolloutFingerprint) -> str:
    out = ", ".join(f"{n} {reason}" for reason, n in seal.ledger.items() if reason not in ("made", "trained"))
    return f"{seal.ledger.get('trained', 0)} trained" + (f" ({out})" if out else "")


def _edited_text(name: str, then: Any, now: Any) -> str:
    return f"{name} was {then} when it was trained, the store says {now} (edited after training)"


def _s(items: Sequence[Any]) -> str:
    return "" if len(items) == 1 else "s"
