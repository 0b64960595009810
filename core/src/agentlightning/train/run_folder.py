"""Run folders: where a run's files lie, who trains it, and what must be the same when it goes on.

``<output>/<run id>/`` holds the run's store, metrics, checkpoints and summary. Invariants: one process trains
a run at a time; a folder is never trained into by another run; a run goes on only with the tasks, recipe and
seed it began with, and what else has changed is said; a start that is refused leaves no folder.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from agentlightning.algorithms.context import Context
from agentlightning.algorithms.rollouts.enqueue import cancel_leftovers
from agentlightning.store.base import Store
from agentlightning.store.sqlite.file.lock import FileLock, Locked
from agentlightning.types import Evaluation, Recipe, StepReport, UsageError
from agentlightning.types.aliases import RECIPE, TRAINING, renamed

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
FIXED = ("recipe", "failure", "seed", "batch_size", "driver", "data", "trained", "agents")
"""What a run began with and cannot change when it goes on: rows and order of its steps depend on it."""


REPORTED = (
    "options",
    "policy",
    "policies",
    "select",
    "gateway",
    "quorum",
    "async_steps",
    "dynamic_sampling",
    "tries",
    "versions",
)
"""What may change when a run goes on, and is said then."""


class RunError(UsageError):
    """A run that cannot be begun or gone on with, and what to do."""


@dataclass(slots=True)
class RunFolder:
    """A run's folder, held by this process. ``resumed``: it was there before."""

    run_id: str
    folder: Path
    resumed: bool
    lock: FileLock
    created_parents: list[Path] = field(default_factory=list)
    """Folders above it that were made for it, the innermost first."""
    started: bool = False
    """Whether there is anything to go on with: a start that was refused before that leaves no folder."""

    def close(self) -> None:
        """Let another process go on with it."""
        if not self.resumed and not self.started:
            shutil.rmtree(self.folder, ignore_errors=True)
            for above in self.created_parents:
                with suppress(OSError):  # another run lies in it by now
                    above.rmdir()
        self.lock.release()


def open_run_folder(
    output: Path, name: str, seed: int, *, run: str | None = None, resume: bool = False
) -> RunFolder:
    """The folder of a new run, or with ``resume`` of one to go on with.

    ``run``: its id; none: a new one is named after time, ``name`` and ``seed``, and the latest of ``name``
    and ``seed`` is gone on with. Raises :class:`RunError` for one that cannot be made or gone on with.
    """
    created_parents = [above for above in (output, *output.parents) if not above.exists()]
    if run is not None and not _NAME.fullmatch(run):
        raise RunError(
            f"run {run!r}: use letters, digits, '.', '_' and '-', at most 100, a letter or digit first"
        )
    if run is None and not _NAME.fullmatch(name):
        raise RunError(
            f"agent.name {name!r}: it names the run's folder; use letters, digits, '.', '_' and '-'"
        )
    if run is None and resume:
        folder = _latest(output, f"{name}-s{seed}")
    elif run is None:
        folder = _make_unused(output / (time.strftime("%Y%m%d-%H%M%S") + f"-{name}-s{seed}"))
        return _lock(folder, False, created_parents)
    else:
        folder = output / run
    there = folder.is_dir() and any(folder.iterdir())
    if there and not resume:
        raise RunError(f"{folder} exists: go on with it (--resume), or choose another run id")
    if resume and not folder.is_dir():
        raise _no_such_run(output, folder.name)
    _make(folder)
    return _lock(folder, there, created_parents)


def new_run_folder(output: Path, name: str) -> RunFolder:
    """The folder of a new run, named after time and ``name``."""
    created_parents = [above for above in (output, *output.parents) if not above.exists()]
    return _lock(_make_unused(output / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"), False, created_parents)


def _no_such_run(output: Path, name: str) -> RunError:
    """There is no such run to go on with; the one that was meant, perhaps."""
    known = sorted((p.name for p in output.glob("*") if p.is_dir()), reverse=True) if output.is_dir() else []
    near = difflib.get_close_matches(name, known, n=1)
    meant = f" Did you mean {near[0]}?" if near else f" It holds {', '.join(known[:4])}." if known else ""
    return RunError(
        f"nothing to resume: {output} holds no run {name}; to begin it, leave --resume out.{meant}"
    )


def _lock(folder: Path, resumed: bool, created_parents: Sequence[Path] = ()) -> RunFolder:
    folder = folder.resolve()
    try:
        lock = FileLock(folder / "run")
    except Locked as error:
        raise RunError(
            f"run {folder.name} is being trained already, by process {error.holder.pid or 'unknown'}"
        ) from None
    return RunFolder(folder.name, folder, resumed, lock, list(created_parents))


def _latest(output: Path, ending: str) -> Path:
    """The newest folder of a run whose id was made for ``ending``."""
    stamped = re.compile(r"\d{8}-\d{6}-" + re.escape(ending) + r"(-\d+)?")
    found = [p for p in output.glob("*") if stamped.fullmatch(p.name)] if output.is_dir() else []
    if not found:
        raise RunError(
            f"nothing to resume: {output} holds no run of {ending}; name one with --run, or begin one"
        )
    return max(found, key=lambda p: (p.name[:15], len(p.name), p.name))


def _make_unused(folder: Path) -> Path:
    """Make ``folder``; if it exists already, the next free ``folder-2``, …"""
    candidate, n = folder, 1
    while True:
        try:
            candidate.mkdir(parents=True)
            return candidate
        except FileExistsError:
            n += 1
            candidate = folder.with_name(f"{folder.name}-{n}")
        except OSError as error:
            raise _cannot_make(candidate, error) from None


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_make(folder, error) from None


def _cannot_make(folder: Path, error: OSError) -> RunError:
    return RunError(f"cannot make the run's folder {folder}: {error}; choose another `output`")


def data_digest(tasks: Sequence[Any]) -> str:
    """32 hex digits over the tasks in their order."""
    state = hashlib.blake2b(digest_size=16)
    for task in tasks:
        state.update(msgspec.json.encode(task, order="sorted") + b"\n")
    return state.hexdigest()


def check_unchanged(then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """:class:`RunError` if a run would go on with something else than it began with."""
    then = _present_names(then)
    found = differences({key: then.get(key) for key in FIXED}, {key: now.get(key) for key in FIXED})
    if found:
        listed = "; ".join(
            f"{key} was {before!r} when it began and is {after!r}" for key, before, after in found
        )
        raise RunError(
            f"run {then.get('run_id')} cannot go on: {listed}; use what it began with, or begin another run"
        )


def changed_settings(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Settings that a run goes on with otherwise than its last life had them: key, then, now. What an older
    version did not put on record is not compared.
    """
    then = _present_names(then)
    known = [key for key in REPORTED if key in then]
    return differences({key: then[key] for key in known}, {key: now.get(key) for key in known})


def _present_names(record: Mapping[str, Any]) -> dict[str, Any]:
    """A run's record, perhaps of an earlier version, under the names that settings have now."""
    found = renamed(record, TRAINING, "record", quiet=True)
    if isinstance(recipe := found.get("recipe"), Mapping):
        fields = renamed(recipe, RECIPE, "record", quiet=True)
        found["recipe"] = {name: fields[name] for name in fields if name in Recipe.__struct_fields__}
    return found


def differences(then: Any, now: Any, key: str = "") -> list[tuple[str, Any, Any]]:
    """Dotted key, value then and value now of all that differs; ``None`` for what is only in one."""
    then, now = msgspec.to_builtins(then), msgspec.to_builtins(now)
    if isinstance(then, dict) and isinstance(now, dict):
        inner = [*then, *(name for name in now if name not in then)]
        return [
            found
            for name in inner
            for found in differences(then.get(name), now.get(name), f"{key}.{name}" if key else str(name))
        ]
    return [] if then == now else [(key, then, now)]


def say(line: str) -> None:
    """A line for the person at the terminal."""
    print(line, file=sys.stderr)


def report_unfinished(folder: Path) -> Callable[..., None]:
    """For an exit stack: on the way out of a run that did not finish, where its files lie."""

    def leaving(kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        if kind is not None:
            say(f"The run did not finish. What there is of it: {folder}")
            say(f"To go on with it: --run {folder.name} --resume")

    return leaving


def versions(names: Sequence[str]) -> dict[str, str]:
    """Installed versions of the distributions among ``names`` that are there."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


async def record_run(context: Context, info: dict[str, Any], *, resumed: bool) -> None:
    """Put a run on record, or take up the one on record; then publish where agents find the policy."""
    known = await stored_run(context.store, context.run_id) if resumed else None
    if known is None:
        check_store_knows(context.folder)
        await context.publish()
        info["resources"] = context.resources
        await context.store.add_run(context.run_id, info, context.config)
        await context.journal.begin(info)
        context.plugins.notify("agl_run_started", run=info)
        return
    check_unchanged(known, info)
    changed = changed_settings(known, info)
    await cancel_leftovers(context.store, context.run_id)
    reports, evaluations = await restore_progress(context, known)
    await context.publish()
    for key, before, after in changed:
        context.say(f"{key} was {before!r} and is {after!r} from step {context.first_step} on")
    life = {"time": time.time(), "first_step": context.first_step}
    lives = [*known.get("resumed", []), {**life, **({"changed": changed} if changed else {})}]
    again = {**info, "resources": context.resources, "resumed": lives, "summary": None}
    await context.store.update_run(context.run_id, again, context.config)
    await context.journal.resume(again, context.first_step, list(context.known))
    context.plugins.notify("agl_run_resumed", run=info, reports=reports, evaluations=evaluations)


async def stored_run(store: Store, run_id: str) -> dict[str, Any] | None:
    """What the store knows of a run."""
    return next((run for run in await store.query_runs(limit=100_000) if run["run_id"] == run_id), None)


def check_store_knows(folder: Path) -> None:
    """:class:`RunError` for a folder with checkpoints of which the store knows nothing."""
    if any(folder.glob("checkpoints/*")) or any(folder.glob("policies/*/checkpoints/*")):
        raise RunError(
            f"{folder} holds checkpoints, but its store knows no run {folder.name}: name the store it was "
            "trained with (`store` in the configuration), or begin another run"
        )


async def restore_progress(
    context: Context, known: Mapping[str, Any]
) -> tuple[list[StepReport], list[Evaluation]]:
    """Bring ``context`` to where the run's last checkpoint was taken; the reports and evaluations that stand.

    Without a checkpoint the run begins again at step 0, under its old name. What was reported or evaluated
    after the checkpoint does not stand: those steps are trained anew.
    """
    if context.driver is not None:
        context.first_step, context.progress = await context.driver.resume(context.folder)
    served = context.driver.version if context.driver else 0
    context.resources = dict(known.get("resources", {}))
    context.known = {
        batch: entry for batch, entry in known.get("evaluations", {}).items() if entry["version"] <= served
    }
    reports = [r for r in await context.store.query_steps(context.run_id) if r.step < context.first_step]
    return reports, [msgspec.convert(entry["evaluation"], Evaluation) for entry in context.known.values()]
