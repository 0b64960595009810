"""From a user's dataset to the rollouts of its tasks: reading, checking, batches, ids and seeds.

A list of plain values is taken as it is. Files, tables of other libraries and map-style datasets are read
here, without importing their libraries. Invariants: only objects that yield tasks are iterated, none that
yields characters of a path, names of splits, or batches; a task is plain JSON, so that an agent gets exactly
the dataset's item, wherever it runs; batches, ids and seeds are a function of (run seed, step, position), so
that the same run has the same tasks in the same order.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import math
import random
from collections import Counter
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from pathlib import Path
from typing import Any

import msgspec

from agentlightning.types import Mode, Rollout, RolloutConfig, UsageError
from agentlightning.types.base import NotJSON, decode_json, read_json_lines

PLAIN_JSON_HINT = "give plain JSON values (dict, list, str, numbers, bool, None)"
MAX_TASKS = 1_000_000
"""Most tasks that are read from an iterator, which may be endless."""
TABLES = {"DataFrame": ("to_dicts", "to_dict"), "Table": ("to_pylist",), "RecordBatch": ("to_pylist",)}
"""Table classes of pandas, polars and pyarrow → methods that return rows; the first that exists is used."""


class DatasetError(UsageError, ValueError):
    """A dataset with tasks that cannot be rolled out; the message names dataset and position."""


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


# -------------------------------------------------------------------------------------------- plain values
def check_tasks(tasks: Sequence[Any], name: str) -> None:
    """Raise :class:`DatasetError` unless every task is plain JSON; ``name``: the dataset's, for the error.

    Positions count from 0. Anything else (a dataclass, tuple, set, datetime, …) would reach the agent as
    another type than the dataset holds.
    """
    for position, task in enumerate(tasks):
        try:
            _check(task, f"{name}: task {position}", "")
        except RecursionError:
            raise DatasetError(
                f"{name}: task {position} contains itself, or is nested too deeply; {PLAIN_JSON_HINT}"
            ) from None


def _check(value: Any, task: str, path: str) -> None:
    kind = type(value)  # exact types: an IntEnum would come back as an int
    if kind is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _not_plain(task, "holds half of a surrogate pair", path) from None
    elif kind is dict:
        for key, inner in value.items():
            if type(key) is not str:
                raise _not_plain(task, f"has the key {key!r}, {_with_article(type(key))}", path)
            _check(inner, task, f"{path}.{key}")
    elif kind is list:
        for index, inner in enumerate(value):
            _check(inner, task, f"{path}[{index}]")
    elif kind is int:
        if not -(2**63) <= value < 2**64:
            raise _not_plain(task, "is an int of more than 64 bits", path)
    elif kind is float:
        if not math.isfinite(value):
            raise _not_plain(task, f"is the float {value}", path)
    elif value is not None and kind is not bool:
        raise _not_plain(task, f"is {_with_article(kind)}", path)


def _with_article(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'aeiouAEIOU' else 'a'} {kind.__name__}"


def _not_plain(task: str, what: str, path: str) -> DatasetError:
    return DatasetError(f"{task} {what}{f' (at {path})' if path else ''}; {PLAIN_JSON_HINT}")


# ------------------------------------------------------------------------------------- batches and rollouts
def stable_seed(*parts: object) -> int:
    """Return 63 bits made of the parts; equal parts give equal seeds on every machine."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def task_id(task: Any) -> str:
    """Return the task's own ``id``/``task_id``, else a digest of its content."""
    if isinstance(task, dict):
        for key in ("id", "task_id", "ID"):
            if key in task:
                return str(task[key])
    return hashlib.sha256(msgspec.json.encode(task, order="sorted")).hexdigest()[:16]


def task_batches(tasks: Sequence[Any], size: int, seed: int) -> Iterator[list[Any]]:
    """Yield batches without end: epoch after epoch, each shuffled by (seed, epoch). No task is left out at
    an epoch's end.
    """
    if not tasks:
        raise DatasetError("the training dataset is empty; training needs at least one task")
    return _endless(tasks, size, seed)


def repetition_warning(tasks: Sequence[Any], size: int) -> str | None:
    """Return a message if a batch is larger than the dataset and so holds tasks more than once."""
    if not 0 < len(tasks) < size:
        return None
    often = (
        f"{size // len(tasks)} times" if size % len(tasks) == 0 else f"up to {-(-size // len(tasks))} times"
    )
    return (
        f"a step draws {size} tasks and the dataset has {len(tasks)}: each is in it {often}, as groups of "
        f"their own; batch_size {len(tasks)} asks each once"
    )


def _endless(tasks: Sequence[Any], size: int, seed: int) -> Iterator[list[Any]]:
    pending: list[Any] = []
    epoch = 0
    while True:
        while len(pending) < size:
            order = list(tasks)
            random.Random(stable_seed(seed, "epoch", epoch)).shuffle(order)
            pending.extend(order)
            epoch += 1
        yield pending[:size]
        del pending[:size]


def group_rollouts(
    tasks: Sequence[Any],
    samples: int,
    *,
    run_id: str,
    name: str,
    seed: int,
    mode: Mode,
    resources_id: str | None,
    config: RolloutConfig | None = None,
    metadata: dict[str, Any] | None = None,
    numbers: Sequence[int] | None = None,
) -> list[Rollout]:
    """Return ``samples`` rollouts per task, one group for each task. Ids and seeds are functions of run,
    batch name and the task's number: its position in ``tasks``, or that of ``numbers``.
    """
    rollouts: list[Rollout] = []
    for position, task in zip(range(len(tasks)) if numbers is None else numbers, tasks, strict=True):
        group = f"{run_id}/{name}/{position}"
        for sample in range(samples):
            digest = hashlib.sha256(f"{group}/{sample}".encode()).hexdigest()[:16]
            rollouts.append(
                Rollout(
                    rollout_id=f"ro-{digest}",
                    input=task,
                    mode=mode,
                    run_id=run_id,
                    task_id=task_id(task),
                    group_id=group,
                    sample=sample,
                    seed=stable_seed(seed, name, position, sample),
                    resources_id=resources_id,
                    config=config or RolloutConfig(),
                    metadata=metadata or {},
                )
            )
    return rollouts
