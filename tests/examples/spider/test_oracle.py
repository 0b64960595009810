"""The scripted stand-ins, as a model server would call them; and the agent's texts."""

from __future__ import annotations

import random

import pytest

from spider.databases import databases_of
from spider.datasets import load
from spider.headroom import chance, forms, oracle, query_by_forms
from spider.oracle import Gold, question_of, reply, stumbles, tables_of
from spider.prompts import RIGHT, WRONG, fenced, is_right, query_in, to_check, to_rewrite, to_write
from spider.questions import Question, generate
from spider.sql.execution import SqlError, run
from spider.sql.matching import match
from spider.sql.schema import describe, quoted, read

TASKS = [*load("dev"), *generate("heldout", 240)]
BUDGETS = [(2_048, 3), (1_000, 0), (120, 0)]


@pytest.mark.parametrize(("chars", "rows"), BUDGETS[:2])
def test_the_oracle_knows_every_question_whatever_of_the_schema_it_is_shown(chars: int, rows: int) -> None:
    gold = Gold(TASKS)
    for task in TASKS:
        database = databases_of(task)[0]
        prompt = to_write(describe(database, chars, rows), task["question"])
        assert gold.query(prompt) == task["query"]


def test_it_writes_stumbles_reviews_and_corrects() -> None:
    gold = Gold(TASKS)
    stumbled = 0
    for task in TASKS[::7]:
        database, question, query = databases_of(task)[0], task["question"], task["query"].strip()
        schema = describe(database)
        first = query_in(reply(to_write(schema, question), gold))
        if stumbles(question):
            stumbled += 1
            with pytest.raises(SqlError):
                run(database, first)
            review = reply(to_check(schema, question, first, "Error: x"), gold)
            assert not is_right(review)
            assert query_in(reply(to_rewrite(schema, question, first, "Error: x", review), gold)) == query
        else:
            assert first == query
        assert is_right(reply(to_check(schema, question, query, "1 row"), gold))
    assert stumbled > 10
    with pytest.raises(KeyError, match="does not know the question 'What now"):
        reply(to_write("", "What now?"), gold)
    with pytest.raises(ValueError, match="no prompt of the agent"):
        reply([{"role": "system", "content": "Hello"}, *to_write("", TASKS[0]["question"])[1:]], gold)
    with pytest.raises(ValueError, match="no question"):
        question_of([])


def test_one_question_of_two_databases_has_two_answers() -> None:
    tasks: list[Question] = [
        {
            "id": "1",
            "db_id": name,
            "question": "How many?",
            "query": f"SELECT {name!r}",
            "kind": "",
            "folder": "",
        }
        for name in ("loan_1", "wine_1")
    ]
    gold = Gold(tasks)
    for task in tasks:
        assert gold.query(to_write(describe(databases_of(task)[0]), "How many?")) == task["query"]


@pytest.mark.parametrize(("chars", "rows"), BUDGETS)
def test_chance_takes_some_column_of_some_table(chars: int, rows: int) -> None:
    script = chance(TASKS)
    for task in TASKS[::29]:
        database = databases_of(task)[0]
        if chars == 120 and "left out" in describe(database, chars, rows):
            continue
        prompt = to_write(describe(database, chars, rows), task["question"])
        assert [name for name, _ in tables_of(prompt)] == [quoted(table.name) for table in read(database)]
        answer = script({"messages": prompt})
        assert answer == script({"messages": prompt})
        run(database, query_in(answer))
    assert is_right(script({"messages": to_check("", "x", "y", "z")}))


def test_the_factories_share_their_tasks() -> None:
    script = oracle(TASKS)
    task = next(task for task in TASKS if not stumbles(task["question"]))
    prompt = to_write(describe(databases_of(task)[0]), task["question"])
    assert script({"messages": prompt}) == fenced(task["query"])


# ---------------------------------------------------------------------------------------------- the texts
@pytest.mark.parametrize(
    ("judgement", "expected"),
    [
        (f"{RIGHT}.", True),
        (f"{WRONG}.", False),
        (f"I would not say {WRONG}. {RIGHT}.", True),
        (f"First I thought {RIGHT}, but: {WRONG}.", False),
        ("Fine.", False),
        ("", False),
        (RIGHT.lower(), False),
    ],
)
def test_the_last_verdict_counts_and_none_is_no_approval(judgement: str, expected: bool) -> None:
    assert is_right(judgement) is expected


def test_the_last_fenced_block_is_the_query() -> None:
    assert query_in("```sql\nSELECT 1\n```\nor\n```\nSELECT 2\n```") == "SELECT 2"
    assert query_in("```SQLite\n SELECT 1 \n\n```") == "SELECT 1"
    assert query_in(" SELECT 3 ") == "SELECT 3"
    assert query_in("I give up", otherwise="SELECT 4") == "SELECT 4"
    assert query_in("", otherwise="SELECT 4") == "SELECT 4"
    assert query_in("```sql\nSELECT 5", otherwise="SELECT 4") == "SELECT 4"
    for seed in range(50):
        query = "".join(random.Random(seed).choices("abc \n'`;", k=12)).strip().replace("```", "")
        assert query_in(fenced(query), otherwise="?") in (query.strip(), "?")


def test_two_dozen_patterns_answer_every_held_out_generated_question() -> None:
    """The figure beside that of the trained policy."""
    for task in load("generated:heldout", limit=252, seed=1):
        prompt = to_write(describe(databases_of(task)[0], 1_000, 0), task["question"])
        query = query_in(forms([])({"messages": prompt}))
        assert match(task["query"], query, databases_of(task)).reward == 1.0
    assert query_by_forms("What now?", []) == "SELECT 1"
