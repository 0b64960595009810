"""What is read of a model's card."""

from __future__ import annotations

import pytest

from agl_local.policy.card import read_card

BODY = """# Title

<div align="center"><img src="x"></div>

![a picture](https://pictures.example/x.png)

## Table of contents

1. [Summary](#summary)

## Summary

**Some** is a [family](https://some.example) of models
that answer questions.

Another paragraph of four words.
"""


@pytest.mark.parametrize(
    ("front", "licence"),
    [
        ("license: mit", "mit"),
        ("license: [mit, apache-2.0]", "mit, apache-2.0"),
        ("license: other\nlicense_name: ours\nlicense_link: LICENSE", "ours, LICENSE"),
        ("license: other", "other"),
        ("language: en", "the model's card names none"),
        ("license: [unclosed", "the model's card names none"),
        ("just words", "the model's card names none"),
        ('license: "\\e[31mred\\nmit"', "[31mred mit"),
    ],
)
def test_the_licence(tmp_path, front, licence):
    path = tmp_path / "README.md"
    path.write_text(f"---\n{front}\n---\n{BODY}", encoding="utf-8")
    assert read_card(path).licence == licence


def test_the_first_paragraph_of_prose(tmp_path):
    path = tmp_path / "README.md"
    for front in ("---\nlicense: mit\n---\n", ""):
        path.write_text(front + BODY, encoding="utf-8")
        assert read_card(path).about == "Some is a family of models that answer questions."


def test_a_long_paragraph_is_cut_at_a_word(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("many words " * 100, encoding="utf-8")
    about = read_card(path).about
    assert about.endswith(("many …", "words …")) and len(about) <= 302


def test_no_card(tmp_path):
    card = read_card(tmp_path / "README.md")
    assert (card.licence, card.about) == ("the model's card names none", "")
