"""What the agent says to its model, and how it reads the answers."""

from __future__ import annotations

import re

WRITE = """You answer questions about a SQLite database with SQL.
Write one SELECT statement that answers the question. Use only tables and columns of the schema, and mind
which table a column belongs to.
Give nothing but the statement, in a fenced block marked sql.

"""
CHECK = """You review SQL for a SQLite database. You are given the schema, a question, a query and what the
query returned. Look for
- NOT IN over values that may be NULL, UNION where UNION ALL is meant or the reverse,
- BETWEEN with the wrong bounds, comparisons of different types, wrong casts,
- names that need quotes, functions that do not exist or have too few arguments,
- joins over the wrong columns, an error, or a result that cannot be the answer.
Say briefly what is wrong, and do not write a query yourself. End with one of these two lines:
THE QUERY IS CORRECT.
THE QUERY IS INCORRECT.

"""
REWRITE = """You correct SQL for a SQLite database. You are given the schema, a question, a query that was
judged wrong, what it returned, and the judgement.
Write one SELECT statement that answers the question. Use only tables and columns of the schema, and mind
which table a column belongs to.
Give nothing but the statement, in a fenced block marked sql.

"""
RIGHT, WRONG = "THE QUERY IS CORRECT", "THE QUERY IS INCORRECT"

Messages = list[dict[str, str]]


def to_write(schema: str, question: str) -> Messages:
    """The first query is asked for."""
    return _messages(WRITE, schema, f"Question: {question}")


def to_check(schema: str, question: str, query: str, result: str) -> Messages:
    """A query is to be judged by what it returned."""
    return _messages(CHECK, schema, f"Question: {question}{_tried(query, result)}")


def to_rewrite(schema: str, question: str, query: str, result: str, judgement: str) -> Messages:
    """Another query is asked for."""
    tried = f"Question: {question}{_tried(query, result)}\n\nJudgement:\n{judgement}"
    return _messages(REWRITE, schema, tried)


def _tried(query: str, result: str) -> str:
    return f"\n\nQuery:\n{fenced(query)}\n\nResult:\n{result}"


def _messages(instruction: str, schema: str, text: str) -> Messages:
    return [{"role": "system", "content": instruction + schema}, {"role": "user", "content": text}]


def fenced(query: str) -> str:
    """A query as models are asked to write it."""
    return f"```sql\n{query}\n```"


_FENCE = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)


def query_in(answer: str, otherwise: str | None = None) -> str:
    """The last fenced block of an answer; without one ``otherwise``, else the whole answer."""
    blocks = _FENCE.findall(answer)
    text = blocks[-1] if blocks else answer if otherwise is None else otherwise
    return text.strip()


def is_right(judgement: str) -> bool:
    """Whether the last of the two verdicts says that the query is right; no verdict says that it is not."""
    return judgement.rfind(RIGHT) > judgement.rfind(WRONG)
