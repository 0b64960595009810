"""Datasets: every kind that a user may hand over is read into tasks, or refused by name with what to give."""

from __future__ import annotations

import csv
import itertools
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentlightning.algorithms.tasks import DatasetError, read_dataset

TASKS = [{"q": "1 + 1", "a": "2"}, {"q": "2 + 2", "a": "4"}]


def written(folder: Path, ending: str) -> Path:
    path = folder / f"tasks{ending}"
    if ending in (".jsonl", ".ndjson"):
        path.write_text("\n\n".join(map(json.dumps, TASKS)) + "\n", encoding="utf-8")
    elif ending == ".json":
        path.write_text(json.dumps(TASKS), encoding="utf-8")
    elif ending == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["q", "a"])
            writer.writeheader()
            writer.writerows(TASKS)
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(TASKS), path)
    return path


@pytest.mark.parametrize("ending", [".jsonl", ".ndjson", ".json", ".csv", ".parquet"])
@pytest.mark.parametrize("as_text", [True, False])
def test_files_are_read_by_their_ending(ending: str, as_text: bool, tmp_path: Path) -> None:
    path = written(tmp_path, ending)
    assert read_dataset(str(path) if as_text else path, "training tasks") == TASKS


@pytest.mark.parametrize("ending", [".jsonl", ".json", ".csv"])
def test_files_of_other_programs_are_read_whole(ending: str, tmp_path: Path) -> None:
    """U+2028 and U+0085 end no line, a byte order mark is no text, a cell has no limit."""
    tasks = [{"q": "one\u2028two\u0085three\x0bfour"}, {"q": "x" * 300_000}]
    path = tmp_path / f"tasks{ending}"
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        if ending == ".csv":
            writer = csv.DictWriter(file, ["q"])
            writer.writeheader()
            writer.writerows(tasks)
        elif ending == ".json":
            json.dump(tasks, file, ensure_ascii=False)
        else:
            file.writelines(json.dumps(task, ensure_ascii=False) + "\r\n" for task in tasks)
    before = csv.field_size_limit()
    assert read_dataset(path, "training tasks") == tasks
    assert csv.field_size_limit() == before


def test_any_iterable_without_places_is_read_in_its_order() -> None:
    assert read_dataset(dict(enumerate(TASKS)).values(), "training tasks") == TASKS
    assert read_dataset(map(dict, TASKS), "training tasks") == TASKS


def test_a_path_is_never_read_by_character(tmp_path: Path) -> None:
    with pytest.raises(
        DatasetError, match=r"training tasks: there is no file gsm8k; .*load_dataset\('gsm8k'"
    ):
        read_dataset("gsm8k", "training tasks")
    with pytest.raises(DatasetError, match=r"is a folder: give a file \(\.jsonl"):
        read_dataset(tmp_path, "training tasks")
    (tmp_path / "tasks.xml").touch()
    with pytest.raises(DatasetError, match=r"ends in '\.xml': known are \.jsonl"):
        read_dataset(tmp_path / "tasks.xml", "training tasks")


@pytest.mark.parametrize(
    ("ending", "text", "said"),
    [
        (".jsonl", '{"id": 1}\n{"id": \n', r"tasks\.jsonl:2: not valid JSON"),
        (".json", '{"data": []}', "holds a dict, not a list of tasks"),
        (".csv", "q,a\n1,2\n3\n", r"tasks\.csv:3: has 1 values; the first line names 2"),
        (".csv", "q,a\n1,2,3\n", r"tasks\.csv:2: has 3 values"),
        (".csv", "q,a,q\n1,2,3\n", r"tasks\.csv:1: names 'q' more than once: rename"),
        (".csv", 'q,a\n1,"2\n', r"tasks\.csv:2: not valid CSV"),
        (".parquet", "no parquet", r"tasks\.parquet cannot be read"),
    ],
)
def test_a_file_that_is_not_what_its_ending_says_is_named(
    ending: str, text: str, said: str, tmp_path: Path
) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    (tmp_path / f"tasks{ending}").write_text(text)
    with pytest.raises(DatasetError, match=said):
        read_dataset(tmp_path / f"tasks{ending}", "training tasks")


class MapStyle:
    """As torch's: a length and items, nothing else."""

    def __len__(self) -> int:
        return len(TASKS)

    def __getitem__(self, position: int) -> dict[str, str]:
        return TASKS[position]


class Streaming:
    def __iter__(self) -> Iterator[dict[str, str]]:
        return iter(TASKS)


def of_library(name: str, kind: str, **members: Any) -> Any:
    """An object of a class of that name, of a module that is not there."""
    return type(kind, (), {"__module__": f"{name}.core.frame", **members})()


@pytest.mark.parametrize(
    "given",
    [
        TASKS,
        tuple(TASKS),
        iter(TASKS),
        (task for task in TASKS),
        MapStyle(),
        Streaming(),
        of_library("pandas", "DataFrame", to_dict=lambda self, how: TASKS if how == "records" else {}),
        of_library("polars", "DataFrame", to_dicts=lambda self: TASKS),
        of_library("pyarrow", "Table", to_pylist=lambda self: TASKS),
        of_library("numpy", "ndarray", tolist=lambda self: TASKS),
        of_library(
            "datasets", "Dataset", __len__=lambda self: 2, __getitem__=None, __iter__=lambda self: iter(TASKS)
        ),
    ],
    ids=lambda given: type(given).__name__,
)
def test_what_holds_tasks_is_read(given: Any) -> None:
    assert read_dataset(given, "training tasks") == TASKS


def test_nothing_is_no_task() -> None:
    assert read_dataset(None, "held-out tasks") == read_dataset((), "held-out tasks") == []


async def asynchronous() -> AsyncIterator[int]:
    yield 1


class DataLoader(Streaming):
    pass


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"train": TASKS, "test": TASKS}, r"a dict with the splits train, test: .*data\['train'\]"),
        (
            type("IterableDatasetDict", (dict,), {})(train=Streaming()),
            r"an IterableDatasetDict with the splits train: give one of them, e\.g\. data\['train'\]",
        ),
        ({"q": "1 + 1"}, r"a dict: give a list of tasks, e\.g\. \[task\]"),
        ({1, 2}, "a set, which has no tasks in an order"),
        (b"[1]", "a bytes, which has no tasks"),
        (DataLoader(), r"a DataLoader, which yields batches: give its dataset"),
        (asynchronous(), r"an async_generator: read it first"),
        (7, "an int: give a list of tasks, a file"),
        ([{"q": object()}], r"task 0 is an object \(at \.q\)"),
    ],
)
def test_what_holds_none_is_refused_by_name(given: Any, said: str) -> None:
    with pytest.raises(DatasetError, match=rf"training tasks: .*{said}"):
        read_dataset(given, "training tasks")


def test_an_iterator_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentlightning.algorithms.tasks.MAX_TASKS", 10)
    with pytest.raises(DatasetError, match="this count has more than 10 tasks and may have no end"):
        read_dataset(itertools.count(), "training tasks")


def test_no_library_is_imported_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Watch:
        def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> None:
            asked.append(name.partition(".")[0])

    monkeypatch.setattr(sys, "meta_path", [Watch(), *sys.meta_path])
    read_dataset(written(tmp_path, ".csv"), "training tasks")
    read_dataset(MapStyle(), "training tasks")
    assert not {"pandas", "torch", "datasets", "numpy", "pyarrow", "polars"} & {*asked}


def test_real_tables_of_pyarrow_and_arrays_of_numpy() -> None:
    pyarrow, numpy = pytest.importorskip("pyarrow"), pytest.importorskip("numpy")
    assert read_dataset(pyarrow.Table.from_pylist(TASKS), "t") == TASKS
    assert read_dataset(numpy.arange(3), "t") == [0, 1, 2]


def test_real_datasets_of_torch() -> None:
    data = pytest.importorskip("torch.utils.data")
    assert read_dataset(data.Subset(TASKS, [1]), "t") == TASKS[1:]
    with pytest.raises(DatasetError, match="yields batches"):
        read_dataset(data.DataLoader(TASKS), "t")
