"""The lineage of a run: its tasks and rewards by their content, its code, the runs it goes back to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from agentlightning.algorithms.provenance import origin_of
from agentlightning.credit.rollout_reward import rollout_reward
from agentlightning.store.base import StoreError
from agentlightning.store.pages import pages, record_pages
from agentlightning.types import UsageError
from agl_audit.locations import NoSuchRun
from agl_audit.run import OpenRun, open_run

DEEPEST = 32
"""Ancestors of a run that are followed, at most."""


@dataclass(slots=True)
class Ancestor:
    """A run, or a policy of unknown origin. ``how``: what the run below took from it."""

    run: str
    how: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    parents: list[Ancestor] = field(default_factory=list)

    def shown(self) -> dict[str, Any]:
        """Return it and its ancestors as JSON."""
        return {
            "run": self.run,
            "how": self.how,
            **self.facts,
            "parents": [one.shown() for one in self.parents],
        }


async def lineage_of_run(what: str, store: str | None = None, run: str | None = None) -> Ancestor:
    """Return the lineage of the run that ``what`` names, or of a policy's folder. An ancestor that is not
    found is a leaf with the reason as ``missing``.
    """
    folder = Path(what)
    if (folder / "config.json").is_file():
        origin = origin_of(folder.absolute())
        return await _parent(origin, f"policy {folder.name}", set())
    return await _lineage(what, store, run, "", set())


async def _lineage(what: str, store: str | None, run: str | None, how: str, seen: set[str]) -> Ancestor:
    async with open_run(what, store, run=run) as opened:
        facts = await _facts(opened)
        found = Ancestor(opened.run_id, how, facts)
        if opened.run_id in seen or len(seen) >= DEEPEST:
            return found
        seen = seen | {opened.run_id}
        info = opened.info
    for name, origin in (info.get("started_from") or {}).items():
        found.parents.append(await _parent(origin, f"policy {name}", seen))
    for place in (info.get("settings") or {}).get("runs") or ():
        found.parents.append(await _parent({"run": place}, "stored rollouts", seen))
    return found


async def _parent(origin: Mapping[str, Any], how: str, seen: set[str]) -> Ancestor:
    """Return the ancestor that an origin names."""
    more = {name: value for name, value in origin.items() if name != "run"}
    if "run" not in origin:
        return Ancestor(str(origin.get("folder", "unknown")), how, more)
    try:
        found = await _lineage(str(origin["run"]), None, None, how, seen)
    except (NoSuchRun, StoreError, UsageError, OSError) as error:
        return Ancestor(str(origin["run"]), how, {**more, "missing": str(error).splitlines()[0]})
    found.facts = {**more, **found.facts}
    return found


async def _facts(run: OpenRun) -> dict[str, Any]:
    info, summary = run.info, run.info.get("summary") or {}
    recipe = info.get("recipe") or {}
    rewards = await reward_digest(run)
    facts = {
        "began": info.get("create_time"),
        "code": info.get("code"),
        "recipe": recipe.get("name") if isinstance(recipe, Mapping) else recipe,
        "recipe_digest": _digest(recipe) if recipe else None,
        "seed": info.get("seed"),
        "steps": summary.get("steps", info.get("steps")),
        "tasks": info.get("data"),
        "rewards": rewards,
        "versions": info.get("versions"),
        "resumed": len(info.get("resumed") or ()) or None,
        "head": (summary.get("chain") or {}).get("head"),
        "imported": (info.get("about") or {}).get("files"),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _digest(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:32]


async def reward_digest(run: OpenRun) -> dict[str, Any]:
    """Return a digest of the rewards of a run's rollouts, 32 hex digits, and how many have one: of the lines
    ``rollout id, reward`` in the order of their ids.
    """
    lines: list[str] = []
    rewarded = 0
    async for page in pages(run.store.query_rollouts, run_id=run.run_id):
        for ids in record_pages([rollout.rollout_id for rollout in page]):
            for record in await run.store.records(ids):
                outcome = rollout_reward(record, run.failure_table).value
                rewarded += outcome is not None
                lines.append(json.dumps([record.rollout.rollout_id, outcome]))
    state = hashlib.sha256("\n".join(sorted(lines)).encode())
    return {"digest": state.hexdigest()[:32], "rollouts": len(lines), "rewarded": rewarded}
