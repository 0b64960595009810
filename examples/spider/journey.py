"""One question's way through a run, as a page that needs nothing else and as a text.

    python -m spider.journey RUN [--rollout ID] [--out FOLDER]

``RUN`` is a run of this example, as for `agl explain`: an id, the beginning of one, or its folder. The page
shows each call of one rollout, what was asked, the tokens of the answer with the probability they were
sampled with and the advantage they were trained with, what the query returned, and why a call was not
trained. Everything is read from the run's store and credited again as the run did it. Without ``--rollout``
it is a rollout of the first steps that failed, was corrected and earned its reward, when the fewest of its
group did. Writes ``journey.html`` and ``journey.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from agentlightning.credit.rollout_reward import rollout_reward
from agentlightning.specs import Inspector
from agentlightning.types import Call, Record, Rollout, UsageError
from agl_audit.explanation.advantage import REASONS
from agl_audit.explanation.recomputed_step import RecomputedStep, recompute_step
from agl_audit.run import OpenRun, open_run
from spider.budget import BRIEF
from spider.databases import databases_of
from spider.prompts import query_in
from spider.sql.execution import SqlError, run as run_sql
from spider.sql.matching import match
from spider.sql.showing import ERROR, show, show_error

HERE = Path(__file__).resolve().parent
WRITING = ("write", "rewrite")
"""Nodes whose answers are queries."""
FIRST = 10
"""Steps that are looked through for a rollout to show."""


class NoJourney(UsageError, LookupError):
    """The run has no rollout to show."""


@dataclass(frozen=True)
class TokenOnPage:
    """One token of an answer: its text, the probability it was drawn with, and what it was trained with."""

    text: str
    probability: float
    advantage: float | None
    """``None``: not trained."""

    @property
    def tint(self) -> str:
        """Background: green for what was made likelier, red for what was made less likely."""
        if not self.advantage:
            return "transparent"
        colour = "22,150,70" if self.advantage > 0 else "200,40,40"
        return f"rgba({colour},{min(0.6, 0.15 + abs(self.advantage) / 4):.2f})"


@dataclass(frozen=True)
class CallOnPage:
    """One model call, with what came of it."""

    node: str
    asked: str
    tokens: Sequence[TokenOnPage]
    out: str
    """Why it was not trained; empty if it was."""
    outcome: str
    """What the query returned; empty for an answer that is no query."""

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)

    @property
    def failed(self) -> bool:
        return self.outcome.startswith(ERROR)

    @property
    def advantage(self) -> float | None:
        """Of its tokens, all alike unless the recipe says otherwise."""
        return next((token.advantage for token in self.tokens if token.advantage is not None), None)


async def story(run: OpenRun, rollout_id: str | None = None) -> dict[str, Any]:
    """All that the page shows."""
    rollout = await _chosen(run, rollout_id)
    stands = await recompute_step(run, rollout)
    if stands.batch is None:
        raise NoJourney(f"rollout {rollout.rollout_id} was never credited: {stands.note}")
    folders = run.policies()
    if not folders:
        raise NoJourney(f"run {run.run_id} has no policy folder whose tokenizer could read its tokens")
    inspector = run.inspector(folders[0][0])
    task = rollout.input
    calls = [_call(stands, call, task, inspector) for call in _in_order(stands.record)]
    last = query_in(next(call for call in reversed(calls) if call.node in WRITING).text)
    verdict = match(task["query"], last, databases_of(task))
    return {
        "task": task,
        "calls": calls,
        "reward": rollout_reward(stands.record).value,
        "verdict": verdict.reason or "it answers as the gold query does",
        "gold": _outcome(task, task["query"]),
        "group": [rollout_reward(r).value for r in stands.records if r.rollout.group_id == rollout.group_id],
        "step": stands.fingerprint.step + 1 if stands.fingerprint else None,
        "rollout": rollout.rollout_id,
        "recipe": run.recipe,
        "as_trained": stands.as_trained,
    }


async def _chosen(run: OpenRun, rollout_id: str | None) -> Rollout:
    """The rollout that was asked for, or the first one worth showing."""
    if rollout_id is not None:
        known = await run.known([rollout_id])
        if rollout_id not in known:
            raise NoJourney(f"run {run.run_id} has no rollout {rollout_id}")
        return known[rollout_id]
    found: list[tuple[float, int, Rollout]] = []
    steps = sorted({one.step for one in await run.fingerprints()})
    for step in steps[:FIRST]:
        records = await run.store.records([one.rollout_id for one in await run.fingerprints(step)])
        for record in records:
            if _corrected(record):
                group = [
                    rollout_reward(r).value for r in records if r.rollout.group_id == record.rollout.group_id
                ]
                found.append((sum(value or 0.0 for value in group), step, record.rollout))
    if not found:
        raise NoJourney(f"in {len(steps)} steps of run {run.run_id} no query was corrected; use --rollout")
    return min(found, key=lambda one: one[:2])[2]


def _corrected(record: Record) -> bool:
    nodes = [call.tags.get("node") for call in _in_order(record)]
    seen = nodes in (["write", "check", "rewrite", "check"], ["link", "write", "rewrite"])
    return seen and rollout_reward(record).value == 1.0


def _in_order(record: Record) -> list[Call]:
    return sorted(record.calls, key=lambda call: (call.sequence, call.choice))


def _call(stands: RecomputedStep, call: Call, task: dict[str, Any], inspector: Inspector) -> CallOnPage:
    node = call.tags.get("node", "?")
    ids, logprobs = call.response_ids or [], call.logprobs or []
    advantages = _advantages(stands, call.call_id, len(ids))
    tokens = [
        TokenOnPage(text, math.exp(logprob), advantage)
        for text, logprob, advantage in zip(inspector.decode(ids), logprobs, advantages, strict=True)
    ]
    if tokens:  # the end token is trained like the others, and has no text of its own
        tokens[-1] = TokenOnPage("", tokens[-1].probability, tokens[-1].advantage)
    messages = (call.request or {}).get("messages") or [{}]
    out = stands.out.get(call.call_id, "")
    written = query_in("".join(token.text for token in tokens))
    outcome = _outcome(task, written) if node in WRITING else ""
    return CallOnPage(node, str(messages[-1].get("content", "")), tokens, REASONS.get(out, out), outcome)


def _advantages(stands: RecomputedStep, call_id: str, size: int) -> list[float | None]:
    """Per token of a call, from the row it was trained in."""
    assert stands.batch is not None
    for row in stands.batch.rows:
        for segment in row.segments:
            if segment.call_id == call_id and segment.trained:
                return [row.advantages[t] if row.mask[t] else None for t in range(segment.start, segment.end)]
    return [None] * size


def _outcome(task: dict[str, Any], query: str) -> str:
    try:
        result = run_sql(databases_of(task)[0], query, BRIEF.sql)
    except SqlError as error:
        return show_error(error, BRIEF.result_chars)
    return show(result, 400, 5)


def html(told: dict[str, Any]) -> str:
    """The page."""
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("journey.html.jinja").render(**told)


def markdown(told: dict[str, Any]) -> str:
    """The same as text."""
    task = told["task"]
    lines = [
        f"# {task['question']}",
        "",
        f"Database `{task['db_id']}`, gold `{task['query']}`. Step {told['step']}, "
        f"rollout `{told['rollout']}`; "
        f"{told['recipe'].name}, credit `{told['recipe'].credit}`.",
        "",
    ]
    for number, call in enumerate(told["calls"], 1):
        trained = (
            f"advantage {call.advantage:+.3f} on {len(call.tokens)} tokens"
            if not call.out
            else f"not trained: {call.out}"
        )
        lines += [f"## {number}. {call.node}", "", "~~~~", call.text, "~~~~", "", trained, ""]
        if call.outcome:
            lines += ["Returned:", "", "~~~~", call.outcome, "~~~~", ""]
    group = ", ".join("–" if value is None else f"{value:g}" for value in told["group"])
    lines += [f"**Reward {told['reward']:g}**: {told['verdict']}. Rewards of its group: {group}.", ""]
    lines += ["The gold query returns:", "", "~~~~", told["gold"], "~~~~", ""]
    return "\n".join(lines)


async def _write(what: str, rollout: str | None, out: Path) -> None:
    async with open_run(what) as run:
        told = await story(run, rollout)
    out.mkdir(parents=True, exist_ok=True)
    (out / "journey.html").write_text(html(told), encoding="utf-8")
    (out / "journey.md").write_text(markdown(told), encoding="utf-8")
    print(f"{told['rollout']} of step {told['step']}: {out / 'journey.html'}, {out / 'journey.md'}")


def main() -> None:
    """Read the run, write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m spider.journey", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("run")
    parser.add_argument("--rollout")
    parser.add_argument("--out", type=Path, default=HERE)
    given = parser.parse_args()
    try:
        asyncio.run(_write(given.run, given.rollout, given.out))
    except UsageError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
