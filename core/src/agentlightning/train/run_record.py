"""The record of a run in its store, and the checks of a resume against it.

Invariants: a run resumes only with the tasks, recipe and seed it began with; other changed settings are
reported. The record holds no keys.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentlightning.algorithms.context import Context
from agentlightning.algorithms.journal import checkpoints_in
from agentlightning.algorithms.provenance import code_of, installed, origins
from agentlightning.algorithms.queue import cancel_leftovers
from agentlightning.algorithms.schedule import added_settings
from agentlightning.decorator.agents import as_agent
from agentlightning.gateway.settings import GatewaySection
from agentlightning.store.base import Store
from agentlightning.train.config import RunConfig
from agentlightning.train.run_folder import RunError
from agentlightning.types import Evaluation, Recipe, StepReport

FIXED = ("recipe", "failure", "seed", "batch_size", "driver", "data", "trained", "agents")
"""Settings that cannot change at a resume: the rows and the order of steps depend on them."""


REPORTED = (
    "options",
    "policy",
    "policies",
    "select",
    "gateway",
    "cluster",
    "async_steps",
    "schedule",
    "tries",
    "versions",
)
"""Settings that may change at a resume; each change is printed and recorded."""
RECORDED = ("agl-core", "agl-local", "torch", "openai")
"""Distributions whose versions are recorded, where they are installed."""


def run_info(config: RunConfig, recipe: Recipe, context: Context, agent: Any) -> dict[str, Any]:
    """Return the record of a run: a description for people, and all settings that decide on its rows."""
    training, backend, select = config.training, config.backend, config.agent.select
    return {
        "run_id": context.run_id,
        "steps": training.steps,
        "batch_size": training.batch_size,
        "seed": training.seed,
        "async_steps": training.async_steps,
        "about": {
            "agent": f"{config.agent.name} · {getattr(as_agent(agent), 'name', type(agent).__name__)}",
            "recipe": json.dumps(msgspec.to_builtins({"name": recipe.name, **recipe.uses()})),
            "policy": config.served.summary(),
            "driver": backend.driver,
            "gateway": context.gateway.url,
            **({"gateways": list(urls)} if len(urls := context.gateway.urls) > 1 else {}),
            "tasks": f"{len(context.train)} to train on, {len(context.val)} held out"
            + "".join(f", {len(tasks)} in {name}" for name, tasks in context.sets.items()),
        },
        "schedule": training.model_dump(include={*added_settings(training)}),
        "recipe": recipe.model_dump(),
        "failure": {kind: action.model_dump() for kind, action in training.failure.items()},
        "data": {
            "train": data_digest(context.train),
            "val": data_digest(context.val),
            **{f"sets.{name}": data_digest(tasks) for name, tasks in context.sets.items()},
        },
        **config.served.record(),
        "driver": backend.driver,
        "note": config.note,
        "code": code_of(agent),
        "started_from": origins(config.served.trained),
        "settings": dict(training.settings),
        "options": backend.options,
        "select": getattr(select, "__qualname__", "a function") if callable(select) else select,
        "gateway": config.gateway.model_dump(exclude={*GatewaySection.model_fields}),
        "cluster": config.evaluation.cluster,
        "tries": context.config.model_dump(),
        "python": platform.python_version(),
        "versions": {name: found for name in RECORDED if (found := installed(name)) is not None},
    }


def data_digest(tasks: Sequence[Any]) -> str:
    """Return a digest of the tasks in their order, 32 hex digits."""
    state = hashlib.blake2b(digest_size=16)
    for task in tasks:
        state.update(msgspec.json.encode(task, order="sorted") + b"\n")
    return state.hexdigest()


def check_unchanged(then: Mapping[str, Any], now: Mapping[str, Any], scheduled: Sequence[str] = ()) -> None:
    """Raise :class:`RunError` if a setting that cannot change has changed since the run began, or if a build
    with other settings began it. ``scheduled``: further such settings, of the schedule.
    """
    if unknown := [*_only_in_one(then, now)]:
        begun = (then.get("versions") or {}).get("agl-core", "an unknown version")
        raise RunError(
            f"run {then.get('run_id')} was begun by another build of Agent Lightning ({begun}), which "
            f"differs from this one in {', '.join(unknown)}, so it cannot go on here: resume it with that "
            "build, or begin another run"
        )
    before, after = (
        {key: of.get(key) for key in FIXED} | {key: (of.get("schedule") or {}).get(key) for key in scheduled}
        for of in (then, now)
    )
    if found := differences(before, after):
        listed = "; ".join(
            f"{key} was {before!r} when it began and is {after!r}" for key, before, after in found
        )
        raise RunError(
            f"run {then.get('run_id')} cannot go on: {listed}; use what it began with, or begin another run"
        )


def _only_in_one(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings that a record lacks, and the fields of the recipe that one of two records lacks."""
    yield from (key for key in FIXED if key in now and key not in then)
    recipes = [msgspec.to_builtins(record.get("recipe")) for record in (then, now)]
    if all(isinstance(recipe, dict) for recipe in recipes):
        yield from (f"recipe.{name}" for name in sorted(recipes[0].keys() ^ recipes[1].keys()))


def changed_settings(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return the settings that have changed since the run was last started: key, value then, value now. A
    setting that is not on record is not compared.
    """
    known = [key for key in REPORTED if key in then]
    return differences({key: then[key] for key in known}, {key: now.get(key) for key in known})


def differences(then: Any, now: Any, key: str = "") -> list[tuple[str, Any, Any]]:
    """Return dotted key, value then and value now of each difference; ``None`` for a missing value."""
    then, now = msgspec.to_builtins(then), msgspec.to_builtins(now)
    if isinstance(then, dict) and isinstance(now, dict):
        inner = [*then, *(name for name in now if name not in then)]
        return [
            found
            for name in inner
            for found in differences(then.get(name), now.get(name), f"{key}.{name}" if key else str(name))
        ]
    return [] if then == now else [(key, then, now)]


async def record_run(context: Context, info: dict[str, Any], *, resumed: bool) -> None:
    """Record a new run or resume a recorded one, and publish the resources of agents."""
    known = await stored_run(context.store, context.run_id) if resumed else None
    if known is None:
        check_store_knows(context.folder)
        await context.resources.publish(context.store, context.gateway)
        info["resources"] = context.resources.ids
        await context.store.add_run(context.run_id, info, context.config)
        await context.journal.begin(info)
        context.plugins.ask("agl_run_started", run=info)
        return
    check_unchanged(known, info, [name for one in context.plugins.sections.values() for name in one.fixed])
    changed = changed_settings(known, info)
    await cancel_leftovers(context.store, context.run_id)
    reports, evaluations = await restore_progress(context, known)
    await context.resources.publish(context.store, context.gateway)
    for key, before, after in changed:
        context.say(f"{key} was {before!r} and is {after!r} from step {context.first_step} on")
    life = {"time": time.time(), "first_step": context.first_step}
    lives = [*known.get("resumed", []), {**life, **({"changed": changed} if changed else {})}]
    context.earlier = known.get("summary") or {}
    about = {"resources": context.resources.ids, "resumed": lives, "summary": None}
    again = {**info, **context.guarded(), **about}
    await context.store.update_run(context.run_id, again, context.config)
    await context.journal.resume(again, context.first_step, list(context.evaluations.made))
    context.plugins.ask("agl_run_resumed", run=info, reports=reports, evaluations=evaluations)


async def stored_run(store: Store, run_id: str) -> dict[str, Any] | None:
    """Return the store's record of a run, ``None`` without one."""
    return next((run for run in await store.query_runs(limit=100_000) if run["run_id"] == run_id), None)


def check_store_knows(folder: Path) -> None:
    """Raise :class:`RunError` if the folder holds checkpoints of a run that the store does not know."""
    if checkpoints_in(folder):
        raise RunError(
            f"{folder} holds checkpoints, but its store knows no run {folder.name}: name the store it was "
            "trained with (`store` in the configuration), or begin another run"
        )


async def restore_progress(
    context: Context, known: Mapping[str, Any]
) -> tuple[list[StepReport], list[Evaluation]]:
    """Bring ``context`` to the run's last checkpoint; return the reports and evaluations up to it.

    Without a checkpoint the run begins again at step 0, under its old name. Reports and evaluations after
    the checkpoint are dropped: those steps are trained again.
    """
    if context.driver is not None:
        context.first_step, context.progress = await context.driver.resume(context.folder)
    served = context.driver.version if context.driver else 0
    context.resources.ids = dict(known.get("resources", {}))
    context.evaluations.made = {
        batch: entry for batch, entry in known.get("evaluations", {}).items() if entry["version"] <= served
    }
    reports = [r for r in await context.store.query_steps(context.run_id) if r.step < context.first_step]
    made = context.evaluations.made.values()
    return reports, [msgspec.convert(entry["evaluation"], Evaluation) for entry in made]
