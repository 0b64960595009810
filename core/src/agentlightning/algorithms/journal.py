"""The journal writes a run's chain during the run (:mod:`agentlightning.credit.digest`).

Invariants: a step and its link are stored together or not at all; links are only added. A resume adds a
link, and whatever the run makes again gets later links.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from agentlightning.credit.digest import KEY_VARIABLE, digest, next_link, plain, summary_entry
from agentlightning.credit.fingerprint import fingerprint_record
from agentlightning.store.base import Store
from agentlightning.store.pages import pages
from agentlightning.types import AuditLink, Record, RolloutFingerprint, StepReport, UsageError

HASHERS = 8
"""Files hashed at a time."""
BEST = "best.json"
"""File in a run's folder that names its best policy, if the run keeps it (``training.keep_best``)."""
GROWING_ENTRIES = frozenset({"summary", "evaluations", "resumed", "create_time", "update_time"})
"""Entries of a run's record that grow during the run: they have their own links."""


class Journal:
    """Writes the chain of run ``run_id``, whose files lie in ``folder``. The key in ``AGL_SIGNING_KEY`` signs
    the links, if it is set.
    """

    def __init__(self, store: Store, run_id: str, folder: Path) -> None:
        self.store = store
        self.run_id = run_id
        self.folder = folder
        self.key = os.environ.get(KEY_VARIABLE)
        self.last: AuditLink | None = None
        self._checkpoints: set[str] = set()
        """Checkpoints that have a link."""
        self._lock = asyncio.Lock()

    async def begin(self, info: Mapping[str, Any]) -> None:
        """Write the first link: settings and data of the run."""
        await self._add("begin", self.run_id, {"info": _fixed_entries(info)})

    async def resume(self, info: Mapping[str, Any], first_step: int, evaluations: Sequence[str]) -> None:
        """Continue after the last link: settings, first step, and the evaluations that stay valid.
        Checkpoints without a link (the run ended before it was written) get one.
        """
        async for page in pages(self.store.query_links, self.run_id):
            self._checkpoints |= {one.name for one in page if one.kind == "checkpoint"}
            self.last = page[-1]
        body = {"info": _fixed_entries(info), "first_step": first_step, "evaluations": list(evaluations)}
        await self._add("resume", self.run_id, body)
        for folder in checkpoints_in(self.folder):
            if self._name(folder) not in self._checkpoints:
                await self.checkpoint(folder)

    async def step(self, report: StepReport, fingerprints: Sequence[RolloutFingerprint]) -> None:
        """Store a step: its report, fingerprints and link."""
        body = {
            "report": plain(report),
            "fingerprints": [[one.rollout_id, digest(one)] for one in fingerprints],
        }
        store = partial(self.store.add_step, report, fingerprints)
        await self._add("step", f"{report.step}/{report.policy}", body, store=store)

    async def entry(self, kind: str, name: str, body: Mapping[str, Any], of: Sequence[Record] = ()) -> None:
        """Write the link of what is no step: an ``evaluation``, a ``search``, or the ``edit`` of a batch. An
        edit's name is the step and who edits, e.g. ``3/distill``. ``of``: the records that it counts.
        """
        about: dict[str, Any] = {"run_id": self.run_id, "step": -1, "policy": name}
        made = [fingerprint_record(record, **about, version=body.get("version")) for record in of]
        await self._add(kind, name, plain(body), made)

    async def checkpoint(self, folder: Path) -> None:
        """Write the link of a complete checkpoint: the digest of each file in ``folder``."""
        name = self._name(folder)
        files = await asyncio.to_thread(file_digests, folder)
        await self._add("checkpoint", name, {"files": files})
        self._checkpoints.add(name)

    async def end(self, summary: Mapping[str, Any], policy: Path | None) -> dict[str, Any]:
        """Write the last link: the summary and the exported policy. Return the summary's entry about it."""
        files = await asyncio.to_thread(file_digests, policy) if policy is not None else None
        await self._add("end", self.run_id, {"summary": plain(summary), "policy": files})
        assert self.last is not None
        return summary_entry(self.last)

    async def _add(
        self,
        kind: str,
        name: str,
        body: Mapping[str, Any],
        fingerprints: Sequence[RolloutFingerprint] = (),
        store: Callable[..., Awaitable[None]] | None = None,
    ) -> None:
        """Make the next link and store it, by ``store(link=…)`` if it belongs to another record."""
        async with self._lock:
            made = next_link(
                self.run_id, kind, name, body, after=self.last, fingerprints=fingerprints, key=self.key
            )
            await (store or self.store.add_link)(link=made)
            self.last = made

    def _name(self, folder: Path) -> str:
        """Return a folder's name in the chain: a relative path, since the run's folder may be moved."""
        folder, home = folder.resolve(), self.folder.resolve()
        return folder.relative_to(home).as_posix() if folder.is_relative_to(home) else str(folder)


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoint folders of all policies of a run."""
    found = [*folder.glob("checkpoints/*"), *folder.glob("policies/*/checkpoints/*")]
    return sorted(path for path in found if path.is_dir() and not path.name.startswith("."))


def policy_home(folder: Path, policy: str) -> Path:
    """Return the folder of one of several policies, in the run's folder."""
    return folder / "policies" / policy


def saved_steps(folder: Path) -> int:
    """Return after how many finished steps a resume of the run in ``folder`` goes on: those of the newest
    checkpoint, with several policies the newest that all have.
    """
    found: dict[Path, set[int]] = {}
    for path in checkpoints_in(folder):
        if (number := re.search(r"\d+$", path.name)) is not None:
            found.setdefault(path.parent, set()).add(int(number[0]))
    return max(set.intersection(*found.values()), default=0) if found else 0


def read_best(folder: Path) -> dict[str, Any] | None:
    """Return the record of a run's best policy; ``None`` if it keeps none. UsageError for a damaged one."""
    try:
        found: dict[str, Any] = json.loads((folder / BEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder / BEST} cannot be read: {error}") from error
    return found


def file_digests(folder: Path) -> dict[str, str]:
    """Return path → sha256 of every file below ``folder``."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    with ThreadPoolExecutor(HASHERS, thread_name_prefix="hash") as pool:
        hashes = pool.map(_sha256, files)
        return {path.relative_to(folder).as_posix(): found for path, found in zip(files, hashes, strict=True)}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fixed_entries(info: Mapping[str, Any]) -> dict[str, Any]:
    values = msgspec.to_builtins(dict(info), enc_hook=str)
    found: dict[str, Any] = plain({key: value for key, value in values.items() if key not in GROWING_ENTRIES})
    return found
