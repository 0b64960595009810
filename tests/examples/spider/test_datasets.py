"""Loaders: bundled questions, others from files and folders, the split, errors that name their place."""

from __future__ import annotations

import builtins
import json
import re
import shutil
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentlightning.algorithms.tasks import DatasetError
from spider import selfcheck
from spider.databases import BUNDLED, databases_of, find
from spider.datasets import load, split_of
from spider.questions import Question
from spider.selfcheck import check, main
from spider.sql.execution import SqlError, run
from spider.sql.matching import Verdict, match

ROW = {"id": "q1", "db_id": "people", "question": "How many?", "query": "SELECT count(*) FROM person"}


@pytest.fixture
def folder(tmp_path: Path, people: Path) -> Path:
    (tmp_path / "set" / "database").mkdir(parents=True)
    shutil.copy(people, tmp_path / "set" / "database" / "people.sqlite")
    return tmp_path / "set"


def _file(folder: Path, *rows: Mapping[str, Any]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_the_bundled_questions() -> None:
    questions = load("dev")
    assert len(questions) == 532 == len({question["id"] for question in questions})
    assert len({question["db_id"] for question in questions}) == 13
    assert all(question["folder"] == "" and question["kind"] == "" for question in questions)
    assert load("dev", limit=3) == questions[:3]


def test_no_gold_sql_is_on_both_sides_of_the_split() -> None:
    train, held = load("dev", split="train"), load("dev", split="heldout")
    assert len(train) + len(held) == 532 and 60 < len(held) < 160
    sides: dict[tuple[str, str], set[str]] = defaultdict(set)
    for question in load("dev"):
        same = "".join(question["query"].lower().rstrip("; ").split())
        sides[question["db_id"], same].add(split_of(question))
    assert all(len(found) == 1 for found in sides.values())
    assert len(sides) < 320  # paraphrases


def test_a_question_asked_twice_is_held_out_once_and_never_trained(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where its gold SQL was written in two ways, so that the checksum puts them on both sides."""
    golds = [f"SELECT count(*) FROM person WHERE id > {n}" for n in range(40)]
    rows = [
        {**ROW, "id": f"q{n}", "question": f"How many, {n % 20}?", "query": q} for n, q in enumerate(golds)
    ]
    path = _file(folder, *rows)
    sides = {side: load(f"spider:{path}", split=side) for side in ("train", "heldout")}
    every = load(f"spider:{path}")
    by_checksum = {side: [q for q in every if split_of(q) == side] for side in sides}
    held = {q["question"] for q in by_checksum["heldout"]}
    assert held & {q["question"] for q in by_checksum["train"]}, "the checksum alone parts the two askings"
    assert len(sides["heldout"]) == len(held) == len({q["question"] for q in sides["heldout"]})
    assert not held & {q["question"] for q in sides["train"]}
    left_out = len(by_checksum["train"]) - len(sides["train"])
    assert f"{left_out} training questions were left out" in caplog.text


def test_jsonl_json_parquet_and_folders(folder: Path) -> None:
    (question,) = load(f"spider:{_file(folder, ROW)}")
    assert question == {**ROW, "kind": "", "folder": str(folder / "database")}
    assert databases_of(question) == [folder / "database" / "people.sqlite"]
    (folder / "more.json").write_text(json.dumps([{**ROW, "id": "q2"}]), encoding="utf-8")
    assert [q["id"] for q in load(f"spider:{folder}")] == ["q2", "q1"]


def test_parquet(folder: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is an optional dependency of the loaders")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist([ROW]), folder / "rows.parquet")
    assert load(f"spider:{folder / 'rows.parquet'}")[0]["query"] == ROW["query"]


def test_parquet_without_pyarrow_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_pyarrow(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_pyarrow)
    (folder / "rows.parquet").write_bytes(b"PAR1")
    with pytest.raises(DatasetError, match="pip install pyarrow"):
        load(f"spider:{folder / 'rows.parquet'}")


def test_databases_lie_where_the_public_archive_puts_them(folder: Path, people: Path) -> None:
    """One folder of its own for each, several files in it, or in ``test_database``."""
    (folder / "database" / "people.sqlite").unlink()
    own = folder / "test_database" / "people"
    own.mkdir(parents=True)
    for name in ("other", "people"):
        shutil.copy(people, own / f"{name}.sqlite")
    (question,) = load(f"spider:{_file(folder, ROW)}")
    assert databases_of(question) == [own / "people.sqlite", own / "other.sqlite"]
    (elsewhere,) = load(f"spider:{folder}", databases=str(people.parent))
    assert databases_of(elsewhere) == [people]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"db_id": None}, "row 2: field 'db_id' is missing"),
        ({"db_id": "zoo"}, "row 2: field 'db_id': no database 'zoo' in .*databases="),
        ({"db_id": "../people"}, "row 2: '../people' is no name of a database"),
        ({"question": ""}, "row 2: field 'question' must be a text"),
        ({"query": 3}, "row 2: field 'query' must be a text"),
    ],
)
def test_a_malformed_row_names_file_row_and_field(folder: Path, change: dict[str, Any], message: str) -> None:
    path = _file(folder, ROW, {**ROW, **change})
    with pytest.raises(DatasetError, match=rf"rows\.jsonl, {message}"):
        load(f"spider:{path}")


def test_unknown_names_files_and_limits(folder: Path, tmp_path: Path) -> None:
    for spec in ("bird", "spider", "spider:"):
        with pytest.raises(DatasetError, match="choose generated:train"):
            load(spec)
    with pytest.raises(DatasetError, match="there is no file"):
        load(f"spider:{folder / 'nothing.jsonl'}")
    with pytest.raises(DatasetError, match=r"there is no \.jsonl"):
        load(f"spider:{folder / 'database'}")
    with pytest.raises(DatasetError, match="splits 'train' and 'heldout'"):
        load("generated:test")
    with pytest.raises(DatasetError, match="0 or more"):
        load("dev", limit=-1)
    (folder / "broken.jsonl").write_text("{\n", encoding="utf-8")
    with pytest.raises(DatasetError, match=r"broken\.jsonl:1: not valid JSON"):
        load(f"spider:{folder / 'broken.jsonl'}")


def test_a_missing_database_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"zoo\.sqlite nor .*zoo/\*\.sqlite"):
        find("zoo", tmp_path)
    for name in ("", "..", "a/b"):
        with pytest.raises(ValueError, match="no name of a database"):
            find(name, tmp_path)


@pytest.mark.nightly
def test_the_self_check_accepts_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "gold self-check: 4976 questions, 0 failed"


def test_the_self_check_accepts_a_good_gold_and_finds_a_broken_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(_file(folder, ROW))]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "gold self-check: 1 questions, 0 failed"
    path = _file(folder, ROW, {**ROW, "id": "bad", "query": "SELECT x FROM person"})
    assert main([str(path)]) == 1
    assert "bad: people.sqlite: the gold query 'SELECT x FROM person' fails" in capsys.readouterr().out
    assert check([]).questions == 0


def test_the_self_check_finds_a_lenient_rule(people: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules that leave out DISTINCT, or look at nothing but the number of rows, are named."""

    def without_distinct(gold: str, predicted: str, databases: list[Path]) -> Verdict:
        return match(*(re.sub(r"(?i)\bdistinct\b", "", sql) for sql in (gold, predicted)), databases)

    def by_size(gold: str, predicted: str, databases: list[Path]) -> Verdict:
        try:
            sizes = [len(run(databases[0], sql).rows) for sql in (gold, predicted)]
        except SqlError:
            return Verdict(False)
        return Verdict(sizes[0] == sizes[1])

    gold = "SELECT DISTINCT age FROM person"
    question = Question(id="q", db_id="people", question="?", query=gold, kind="", folder="")
    monkeypatch.setattr(selfcheck, "databases_of", lambda question: [people])
    assert check([question]).failures == []
    monkeypatch.setattr(selfcheck, "match", without_distinct)
    assert any("mutant 'DISTINCT left out' was accepted" in failure for failure in check([question]).failures)
    monkeypatch.setattr(selfcheck, "match", by_size)
    failures = " ".join(check([question]).failures)
    for name in ("off by one, more", "off by one, less", "sign", "unit"):
        assert f"the mutant {name!r} was accepted" in failures


def test_the_bundled_databases_are_those_that_are_used() -> None:
    from spider.questions import DATABASES

    used = {question["db_id"] for question in load("dev")} | set(DATABASES)
    assert {path.stem for path in BUNDLED.iterdir()} == used
