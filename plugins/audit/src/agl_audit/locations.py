"""Locate runs: from user input (an id, its beginning, a folder, a store) to a location, and to its record.

Runs are searched in ``runs/`` of the working directory, each in a folder of its own, and in the store that
``AGL_STORAGE`` names. Invariant: only existing files are opened; a search never creates one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from agentlightning.plugins.manager import Plugins
from agentlightning.plugins.stores import open_store
from agentlightning.redaction import redacted
from agentlightning.store.base import Store
from agentlightning.store.places import store_place
from agentlightning.types import UsageError

RUNS_FOLDER = Path("runs")
"""Where ``agl train`` puts runs unless its configuration says otherwise."""
STORE = "store.sqlite"
ALL = 1_000_000
"""Limit of a query that returns all rollouts or runs."""
_SHOWN = 8


class NoSuchRun(UsageError, LookupError):
    """No run has the name; the message says which places were searched and which runs there are."""


class RunLocation(NamedTuple):
    """A store, and a run in it."""

    store: str
    """What ``open_store`` takes."""
    folder: Path | None = None
    """The run's folder, if the store lies in one: checkpoints and the exported policy are there."""
    run: str | None = None
    """A run id or its beginning; ``None``: the only one of the store."""


def find_run(what: str, store: str | None = None) -> RunLocation:
    """Return the location of one run. ``what``: run id or its beginning, run folder, store file or URL; with
    ``store`` an id in that store. Raise :class:`NoSuchRun`, which lists the known runs.
    """
    if store is not None:
        return _store(store)._replace(run=what)
    if found := _locate(what):
        return found
    path = Path(what).expanduser()
    if not path.is_dir():
        return _by_name(what)
    if inner := [str(place.folder) for place in stores_in(path)]:
        raise NoSuchRun(f"{path} holds {len(inner)} runs: name one{_listed(inner)}")
    raise _storeless(path)


def stores(where: str | None = None) -> list[RunLocation]:
    """Return the stores of a runs folder (newest run first), or the one store that a file or URL is.

    ``None``: the stores of ``runs/`` and that of ``AGL_STORAGE``.
    """
    if where is None:
        kept = store_place()
        return [*stores_in(RUNS_FOLDER), *([_store(kept)] if kept else [])]
    if found := _locate(where):
        return [found]
    path = Path(where).expanduser()
    if not path.is_dir():
        raise NoSuchRun(f"{where}: there is no such folder, file or store")
    return stores_in(path)


def places_of(what: str | None) -> tuple[list[RunLocation], str | None]:
    """Return the stores of a place, and the beginning of the id of the one run that is meant, ``None``: all.

    ``what``: what :func:`stores` takes, or what :func:`find_run` takes.
    """
    try:
        return stores(what), None
    except NoSuchRun as nowhere:
        try:
            found = find_run(what or "")
        except NoSuchRun as error:
            raise (error if "beginning of" in str(error) else nowhere) from None
        return [found], found.run


def stores_in(root: Path) -> list[RunLocation]:
    """Return the store of each folder of ``root`` that has one, newest first by name (a time)."""
    files = sorted(root.glob(f"*/{STORE}"), reverse=True)
    return [RunLocation(str(file), file.parent, file.parent.name) for file in files]


def match_name(names: Iterable[str], what: str | None, where: str) -> str:
    """Return the name equal to ``what``, or the only one that begins with it; ``None`` means the only name.
    Raise :class:`NoSuchRun` otherwise.
    """
    known = list(names)
    if what is None:
        if len(known) == 1:
            return known[0]
        if not known:
            raise NoSuchRun(f"{where} holds no run")
        raise NoSuchRun(f"{where} holds {len(known)} runs: name one with --run{_listed(known)}")
    if what in known:
        return what
    found = [name for name in known if name.startswith(what)]
    if len(found) == 1:
        return found[0]
    if found:
        raise NoSuchRun(f"{what!r} is the beginning of {len(found)} runs in {where}{_listed(found)}")
    raise NoSuchRun(f"{where} holds no run {what!r}{_listed(known)}")


def _by_name(what: str) -> RunLocation:
    places = {place.run: place for place in stores_in(RUNS_FOLDER) if place.run}
    kept = store_place()
    if kept and not any(name.startswith(what) for name in places):
        return _store(kept)._replace(run=what)
    try:
        return places[match_name(places, what, f"{RUNS_FOLDER}/")]
    except NoSuchRun as error:
        if (RUNS_FOLDER / what).is_dir():
            raise _storeless(RUNS_FOLDER / what) from None
        problem = str(error)
        if not places:
            problem = f"there is no run {what!r}: {RUNS_FOLDER.absolute()} holds none"
        raise NoSuchRun(f"{problem}; or give the run's folder, or the store that holds it") from None


def _storeless(path: Path) -> NoSuchRun:
    return NoSuchRun(f"{path} holds no {STORE}: give the run's id or folder, or the store that holds it")


def _locate(place: str) -> RunLocation | None:
    """Return the store that a URL, a file or a run's folder is; ``None`` if it is none."""
    if "://" in place:
        return RunLocation(place)
    path = Path(place).expanduser()
    file = path / STORE if path.is_dir() else path
    if not file.is_file():
        return None
    folder = file.parent if file.name == STORE else None  # a store elsewhere lies in no run's folder
    return RunLocation(str(file), folder, path.name if path.is_dir() else None)


def _store(place: str) -> RunLocation:
    """Return the store that the user named; it must exist."""
    if found := _locate(place):
        return found
    raise NoSuchRun(f"{place}: there is no such store; give a SQLite file, a folder with {STORE}, or a URL")


def _listed(names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ": " + ", ".join(names[:_SHOWN]) + more


# ----------------------------------------------------------------------------------------------- in its store
class StoredRun(NamedTuple):
    """A run's record in its store."""

    run_id: str
    info: dict[str, Any]
    """What the trainer wrote at the start, with ``create_time`` and ``update_time``."""
    folder: Path | None


@asynccontextmanager
async def opened(
    place: str, plugins: Plugins | None = None, *, read_only: bool = True
) -> AsyncIterator[Store]:
    """Open the store at ``place``, to read unless said otherwise, and close it at the end."""
    store = open_store(place, read_only=read_only, plugins=plugins)
    try:
        yield store
    finally:
        await store.close()


async def run_at(store: Store, place: RunLocation) -> StoredRun:
    """Return the run at ``place``, in its open store. Raise :class:`NoSuchRun`."""
    infos = {info["run_id"]: info for info in await store.query_runs(limit=ALL)}
    copied = place.folder is not None and place.run == place.folder.name and len(infos) == 1
    wanted = None if copied else place.run  # a folder may have been renamed
    run_id = match_name(infos, wanted, redacted(place.store))
    mine = place.folder is not None and (len(infos) == 1 or place.folder.name == run_id)
    return StoredRun(run_id, infos[run_id], place.folder if mine else None)
