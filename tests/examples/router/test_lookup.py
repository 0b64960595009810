"""Plain code answers a question only if its words spell out the whole query."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.databases import file_of
from router.datasets import questions
from router.lookup import answer, matches, plan
from spider.sql.matching import match
from spider.sql.schema import read

SINGER = read(file_of("concert_singer"))


@pytest.mark.parametrize(
    ("question", "query"),
    [
        ("How many singers do we have?", "SELECT count(*) FROM singer"),
        ("What is the total number of stadiums?", "SELECT count(*) FROM stadium"),
        ("List the name and the age of all singers.", "SELECT Name, Age FROM singer"),
        ("Show the age and name of each singer.", "SELECT Age, Name FROM singer"),
        ("What are the different countries of the singers?", "SELECT DISTINCT Country FROM singer"),
        ("How many singers are from France?", None),  # a condition
        ("What is the average age of all singers?", None),
        ("How many names of singers are there?", None),  # a column is counted in some way
        ("List all singers.", None),  # which columns?
        ("How many dogs are there?", None),
        ("", None),
    ],
)
def test_plan(question: str, query: str | None) -> None:
    assert plan(SINGER, question) == query


def test_matches_are_tables_and_columns_that_the_question_names() -> None:
    assert matches(SINGER, "Names of stadiums?") == ("stadium", "stadium.Name", "singer.Name")
    assert matches(SINGER, "Dogs?") == ()


def test_an_answer_is_for_a_person_to_read() -> None:
    place = file_of("concert_singer")
    assert answer(place, "How many singers do we have?").text == "1 row: count(*)\n6"
    found = answer(place, "Which dogs have an age?")
    assert found.query is None
    assert found.text == "The question names singer.Age; this agent has no query for it."
    assert "names no table or column" in answer(place, "Dogs?").text


def test_the_database_is_only_read(tmp_path: Path) -> None:
    place = tmp_path / "singer.sqlite"
    place.write_bytes(file_of("singer").read_bytes())
    place.chmod(0o444)
    assert answer(place, "How many singers are there?").text.startswith("1 row")
    assert [path.name for path in tmp_path.iterdir()] == ["singer.sqlite"]
    with pytest.raises(FileNotFoundError, match="zoo"):
        answer(tmp_path / "zoo.sqlite", "How many animals are there?")


def test_what_it_answers_of_the_development_questions() -> None:
    """The figures that the README gives."""
    answered = right = 0
    for question in questions("dev"):
        place = file_of(question["db_id"])
        if (query := plan(read(place), question["question"])) is not None:
            answered += 1
            right += match(question["query"], query, [place]).match
    assert (answered, right) == (28, 26)
