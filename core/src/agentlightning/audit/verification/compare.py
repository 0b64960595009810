"""Compare a step's logged fingerprints with those that the store gives now, root causes first.

A rollout's inputs (status, attempt, rewards, calls) are causes; its rows, advantages and weights follow
from the inputs of the whole step. Invariant: if a rollout has equal inputs and other rows, the code is
blamed only if nothing else in the step has changed, because its neighbours affect its advantages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    """One thing that differs from what was trained."""

    step: int | None
    rollout_id: str | None
    kind: str
    """Root causes as in ``docs/audit.md``, and ``consequence`` of the others."""
    call_id: str | None = None
    """The call that differs, if known."""
    of: str | None = None
    """Its place, if that is no step: an evaluation, a checkpoint, a file, the record, the chain."""
    then: Any = None
    now: Any = None
    text: str = ""
    """One sentence for a person, with step and rollout."""


def make_difference(
    kind: str,
    what: str,
    *,
    of: str | None = None,
    step: int | None = None,
    rollout: str | None = None,
    call: str | None = None,
    then: Any = None,
    now: Any = None,
) -> Difference:
    """A difference whose text begins with its place. A negative ``step`` is an evaluation's: none."""
    step = None if step is None or step < 0 else step
    names = {"step": step, "rollout": rollout, "call": call}
    where = [*filter(None, [of]), *(f"{word} {name}" for word, name in names.items() if name is not None)]
    text = f"{', '.join(where)}: {what}"
    return Difference(
        step=step, rollout_id=rollout, kind=kind, call_id=call, of=of, then=then, now=now, text=text
    )


def input_differences(
    then: RolloutFingerprint, now: RolloutFingerprint, of: str | None = None
) -> list[Difference]:
    """The inputs of a rollout that changed since its fingerprint was logged. ``of``: its evaluation."""
    return _Comparison(then, now, of).all()


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A rollout's fingerprint as it was logged, beside the one that the store gives now."""

    then: RolloutFingerprint
    now: RolloutFingerprint
    of: str | None

    def all(self) -> list[Difference]:
        """What credit read, then facts of the execution that explain nothing else."""
        found = [*self._status(), *self._rewards()]
        calls = list(self._calls())
        read = list(self._inputs(CREDIT_INPUTS))
        failure = list(self._failure(explained=bool([*found, *calls, *read])))
        execution = self._inputs(EXECUTION_INPUTS if not [*found, *failure] else ())
        order = self._inputs(ORDER_INPUTS if not calls else ())
        return [*found, *calls, *read, *execution, *order, *failure]

    def _differ(self, kind: str, then: Any, now: Any, what: str, call: str | None = None) -> Difference:
        return make_difference(
            kind,
            what,
            of=self.of,
            step=self.then.step,
            rollout=self.then.rollout_id,
            call=call,
            then=then,
            now=now,
        )

    def _edited(self, kind: str, then: Any, now: Any) -> Difference:
        name = "kind of failure" if kind == "failure" else kind
        was, is_ = ("none" if value == "" else value for value in (then, now))
        what = f"{name} was {was} when it was trained, the store says {is_} (edited after training)"
        return self._differ(kind, then, now, what)

    def _status(self) -> Iterator[Difference]:
        then, now = self.then, self.now
        if then.status != now.status:
            yield self._edited("status", then.status, now.status)
        if then.attempt_id != now.attempt_id:
            what = f"attempt {then.attempt_id} was trained, the store's latest is {now.attempt_id}"
            yield self._differ("attempt", then.attempt_id, now.attempt_id, what)

    def _failure(self, explained: bool) -> Iterator[Difference]:
        """The kind of failure, unless it follows from calls or rewards that changed (``explained``)."""
        then, now = self.then.failure, self.now.failure
        derived = not DERIVED.isdisjoint((then, now)) or self.then.status != self.now.status
        if then is not None and then != now and not (explained and derived):
            yield self._edited("failure", then, now)

    def _inputs(self, names: Iterable[str]) -> Iterator[Difference]:
        for name in names if self.then.attempt_id == self.now.attempt_id else ():
            then, now = self.then.inputs.get(name), self.now.inputs.get(name)
            if then is not None and then != now:
                yield self._differ(name, then, now, f"{INPUTS[name]} (edited after training)")

    def _rewards(self) -> Iterator[Difference]:
        then, now = self.then, self.now
        if then.reward != now.reward:
            yield self._edited("reward", then.reward, now.reward)
        elif then.rewards_digest != now.rewards_digest:
            what = (
                "its final reward is the same, but another of its rewards (of a call, an agent, or under "
                "another name) was changed, added or removed after training"
            )
            yield self._differ("rewards", then.rewards_digest, now.rewards_digest, what)

    def _calls(self) -> Iterator[Difference]:
        """Changed calls, each by itself; fingerprints of older versions do not tell calls apart."""
        then, now = self.then, self.now
        if then.attempt_id != now.attempt_id:
            return
        if not then.parts:
            yield from self._calls_together()
        for name in (
            [*then.parts, *(name for name in now.parts if name not in then.parts)] if then.parts else ()
        ):
            was, is_ = then.parts.get(name), now.parts.get(name)
            if is_ is None:
                what = "it was recorded, and is not in the store any more"
                yield self._differ("calls", then.calls, now.calls, what, name)
            elif was is None:
                what = "it was not there when the rollout's fingerprint was logged: added"
                yield self._differ("calls", then.calls, now.calls, what, name)
            elif changed := [part for part in was if was[part] != is_.get(part)]:
                verb = "were" if changed[-1].endswith("s") else "was"
                what = f"its {_listed(changed)} {verb} changed after training"
                what += f"; {self._ledgers()}" if then.ledger != now.ledger and now.ledger else ""
                yield self._differ("call", then.calls_digest, now.calls_digest, what, name)
        together = (then.calls, then.calls_digest) == (now.calls, now.calls_digest)
        if then.parts and then.parts == now.parts and not together:
            what = "its fingerprint contradicts itself about its calls (the fingerprint was edited)"
            yield self._differ("seal", then.calls_digest, now.calls_digest, what)

    def _calls_together(self) -> Iterator[Difference]:
        then, now = self.then, self.now
        if then.calls != now.calls:
            what = f"{then.calls} calls were recorded when it was trained, the store has {now.calls}"
            yield self._differ("calls", then.calls, now.calls, what)
        elif then.calls_digest != now.calls_digest:
            part = "tags, sampling, status, usage, or an untrained call (the trained tokens are the same)"
            if then.ledger != now.ledger:
                part = self._ledgers()
            elif then.tokens_digest != now.tokens_digest:
                part = "token ids, logprobs or policy version (its rows hold other ones)"
            what = f"one of its {then.calls} recorded calls was changed after training: {part}"
            yield self._differ("call", then.calls_digest, now.calls_digest, what)

    def _ledgers(self) -> str:
        return f"what decides whether it is trained: {_ledger(self.then)} then, {_ledger(self.now)} now"


def changed_outputs(then: RolloutFingerprint, now: RolloutFingerprint) -> list[str]:
    """The rows, tokens, advantages, weights and ledger of a rollout that are not what was trained."""
    fields = {"rows": "rows", **{name: f"{name}_digest" for name in ROW_DIGESTS}, "ledger": "ledger"}
    return [name for name, field in fields.items() if getattr(then, field) != getattr(now, field)]


def consequences(
    step: int, changed: Mapping[str, list[str]], groups: Mapping[str, str | None], roots: Sequence[str]
) -> Difference:
    """What followed in the rest of the step. ``changed``: rollout → outputs that differ; ``groups``:
    rollout → group; ``roots``: rollouts whose own inputs changed.
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
    """Equal calls and rewards, other rows: the code between them has changed."""
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
