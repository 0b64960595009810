"""A prompt holds question and databases, and they can be read back from it."""

from __future__ import annotations

import pytest

from router.prompts import INSTRUCTION, parse, to_route

NAMES = ["singer", "car_1"]


def test_names() -> None:
    messages = to_route("Who sings?\nAnd where?", NAMES)
    assert messages == [
        {"role": "system", "content": INSTRUCTION},
        {"role": "user", "content": "Databases: singer, car_1\nQuestion: Who sings?\nAnd where?"},
    ]
    assert parse(messages) == ("Who sings?\nAnd where?", {"singer": "singer", "car_1": "car_1"})


def test_tables() -> None:
    messages = to_route("Who sings?", NAMES, "tables")
    assert messages[1]["content"].startswith("Databases:\n- singer: singer, song\n- car_1: continents, ")
    asked = parse(messages)
    assert asked.question == "Who sings?" and list(asked.shown) == NAMES
    assert asked.shown["singer"] == "singer: singer, song"


def test_no_database_is_shown_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError, match="no database 'zoo'"):
        to_route("?", ["zoo"], "tables")


@pytest.mark.parametrize("text", ["", "Hello", "Question: Who sings?", "Databases:\nQuestion: Who?"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no prompt of the router"):
        parse([{"role": "user", "content": text}])
    with pytest.raises(ValueError, match="no prompt of the router"):
        parse([])
