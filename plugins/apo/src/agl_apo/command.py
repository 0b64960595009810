"""``agl prompts``: the candidates of a prompt search, with their parents, rewards, critiques and texts."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from agentlightning.redaction import say
from agentlightning.store.base import Store
from agentlightning.store.pages import pages
from agentlightning.terminal import Console
from agentlightning.types import Record, UsageError
from agentlightning.types.failure import FailureTable, read_failure_table
from agl_apo.assistants import text_of
from agl_apo.candidates import Candidate, stored_candidates
from agl_apo.scoring import scored_of
from agl_audit.locations import find_run, opened, run_at


class Lineage(msgspec.Struct, kw_only=True):
    """A candidate of a run, as the store has it."""

    candidate: str
    step: str
    parents: list[str]
    edited: list[str]
    rewards: dict[str, float | None]
    """Dataset → mean reward of the finished rollouts; one without a reward counts as 0."""
    rollouts: dict[str, int]
    """Dataset → finished rollouts."""
    critique: str | None
    """The critic's text."""
    prompts: dict[str, str]


def register(app: typer.Typer) -> None:
    @app.command("prompts")
    def prompts(
        place: Annotated[str, typer.Argument(metavar="RUN", help="A run's id or folder.")],
        candidate: Annotated[
            str | None, typer.Option(help="Show this candidate and its ancestors in full.")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="A line of JSON for each candidate.")] = False,
    ) -> None:
        """List the prompts that a search tried: parents, rewards, critiques."""
        lines = asyncio.run(_read(place))
        if candidate is not None:
            lines = ancestry(lines, candidate)
        if as_json:
            for line in lines:
                print(json.dumps(msgspec.to_builtins(line)))
        elif candidate is not None:
            _show_in_full(lines)
        else:
            _show(lines)


async def _read(place: str) -> list[Lineage]:
    found = find_run(place)
    async with opened(found.store) as store:
        run = await run_at(store, found)
        return await lineage(store, run.run_id, read_failure_table(run.info.get("failure")))


async def lineage(store: Store, run_id: str, failure: FailureTable | None = None) -> list[Lineage]:
    """Return the candidates of a run in the order of the search, each with what the store knows of it."""
    ids: dict[str, list[str]] = {}
    async for page in pages(store.query_rollouts, run_id=run_id):
        for rollout in page:
            if (candidate := rollout.metadata.get("candidate")) and rollout.status.final:
                ids.setdefault(candidate, []).append(rollout.rollout_id)
    found = []
    for one in await stored_candidates(store, run_id):
        records = await store.records(ids.get(one.candidate_id, []))
        critique = one.origin.critique
        said = text_of(await store.query_calls(critique, None)) if critique else None
        found.append(_line(one, records, said, failure))
    return found


def _line(
    one: Candidate, records: list[Record], critique: str | None, failure: FailureTable | None
) -> Lineage:
    rewards: dict[str, list[float]] = {}
    for record in records:
        score = scored_of(record, failure).reward
        rewards.setdefault(str(record.rollout.metadata.get("split")), []).append(score)
    return Lineage(
        candidate=one.candidate_id,
        step=one.origin.step,
        parents=one.origin.parents,
        edited=one.origin.edited,
        rewards={name: math.fsum(values) / len(values) for name, values in rewards.items()},
        rollouts={name: len(values) for name, values in rewards.items()},
        critique=critique,
        prompts=one.texts,
    )


def ancestry(lines: list[Lineage], candidate: str) -> list[Lineage]:
    """Return a candidate (its id or the beginning of it) and its ancestors, the first prompts first."""
    known = {line.candidate: line for line in lines}
    meant = [name for name in known if name.startswith(candidate)]
    if len(meant) != 1:
        raise UsageError(f"{len(meant)} candidates begin with {candidate!r}; see `agl prompts RUN`")
    wanted, found = meant, set()
    while wanted:
        name = wanted.pop()
        found.add(name)
        wanted += [parent for parent in known[name].parents if parent in known and parent not in found]
    return [line for line in lines if line.candidate in found]


def _show(lines: list[Lineage]) -> None:
    table = Table(title="prompts", title_justify="left", header_style="bold")
    for name in ("candidate", "step", "parent", "edited", "rewards", "critique"):
        table.add_column(name)
    for line in lines:
        rewards = ", ".join(f"{name} {_number(value)}" for name, value in line.rewards.items())
        cells = (line.candidate, line.step, ", ".join(line.parents), ", ".join(line.edited), rewards)
        table.add_row(*map(Text, cells), Text((line.critique or "")[:80]))
    Console().print(table)


def _number(value: Any) -> str:
    return "none" if value is None else f"{value:.3f}"


def _show_in_full(lines: list[Lineage]) -> None:
    for line in lines:
        say(f"{line.candidate} ({line.step})")
        for name, value in line.rewards.items():
            say(f"  reward on {name}: {_number(value)} of {line.rollouts[name]} rollouts")
        if line.critique:
            say(f"  critique of its parent: {line.critique}")
        for name, text in line.prompts.items():
            say(f"  {name}:")
            say("\n".join(f"    {row}" for row in text.splitlines()))
