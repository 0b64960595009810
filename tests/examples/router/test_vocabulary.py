"""Words are compared without plurals, cases and separators."""

from __future__ import annotations

import pytest

from router.vocabulary import content_words, schema_words, words


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Singer_ID", {"singer", "id"}),
        ("CarMakers", {"car", "maker"}),
        ("cre_Doc_Template_Mgt", {"cre", "doc", "template", "mgt"}),
        ("car_1", {"car"}),
        ("Which countries have two buses?", {"which", "country", "have", "two", "buse"}),
        ("classes, boxes, buses", {"class", "box", "buse"}),
        ("status, analysis, bus", {"status", "analysis", "bus"}),
        ("a 1 _ ", set()),
    ],
)
def test_words(text: str, found: set[str]) -> None:
    assert words(text) == found


def test_a_question_is_about_its_content_words() -> None:
    assert content_words("How many singers do we have?") == {"singer"}
    assert content_words("What was this?") == set()


def test_the_words_of_a_schema_are_those_of_all_its_names() -> None:
    assert {"singer", "song", "name", "citizenship", "sale"} <= schema_words("singer")
    with pytest.raises(FileNotFoundError, match="no database 'zoo'"):
        schema_words("zoo")
