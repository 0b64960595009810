"""Loaders: each format, the splits, and errors that name file, line and field."""

from __future__ import annotations

import builtins
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentlightning.algorithms.tasks import DatasetError
from calc_x.datasets import READERS, SAMPLES, guess_format, load, read
from calc_x.grading import equal
from calc_x.oracle import expression_for

ROW: dict[str, dict[str, Any]] = {
    "svamp": {
        "ID": "c1",
        "Body": "A has 7",
        "Question": "How many?",
        "Equation": "( 9.0 - 2.0 )",
        "Answer": 7.0,
    },
    "gsm8k": {"question": "How many?", "answer": "It is <<500*2=1000>>1000.\n#### 1,000"},
    "aqua": {"question": "Which?", "options": ["A)1", "B)2"], "correct": "B"},
    "gsmhard": {"input": "How many?", "target": -5.5},
    "calcx": {"id": "c1", "question": "Which?", "result": "2/3", "source": "ape210k"},
}


def _file(folder: Path, *rows: Mapping[str, Any]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_svamp(tmp_path: Path) -> None:
    (problem,) = read(_file(tmp_path, ROW["svamp"]), "svamp")
    assert problem == {
        "id": "svamp-c1",
        "question": "A has 7. How many?",
        "result": "7",
        "source": "svamp",
        "kind": "",
        "expression": "9-2",
    }


def test_gsm8k_takes_the_gold_after_the_mark_without_commas(tmp_path: Path) -> None:
    (problem,) = read(_file(tmp_path, ROW["gsm8k"]), "gsm8k")
    assert (problem["result"], problem["expression"], problem["id"]) == ("1000", "500*2", "gsm8k-rows-1")


def test_aqua_lists_the_options_in_the_question(tmp_path: Path) -> None:
    (problem,) = read(_file(tmp_path, ROW["aqua"]), "aqua")
    assert problem["question"] == "Which?\nChoose one letter:\nA) 1\nB) 2"
    assert problem["result"] == "B"


def test_gsmhard_and_calcx(tmp_path: Path) -> None:
    assert read(_file(tmp_path, ROW["gsmhard"]), "gsmhard")[0]["result"] == "-5.5"
    problem = read(_file(tmp_path, ROW["calcx"]), "calcx")[0]
    assert (problem["id"], problem["result"], problem["source"]) == ("c1", "2/3", "ape210k")


@pytest.mark.parametrize("form", READERS)
def test_bundled_samples_load_and_their_format_is_recognised(form: str) -> None:
    problems = load(form)
    assert len(problems) >= {"svamp": 50, "gsm8k": 50}.get(form, 10)
    assert len({problem["id"] for problem in problems}) == len(problems)
    assert guess_format(SAMPLES / f"{form}.jsonl") == form
    assert load(form, limit=3) == problems[:3]


def test_the_oracle_expression_always_gives_a_number_gold() -> None:
    for form in ("svamp", "gsm8k", "gsmhard"):
        for problem in load(form):
            assert equal(expression_for(problem), problem["result"])


def test_a_file_splits_into_two_disjoint_parts() -> None:
    train, held = load("svamp", split="train"), load("svamp", split="heldout")
    assert len(train) + len(held) == len(load("svamp"))
    assert len(train) > len(held) > 0


def test_generated_spec() -> None:
    assert load("generated:heldout", limit=5, seed=2) == load("generated", limit=5, split="heldout", seed=2)
    assert len(load("generated:heldout")) == 256


def test_a_json_list_and_blank_lines_are_read(tmp_path: Path) -> None:
    listed = tmp_path / "rows.json"
    listed.write_text(json.dumps([ROW["svamp"]]), encoding="utf-8")
    assert len(load(f"svamp:{listed}")) == 1
    spaced = tmp_path / "rows.jsonl"
    spaced.write_text("\n" + json.dumps(ROW["svamp"]) + "\n\n", encoding="utf-8")
    assert len(load(f"svamp:{spaced}")) == 1


@pytest.mark.parametrize(
    ("form", "change", "message"),
    [
        ("svamp", {"Answer": None}, r"row 2: field 'Answer' is missing"),
        ("svamp", {"Answer": "7"}, r"row 2: field 'Answer' must be a number"),
        ("svamp", {"Body": 3}, r"row 2: field 'Body' must be a text"),
        ("gsm8k", {"answer": "It is 3."}, r"row 2: field 'answer' has no final answer"),
        ("gsm8k", {"question": ""}, r"row 2: field 'question' must be a text"),
        ("aqua", {"options": "A)1"}, r"row 2: field 'options' must be a list"),
        ("aqua", {"correct": "C"}, r"row 2: field 'correct' is 'C'"),
        ("gsmhard", {"target": True}, r"row 2: field 'target' must be a number"),
        ("calcx", {"result": None}, r"row 2: field 'result' is missing"),
    ],
)
def test_a_malformed_row_names_file_line_and_field(
    tmp_path: Path, form: str, change: dict[str, Any], message: str
) -> None:
    path = _file(tmp_path, ROW[form], {**ROW[form], **change})
    with pytest.raises(DatasetError, match=rf"rows\.jsonl, {message}"):
        load(f"{form}:{path}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "rows.jsonl:1: not valid JSON"),
        ('{"Answer": NaN}', "rows.jsonl:1: not valid JSON"),
        ("[1]", "row 1: is not an object"),
        ("3", "not an object"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text + "\n", encoding="utf-8")
    with pytest.raises(DatasetError, match=message):
        load(f"svamp:{path}")


def test_unknown_names_files_and_limits(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="unknown dataset 'mawps'"):
        load("mawps")
    with pytest.raises(DatasetError, match="there is no file"):
        load(f"svamp:{tmp_path / 'nothing.jsonl'}")
    with pytest.raises(DatasetError, match="splits 'train' and 'heldout'"):
        load("generated:test")
    with pytest.raises(DatasetError, match="0 or more"):
        load("svamp", limit=-1)
    other = _file(tmp_path, {"text": "?"})
    with pytest.raises(DatasetError, match="belong to none"):
        guess_format(other)


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without_pyarrow(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_pyarrow)
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(DatasetError, match="pip install pyarrow"):
        load(f"calcx:{path}")


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is an optional dependency of the loaders")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([ROW["calcx"]]), path)
    assert load(f"calcx:{path}")[0]["result"] == "2/3"
