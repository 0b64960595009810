"""The store keeps acknowledged writes when killed, and commits fast enough on the run's disk."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from pathlib import Path

from agentlightning.plugins.stores import open_store
from agentlightning.redaction import redacted
from agentlightning.store import StoreError
from agentlightning.store.sqlite.store import SQLiteStore
from agl_testing.doctor.checks.environment import nearest_existing
from agl_testing.doctor.findings import Findings
from agl_testing.doctor.report import Check, Notes

COMMITS = 100
ANSWER = 10.0
"""Time limit in seconds for the answer of a remote store."""
SLOW = 0.02
"""Seconds per commit that indicate a network disk."""


async def check_store(findings: Findings) -> Check:
    """Write, copy the files as a kill would leave them, read the copy back, and time commits.

    A file store is tried in a folder of its own on the disk of ``output``. A remote store is only asked for
    an answer, because writes there would stay.
    """
    trainer = findings.require_configured().trainer
    notes = Notes()
    if (
        isinstance(trainer.config.store, str)
        and "://" in trainer.config.store
        and not trainer.config.store.startswith("sqlite:")
    ):
        await _remote(notes, trainer.config.store, findings)
    where = nearest_existing(Path(trainer.config.output).absolute())
    with tempfile.TemporaryDirectory(prefix=".agl-doctor-", dir=where, ignore_cleanup_errors=True) as folder:
        survived, seconds = await measure_commits(Path(folder))
    if not survived:
        notes.fail(
            f"what the store acknowledged in {where} is not in its files",
            "The disk of `output` does not keep SQLite's write-ahead log; choose a local one.",
        )
    if seconds > SLOW:
        notes.warn(
            f"a commit takes {1000 * seconds:.0f} ms in {where}",
            "Every model call waits for one: put `output` and `store` on a local disk.",
        )
    title = f"writes, reads back, durable when acknowledged; {1 / seconds:,.0f} commits/s"
    return notes.check("store", title, commit_seconds=seconds)


async def _remote(notes: Notes, url: str, findings: Findings) -> None:
    store = open_store(url, plugins=findings.plugins)
    began = time.perf_counter()
    try:
        async with asyncio.timeout(ANSWER):
            await store.counts()
    except TimeoutError:
        raise StoreError(
            f"no store answers at {redacted(url)} within {ANSWER:g} s; start one with `agl store`"
        ) from None
    finally:
        await store.close()
    notes.fact(f"{redacted(url)} answers in {1000 * (time.perf_counter() - began):.0f} ms")


async def measure_commits(folder: Path) -> tuple[bool, float]:
    """Return (whether a copy taken after the last answer holds every write, seconds per commit)."""
    store = SQLiteStore(folder / "store.sqlite")
    try:
        began = time.perf_counter()
        written = [(await store.enqueue_rollout({"n": n})).rollout_id for n in range(COMMITS)]
        seconds = (time.perf_counter() - began) / COMMITS
        found = await rollouts_of(copy_as_if_killed(folder / "store.sqlite", folder / "copy"))
    finally:
        await store.close()
    return set(written) <= found, seconds


def copy_as_if_killed(file: Path, folder: Path) -> Path:
    """Copy the store's files to ``folder`` as a kill at this moment would leave them."""
    folder.mkdir()
    for suffix in ("", "-wal"):
        source = file.with_name(file.name + suffix)
        if source.exists():
            shutil.copyfile(source, folder / source.name)
    return folder / file.name


async def rollouts_of(file: Path) -> set[str]:
    """Return the ids of the rollouts in a store file."""
    store = SQLiteStore(file)
    try:
        return {r.rollout_id for r in await store.query_rollouts(limit=10 * COMMITS)}
    finally:
        await store.close()
