"""Read a user's dataset into a list of tasks, or refuse it by the name of its kind.

A list of plain values is taken as it is. Files, tables of other libraries and map-style datasets are read
here, without importing their libraries. Invariant: only objects that yield tasks are iterated, none that
yields characters of a path, names of splits, or batches.
"""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence, Set as AbstractSet
from pathlib import Path
from typing import Any

from agentlightning.algorithms.rollouts.batching import DatasetError, check_tasks
from agentlightning.types.base import NotJSON, decode_json, read_json_lines

MAX_TASKS = 1_000_000
"""Most tasks that are read from an iterator, which may be endless."""
TABLES = {"DataFrame": ("to_dicts", "to_dict"), "Table": ("to_pylist",), "RecordBatch": ("to_pylist",)}
"""Table classes of pandas, polars and pyarrow → methods that return rows; the first that exists is used."""


def read_dataset(given: Any, name: str) -> list[Any]:
    """Return the tasks of ``given``, each plain JSON; ``None`` is empty. ``name``: the dataset's, for errors.

    Raises :class:`DatasetError` that names what was given and what to give instead.
    """
    tasks = tasks_of(given, name)
    check_tasks(tasks, name)
    return tasks


def read_file(path: Path, name: str) -> list[Any]:
    """Return the tasks of a file; its ending names the format."""
    reader = READERS.get(path.suffix.lower())
    if not path.exists():
        hub = f"; of the Hugging Face hub: datasets.load_dataset({path.as_posix()!r}, split='train')"
        named = reader is None and not path.is_absolute()
        raise DatasetError(f"{name}: there is no file {path}{hub if named else ''}")
    if path.is_dir():
        raise DatasetError(
            f"{name}: {path} is a folder: give a file ({_endings()}), or datasets.load_from_disk(…) and of "
            "its splits one"
        )
    if reader is None:
        raise DatasetError(f"{name}: {path} ends in {path.suffix or 'nothing'!r}: known are {_endings()}")
    try:
        return reader(path, name)
    except NotJSON as error:
        raise DatasetError(f"{name}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        hint = ": save it as UTF-8" if isinstance(error, UnicodeDecodeError) else ""
        raise DatasetError(f"{name}: {path} cannot be read: {error}{hint}") from None


def tasks_of(given: Any, name: str) -> list[Any]:
    """Return the tasks as :func:`read_dataset` does, without checking each task."""
    if given is None:
        return []
    if type(given) in (list, tuple):
        return list(given)
    if isinstance(given, str | Path):
        return read_file(Path(given).expanduser(), name)
    kind = type(given).__name__
    if (rows := _rows(given)) is not None:
        return rows
    if (why := _unusable(given)) is not None:
        article = "an" if kind[:1] in "aeiouAEIOU" else "a"
        raise DatasetError(f"{name}: this is {article} {kind}{why}")
    if isinstance(given, Iterable) and not (_has_length(given) and hasattr(given, "__getitem__")):
        return _bounded(given, name)
    if isinstance(given, Sequence) or _library(given) == "datasets":
        return list(given)
    return [given[position] for position in range(len(given))]  # a map-style dataset of torch


def _rows(given: Any) -> list[Any] | None:
    """Return the rows of another library's table, or the values of its column or array."""
    library, kind = _library(given), type(given).__name__
    if library in ("pandas", "polars", "pyarrow"):
        for method in TABLES.get(kind, ()):
            if hasattr(given, method):
                make: Callable[..., list[Any]] = getattr(given, method)
                return make("records") if method == "to_dict" else make()
    if library in ("numpy", "pandas", "polars") and kind in ("ndarray", "Series"):
        values: list[Any] = (given.tolist if hasattr(given, "tolist") else given.to_list)()
        return values
    return None


def _unusable(given: Any) -> str | None:
    """Return why an object is no list of tasks and what to pass instead; ``None`` if it may be one."""
    if isinstance(given, Mapping):
        names = [str(key) for key in itertools.islice(given, 4)]
        lists = all(_has_length(value) and not isinstance(value, str | bytes) for value in given.values())
        if names and (lists or type(given).__name__.endswith("DatasetDict")):
            return f" with the splits {', '.join(names)}: give one of them, e.g. data[{names[0]!r}]"
        return ": give a list of tasks, e.g. [task] for one"
    if isinstance(given, bytes | bytearray | AbstractSet):
        return ", which has no tasks in an order: give a list of tasks"
    if type(given).__name__ == "DataLoader":
        return ", which yields batches: give its dataset, data.dataset"
    if isinstance(given, AsyncIterable):
        return ": read it first, [task async for task in data]"
    if isinstance(given, Iterable) or (_has_length(given) and hasattr(given, "__getitem__")):
        return None
    return ": give a list of tasks, a file, or an object with __len__ and __getitem__"


def _bounded(given: Iterable[Any], name: str) -> list[Any]:
    """Return the tasks of an iterator. Raise :class:`DatasetError` if it has too many."""
    tasks = list(itertools.islice(given, MAX_TASKS + 1))
    if len(tasks) > MAX_TASKS:
        raise DatasetError(
            f"{name}: this {type(given).__name__} has more than {MAX_TASKS:,} tasks and may have no end: "
            "give list(itertools.islice(data, n)), or a list"
        )
    return tasks


def _has_length(given: Any) -> bool:
    return hasattr(given, "__len__")


def _library(given: Any) -> str:
    """The top-level package of an object's class, without importing it."""
    return type(given).__module__.partition(".")[0]


# ------------------------------------------------------------------------------------------------------ files
def _json(path: Path, name: str) -> list[Any]:
    """Read one list of tasks."""
    found = decode_json(path.read_text(encoding="utf-8-sig"), str(path))
    if not isinstance(found, list):
        raise DatasetError(
            f"{name}: {path} holds a {type(found).__name__}, not a list of tasks; one task a line is .jsonl"
        )
    return found


def _jsonl(path: Path, name: str) -> list[Any]:
    """Read a task from each line."""
    return read_json_lines(path)


def _csv(path: Path, name: str) -> list[Any]:
    """Read a task from each line after the first, which holds the names; all values are strings."""
    rows: list[dict[str, str]] = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        limit = csv.field_size_limit(max(csv.field_size_limit(), path.stat().st_size))  # it is the module's
        reader = csv.reader(file, strict=True)
        try:
            names = next(reader, [])
            if twice := [one for one, times in Counter(names).items() if times > 1]:
                listed = ", ".join(map(repr, twice))
                raise DatasetError(
                    f"{name}: {path}:1: names {listed} more than once: rename one of the columns"
                )
            for values in filter(None, reader):
                if len(values) != len(names):
                    raise DatasetError(
                        f"{name}: {path}:{reader.line_num}: has {len(values)} values; the first line names "
                        f"{len(names)}"
                    )
                rows.append(dict(zip(names, values, strict=True)))
        except csv.Error as error:
            raise DatasetError(f"{name}: {path}:{reader.line_num}: not valid CSV: {error}") from None
        finally:
            csv.field_size_limit(limit)
    return rows


def _parquet(path: Path, name: str) -> list[Any]:
    """Read a task from each row."""
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise DatasetError(
            f"{name}: reading {path} needs pyarrow: pip install pyarrow, or convert the file to .jsonl"
        ) from None
    try:
        rows: list[Any] = parquet.read_table(path).to_pylist()
    except (ValueError, OSError) as error:
        raise DatasetError(f"{name}: {path} cannot be read: {error}") from None
    return rows


READERS: dict[str, Callable[[Path, str], list[Any]]] = {
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _parquet,
}


def _endings() -> str:
    return ", ".join(READERS)
