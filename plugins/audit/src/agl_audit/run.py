"""One run, opened for reading: its record, its store, and the crediting of its steps.

Invariant: :meth:`OpenRun.credit` makes rows as the run did: with the same recipe, failure table, rules and
baselines, by the installed code.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from agentlightning.algorithms.evaluate import Counting
from agentlightning.algorithms.journal import policy_home
from agentlightning.algorithms.provenance import installed
from agentlightning.credit.assign import assign
from agentlightning.credit.baselines import Advantage
from agentlightning.credit.checks import check_recipe
from agentlightning.credit.eligibility import Versions
from agentlightning.plugins.manager import Plugins, load
from agentlightning.specs import Inspector
from agentlightning.store import Store
from agentlightning.store.pages import pages
from agentlightning.types import AuditLink, Batch, Recipe, Record, Rollout, RolloutFingerprint, UsageError
from agentlightning.types.failure import FailureTable, read_failure_table
from agl_audit.locations import RunLocation, find_run, opened, run_at
from agl_audit.store.fingerprints import query_fingerprints


class CannotRecompute(UsageError):
    """The run's record lacks information that is needed to recompute its rows."""


@dataclass(slots=True)
class OpenRun:
    """A run in an open store."""

    run_id: str
    info: dict[str, Any]
    """The record that the trainer wrote at the start, with ``create_time`` and ``update_time``."""
    store: Store
    plugins: Plugins
    folder: Path | None = None
    _edits: dict[int, dict[str, dict[str, Any]]] | None = None
    """Step → name → body of its latest edit, once they are read."""

    @property
    def recipe(self) -> Recipe:
        """The recipe that the run was trained with. Raises :class:`CannotRecompute`."""
        given = self.info.get("recipe")
        if not isinstance(given, dict):
            raise CannotRecompute(
                f"run {self.run_id}: its record holds no recipe, so its rows cannot be made again "
                "(its algorithm has none)"
            )
        try:
            recipe = msgspec.convert(given, Recipe)
            check_recipe(recipe, **self.plugins.credit_functions)
        except ValueError as error:
            raise CannotRecompute(
                f"run {self.run_id}: {error}; if a plugin registered it, install that plugin"
            ) from None
        return recipe

    def credit(
        self,
        records: Sequence[Record],
        version: Versions,
        out: dict[str, str] | None = None,
        explained: dict[str, Advantage] | None = None,
        edits: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> Batch:
        """Recompute the batch of one step. ``out`` and ``explained``: filled as by
        :func:`agentlightning.credit.assign.assign`. ``edits``: those of the step (:meth:`edits`), made again.
        Raise :class:`CannotRecompute` for an edit of a plugin that is not installed, and
        ``ValueError`` for one that does not fit the batch.
        """
        batch = assign(
            records,
            self.recipe,
            version=version,
            failure=self.failure_table,
            out=out,
            explained=explained,
            **self.plugins.credit_functions,
        )
        known = self.plugins.table("agl_recorded_edits")
        for name, body in edits.items():
            if name not in known:
                raise CannotRecompute(
                    f"run {self.run_id}: its batches were edited by {name!r}, which no installed plugin "
                    "makes again; install the plugin that it was trained with"
                )
            try:
                batch = known[name].again(batch, self.recipe, body)
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(
                    f"what its chain holds of the edit {name!r} does not fit it: {error}"
                ) from error
            if out is not None:
                out.update(body.get("left_out", {}))
        return batch

    async def edits(self, step: int) -> dict[str, dict[str, Any]]:
        """Return what edited the batch of a step: name → body of its latest link, in their order."""
        if self._edits is None:
            self.keep_edits(
                [link async for page in pages(self.store.query_links, self.run_id) for link in page]
            )
        return (self._edits or {}).get(step, {})

    def keep_edits(self, links: Iterable[AuditLink]) -> None:
        """Keep the edits among the links of the run's chain, which need not be read again."""
        self._edits = {}
        for link in links:
            if link.kind == "edit":
                at, _, name = link.name.partition("/")
                self._edits.setdefault(int(at), {})[name] = link.body

    @property
    def failure_table(self) -> FailureTable:
        """The failure table that the run was trained with."""
        return read_failure_table(self.info.get("failure"))

    @property
    def counting(self) -> Counting:
        """How the run's evaluations count failures and clusters."""
        return Counting(self.failure_table, self.info.get("cluster"))

    async def fingerprints(
        self, step: int | None = None, rollout_id: str | None = None
    ) -> list[RolloutFingerprint]:
        """Return the fingerprints that were logged at training time."""
        return await query_fingerprints(self.store, self.run_id, step, rollout_id)

    async def known(self, rollout_ids: Sequence[str]) -> dict[str, Rollout]:
        """Return rollout id → rollout, for the rollouts that are in the store."""
        found = await self.store.query_rollouts(rollout_ids=list(rollout_ids), limit=max(1, len(rollout_ids)))
        return {rollout.rollout_id: rollout for rollout in found}

    def inspector(self, policy: Path) -> Inspector:
        """Return the driver's inspector of a policy folder. Raise :class:`CannotRecompute` if the driver has
        none."""
        name = str(self.info.get("driver", ""))
        spec = self.plugins.drivers.get(name)
        if spec is None:
            raise CannotRecompute(f"the driver {name!r} is not installed")
        if spec.inspect is None:
            raise CannotRecompute(f"the driver {name!r} cannot open a policy at rest")
        return spec.inspect(policy)

    @property
    def trained(self) -> list[str]:
        """Names of the policies that the run trained, if they had names."""
        return list(self.info.get("trained") or ())

    def policies(self, name: str | None = None) -> list[tuple[Path, int | None]]:
        """Return the policy folders of the run, newest first, with the number of finished steps (``None``:
        all). ``name``: the policy, if the run trained several.
        """
        if self.folder is None:
            return []
        named = name if name in self.trained else None
        exported = self.folder / "policy" / (named or "")
        found: list[tuple[Path, int | None]] = [(exported, None)] if exported.is_dir() else []
        kept = policy_home(self.folder, named) if named else self.folder
        for path in sorted(kept.glob("checkpoints/step-*/policy"), reverse=True):
            if (done := path.parent.name.removeprefix("step-")).isdigit():
                found.append((path, int(done)))
        return found

    def versions(self) -> list[tuple[str, str, str]]:
        """Return the packages whose version has changed: (name, then, now)."""
        then: dict[str, str] = self.info.get("versions") or {}
        return [
            (name, was, now)
            for name, was in then.items()
            if (now := installed(name) or "not installed") != was
        ]


@asynccontextmanager
async def open_run(
    what: str,
    store: str | None = None,
    plugins: Plugins | None = None,
    run: str | None = None,
    *,
    read_only: bool = True,
) -> AsyncIterator[OpenRun]:
    """Open the run that ``what`` names (:func:`.locations.find_run`). ``run``: its id, if that is a store."""
    place = find_run(what, store)
    async with opened(place.store, plugins, read_only=read_only) as one:
        yield await run_in(one, place._replace(run=run) if run else place, plugins)


async def run_in(store: Store, place: RunLocation, plugins: Plugins | None = None) -> OpenRun:
    """Return the run at ``place``, in its open store."""
    found = await run_at(store, place)
    return OpenRun(found.run_id, found.info, store, plugins or load(), found.folder)
