"""``sql-generation``: questions about a small database; the answer is a SELECT, which is run."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from typing import Any

from agl_examples.bundled.task_set import Task, TaskSet

SCHEMA = """CREATE TABLE city (name TEXT, country TEXT, population INTEGER, coastal INTEGER);
CREATE TABLE country (name TEXT, continent TEXT, area INTEGER);"""
_ROWS = """
INSERT INTO country VALUES ('Norway','Europe',385),('Peru','America',1285),('Japan','Asia',378),
('Kenya','Africa',580);
INSERT INTO city VALUES ('Oslo','Norway',700,1),('Bergen','Norway',290,1),('Lima','Peru',10000,1),
('Cusco','Peru',430,0),('Tokyo','Japan',14000,1),('Kyoto','Japan',1460,0),('Nairobi','Kenya',4400,0),
('Mombasa','Kenya',1200,1);"""
STEPS = 200_000
"""Instructions of SQLite that a query may take."""
LIMIT = 1_000
"""Rows that a query may return."""
BYTES = 100_000
"""Bytes of a text or blob that a query may make."""
_COUNTRIES = ("Norway", "Peru", "Japan", "Kenya")
_CONTINENTS = ("Europe", "America", "Asia", "Africa")


def sql_generation() -> TaskSet:
    """Return the set: questions made of templates, each with its query."""
    made = [_task(question, sql) for question, sql in _questions()]
    return TaskSet(
        name="sql-generation",
        train=[task for index, task in enumerate(made) if index % 3],
        val=made[::3],
        grade=grade,
        gold=lambda task: f"```sql\n{task['answer']}\n```",
    )


def _questions() -> list[tuple[str, str]]:
    found = []
    for country in _COUNTRIES:
        of = f"FROM city WHERE country = '{country}'"
        found += [
            (f"How many cities are in {country}?", f"SELECT count(*) {of}"),
            (f"What is the population of all cities in {country} together?", f"SELECT sum(population) {of}"),
            (
                f"Which city of {country} is the largest?",
                f"SELECT name {of} ORDER BY population DESC LIMIT 1",
            ),
            (f"Which cities of {country} are coastal?", f"SELECT name {of} AND coastal = 1"),
        ]
    for least in (300, 1000, 5000):
        found.append(
            (
                f"How many cities have more than {least} people?",
                f"SELECT count(*) FROM city WHERE population > {least}",
            )
        )
    joined = "FROM city JOIN country ON city.country = country.name WHERE continent ="
    found += [(f"Which cities are in {c}?", f"SELECT city.name {joined} '{c}'") for c in _CONTINENTS]
    return found


def _task(question: str, sql: str) -> Task:
    asked = f"{SCHEMA}\n\n{question} Answer with one SELECT in a ```sql block."
    return {"set": "sql-generation", "question": asked, "answer": sql}


def grade(task: Mapping[str, Any], text: str) -> float:
    """Return 1.0 if the query of ``text`` returns the rows of the task's own, in any order unless the task
    orders them, else 0.0. A query runs in memory, may only read, and is stopped after :data:`STEPS`.
    """
    blocks = re.findall(r"```(?:sql)?\s*(.*?)```", text, re.DOTALL | re.IGNORECASE)
    wanted, found = _rows(task["answer"]), _rows(blocks[-1] if blocks else text)
    if found is None or wanted is None:
        return 0.0
    if "order by" not in str(task["answer"]).lower():
        wanted, found = sorted(wanted, key=repr), sorted(found, key=repr)
    return float(wanted == found)


def _rows(sql: str) -> list[tuple[Any, ...]] | None:
    """Return the rows of a query; ``None`` if it fails, writes, or takes too long."""
    database = sqlite3.connect(":memory:")
    try:
        database.executescript(SCHEMA + _ROWS)
        database.set_authorizer(_only_read)
        database.set_progress_handler(lambda: 1, STEPS)
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, BYTES)
        return database.execute(sql.strip().rstrip(";")).fetchmany(LIMIT)
    except (sqlite3.Error, sqlite3.Warning, ValueError):
        return None
    finally:
        database.close()


def _only_read(action: int, *about: Any) -> int:
    allowed = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION)
    return sqlite3.SQLITE_OK if action in allowed else sqlite3.SQLITE_DENY
