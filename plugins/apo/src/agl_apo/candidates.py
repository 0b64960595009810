"""Candidates: the prompts of an agent system, each set stored as resources with where it came from.

A candidate is a bundle of resources. Beside the prompts it holds what the run gives agents anyway, and the
JSON resource ``candidate``: run, parents, the prompt that was edited, and the rollouts in which critic and
editor wrote. Its rewards are those of the rollouts that were queued with it.

Invariants: the id of a candidate is a function of the run and its texts, so that the same texts are one
candidate; a stored candidate never changes, except for the address of the run's gateway.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from agentlightning.algorithms.context import Context
from agentlightning.store.base import NotFound, Store
from agentlightning.types import LLM, JsonResource, PromptTemplate, Resource

ORIGIN = "candidate"
"""Name of the resource that says where a candidate came from."""
Prompts = Mapping[str, PromptTemplate]
"""Resource name → template."""


class Origin(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Where a candidate came from."""

    run_id: str
    number: int
    """0 for the first prompts, then in the order of the search."""
    step: str = "first"
    """Where in the search it was made, e.g. ``round 1``."""
    parents: list[str] = []
    """Ids of the candidates that it was made of."""
    edited: list[str] = []
    """Names of the prompts that differ from those of the first parent."""
    critique: str | None = None
    """Rollout in which the critic wrote."""
    edit: str | None = None
    """Rollout in which the editor wrote."""


class Candidate(msgspec.Struct, kw_only=True, frozen=True):
    """A set of prompts and its origin. ``candidate_id`` is the id of its resources."""

    candidate_id: str
    prompts: dict[str, PromptTemplate]
    origin: Origin

    @property
    def texts(self) -> dict[str, str]:
        """Return the texts by name."""
        return {name: prompt.template for name, prompt in self.prompts.items()}


def candidate_id(run_id: str, prompts: Prompts) -> str:
    """Return the id of the candidate with these prompts."""
    state = hashlib.sha256(run_id.encode())
    for name in sorted(prompts):
        state.update(msgspec.json.encode([name, prompts[name].engine, prompts[name].template]))
    return f"rs-{state.hexdigest()[:16]}"


class CandidateBook:
    """The candidates of a run. They are written to the store as they are made."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.known: dict[str, Candidate] = {}
        """The candidates of this search, in their order."""

    async def add(self, prompts: Prompts, step: str, **origin: Any) -> Candidate | None:
        """Store a candidate and return it; ``None`` if this search has made it already."""
        context = self._context
        made = candidate_id(context.run_id, prompts)
        if made in self.known:
            return None
        about = Origin(run_id=context.run_id, number=len(self.known), step=step, **origin)
        candidate = Candidate(candidate_id=made, prompts=dict(prompts), origin=about)
        bundle: dict[str, Any] = {**await self._given(), **prompts, ORIGIN: JsonResource(value=_json(about))}
        await self._write(made, bundle)
        self.known[made] = candidate
        return candidate

    def find(self, prompts: Prompts) -> Candidate:
        """Return the candidate with these prompts, which this search has made."""
        return self.known[candidate_id(self._context.run_id, prompts)]

    async def _given(self) -> dict[str, Resource]:
        """Return what the run gives all agents: the policy's address and the other initial resources."""
        context = self._context
        published = context.resources.ids.get(context.policy)
        if published is None:
            return {}
        return dict((await context.store.get_resources_by_id(published)).resources)

    async def _write(self, resources_id: str, bundle: dict[str, Any]) -> None:
        """Store the bundle; where an earlier life of the run did, only bring addresses up to date."""
        store = self._context.store
        try:
            there = await store.get_resources_by_id(resources_id)
        except NotFound:
            await store.add_resources(bundle, resources_id=resources_id)
            return
        models = {name: one for name, one in bundle.items() if isinstance(one, LLM)}
        if any(there.resources.get(name) != one for name, one in models.items()):
            await store.update_resources(resources_id, {**there.resources, **models})


def _json(origin: Origin) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(origin)
    return found


async def stored_candidates(store: Store, run_id: str) -> list[Candidate]:
    """Return the candidates of a run that the store has, in the order of the search."""
    found: list[Candidate] = []
    after: str | None = None
    while page := await store.query_resources(1000, after=after):
        after = page[-1].resources_id
        for one in page:
            origin = one.resources.get(ORIGIN)
            if not isinstance(origin, JsonResource) or not isinstance(origin.value, dict):
                continue
            if origin.value.get("run_id") != run_id:
                continue
            prompts = {n: r for n, r in one.resources.items() if isinstance(r, PromptTemplate)}
            about = msgspec.convert(origin.value, Origin)
            found.append(Candidate(candidate_id=one.resources_id, prompts=prompts, origin=about))
    return sorted({one.candidate_id: one for one in found}.values(), key=lambda one: one.origin.number)
