"""The kinds of questions are read off their SQL, and the scripted editor keeps the template's placeholder."""

from __future__ import annotations

from collections import Counter

import pytest

from question_kinds import scripted
from question_kinds.agent import FIRST
from question_kinds.tasks import KINDS, held_out_tasks, kind_by_words, kind_of, load, train_tasks


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("SELECT count(*) FROM head WHERE age > 56", "count"),
        ("SELECT avg(age) FROM head", "average"),
        ("SELECT name FROM singer ORDER BY age DESC LIMIT 1", "most"),
        ("SELECT name, age FROM head", "list"),
        ("SELECT max(age) FROM head", None),
        ("SELECT name FROM a WHERE b IN (SELECT b FROM c)", None),
        ("SELECT count(*), name FROM a GROUP BY name", None),
    ],
)
def test_kind(query: str, kind: str | None) -> None:
    assert kind_of(query) == kind


def test_each_kind_has_the_same_number_and_no_question_is_in_both_sets() -> None:
    train, held_out = train_tasks(), held_out_tasks()
    assert set(Counter(task["answer"] for task in train).values()) == {10}
    assert Counter(task["answer"] for task in held_out) == dict.fromkeys(KINDS, 20)
    assert not {task["question"] for task in train} & {task["question"] for task in held_out}
    assert train == train_tasks()
    with pytest.raises(ValueError, match="multiple of 4"):
        load("train", 5)
    with pytest.raises(ValueError, match="fewer than"):
        load("held-out", 400)


def test_nine_words_name_the_kind_of_79_of_80_held_out_questions() -> None:
    """The figure beside that of the searched prompt."""
    assert sum(kind_by_words(task["question"]) == task["answer"] for task in held_out_tasks()) == 79


def test_the_editor_moves_and_keeps_the_placeholder() -> None:
    prompts = {FIRST}
    for number in range(40):
        critique = f"Mistakes:\n- 'How many {number} of them are there?' is count, and list was answered"
        for prompt in list(prompts)[:8]:
            text = f"Prompt:\n<prompt>\n{prompt}\n</prompt>\n\nCritique:\n{critique}"
            new = scripted.editor({"messages": [{"role": "user", "content": text}]})
            body = new.removeprefix("<prompt>").removesuffix("</prompt>")
            assert body.format(question="Q?").count("Q?") == 1
            prompts.add(body)
    assert len(prompts) > 8
