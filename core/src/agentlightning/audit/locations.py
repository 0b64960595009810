"""Locate runs: from user input (an id, its beginning, a folder, a store) to a location.

Runs are looked for in ``runs/`` of the working directory, each in a folder of its own, and in the store that
``AGL_STORAGE`` names. Invariant: only existing files are opened; looking never creates one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from agentlightning.types import UsageError

RUNS_FOLDER = Path("runs")
"""Where ``agl train`` puts runs unless its configuration says otherwise."""
STORE = "store.sqlite"
_SHOWN = 8


class NoSuchRun(UsageError, LookupError):
    """No run has the name; the message says where it was looked for and what there is."""


class RunLocation(NamedTuple):
    """A store, and a run in it."""

    store: str
    """What ``open_store`` takes."""
    folder: Path | None = None
    """The run's folder, if the store lies in one: checkpoints and the exported policy are there."""
    run: str | None = None
    """A run id or its beginning; ``None``: the only one of the store."""


def find_run(what: str, store: str | None = None) -> RunLocation:
    """The place of one run. ``what``: run id or its beginning, run folder, store file or URL; with ``store``
    it is an id in that store. Raises :class:`NoSuchRun`, which lists the known runs.
    """
    if store is not None:
        return RunLocation(*_store(store), run=what)
    if "://" in what:
        return RunLocation(what)
    path = Path(what).expanduser()
    if path.is_file():
        return RunLocation(str(path), _folder_of(path))
    if path.is_dir():
        return _in_folder(path)
    return _by_name(what)


def stores(where: str | None = None) -> list[RunLocation]:
    """The stores of a runs folder (newest run first), or the one that a file or URL is.

    ``None``: those of ``runs/`` and the one of ``AGL_STORAGE``.
    """
    if where is None:
        kept = os.environ.get("AGL_STORAGE")
        return [*map(_run_place, run_folders(RUNS_FOLDER)), *([RunLocation(*_store(kept))] if kept else [])]
    if "://" in where:
        return [RunLocation(where)]
    path = Path(where).expanduser()
    if path.is_file():
        return [RunLocation(str(path), _folder_of(path))]
    if not path.is_dir():
        raise NoSuchRun(f"{where}: there is no such folder, file or store")
    if (path / STORE).is_file():
        return [_run_place(path)]
    return [_run_place(folder) for folder in run_folders(path)]


def run_folders(root: Path) -> list[Path]:
    """Folders of ``root`` that hold a store, newest name first (names begin with the time)."""
    if not root.is_dir():
        return []
    return sorted((p.parent for p in root.glob(f"*/{STORE}")), key=lambda p: p.name, reverse=True)


def match_name(names: Iterable[str], what: str | None, where: str) -> str:
    """The name equal to ``what``, or the only one that begins with it; :class:`NoSuchRun` otherwise."""
    known = list(names)
    if what is None:
        if len(known) == 1:
            return known[0]
        raise NoSuchRun(
            f"{where} holds {len(known)} runs: name one with --run{_listed(known)}"
            if known
            else f"{where} holds no run"
        )
    if what in known:
        return what
    found = [name for name in known if name.startswith(what)]
    if len(found) == 1:
        return found[0]
    if found:
        raise NoSuchRun(f"{what!r} is the beginning of {len(found)} runs in {where}{_listed(found)}")
    raise NoSuchRun(f"{where} holds no run {what!r}{_listed(known)}")


def _by_name(what: str) -> RunLocation:
    folders = {folder.name: folder for folder in run_folders(RUNS_FOLDER)}
    kept = os.environ.get("AGL_STORAGE")
    if kept and not any(name.startswith(what) for name in folders):
        return RunLocation(*_store(kept), run=what)
    try:
        return _run_place(folders[match_name(folders, what, f"{RUNS_FOLDER}/")])
    except NoSuchRun as error:
        bare = RUNS_FOLDER / what
        if bare.is_dir():
            raise _storeless(bare) from None
        if not folders:
            raise NoSuchRun(
                f"there is no run {what!r}: {RUNS_FOLDER.absolute()} holds none; give the run's folder, "
                "or --store PLACE"
            ) from None
        raise NoSuchRun(f"{error}; or give the run's folder, or --store PLACE") from None


def _in_folder(path: Path) -> RunLocation:
    if (path / STORE).is_file():
        return _run_place(path)
    inner = [folder.name for folder in run_folders(path)]
    if inner:
        raise NoSuchRun(f"{path} holds {len(inner)} runs: name one{_listed([f'{path}/{n}' for n in inner])}")
    raise _storeless(path)


def _storeless(path: Path) -> NoSuchRun:
    return NoSuchRun(f"{path} holds no {STORE}: give the store of that run with --store PLACE")


def _run_place(folder: Path) -> RunLocation:
    return RunLocation(str(folder / STORE), folder, folder.name)


def _store(place: str) -> tuple[str, Path | None]:
    """A named store, which must exist, and its folder if it lies in a run's folder."""
    if "://" in place:
        return place, None
    path = Path(place).expanduser()
    file = path / STORE if path.is_dir() else path
    if not file.is_file():
        raise NoSuchRun(
            f"{place}: there is no such store; give a SQLite file, a folder with {STORE}, or a URL"
        )
    return str(file), _folder_of(file)


def _folder_of(file: Path) -> Path | None:
    """The folder of a store file, as the run's: the runs of a store elsewhere have none of their own here."""
    return file.parent if file.name == STORE else None


def _listed(names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ": " + ", ".join(names[:_SHOWN]) + more
