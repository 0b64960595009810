"""The tiny policy's tokenizer: byte-level BPE over the teacher's traces, single digits, and scaffold tokens.

A scaffold token is a fixed piece of the prompts (an instruction, the schema of one of the eight databases,
the words between question, query and result) as one *added, not special* token. The text on the wire stays
what it is; an unexpected text, such as another database's schema, falls back to BPE, down to bytes. It makes
a prompt 20 to 70 tokens long instead of 500, and the network's whole task reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from agl_local.text.tokenizer import ChatTokenizer
from small_policy.reading import tokenizer_of
from spider.prompts import CHECK, REWRITE, WRITE
from spider.questions import DATABASES
from spider.sql.showing import ERROR
from spider.teacher import IT_FAILS, IT_IS_RIGHT, NOTHING, lessons, result_of, schema_of

TEMPLATE = Path(__file__).resolve().parent / "template.jinja"
BPE_SIZE = 1024
"""At most: bytes, special tokens and merges. The scaffold tokens come on top."""
TRAINING_LESSONS = 4000
SCAFFOLD: tuple[str, ...] = (
    "system\n",
    "user\n",
    "assistant\n",
    WRITE,
    CHECK,
    REWRITE,
    *map(schema_of, DATABASES),
    "Question: ",
    "\n\nQuery:\n",
    "\n\nResult:\n",
    "\n\nJudgement:\n",
    "```sql\n",
    "\n```",
    ERROR,
    IT_IS_RIGHT,
    IT_FAILS,
    NOTHING,
)


def build_tokenizer() -> ChatTokenizer:
    """The tokenizer with its chat template; the same every time."""
    return tokenizer_of(_texts(), BPE_SIZE, SCAFFOLD, TEMPLATE)


def _texts() -> Iterator[str]:
    """Questions, queries, and what they return."""
    for lesson in islice(lessons(seed=0), TRAINING_LESSONS):
        yield lesson.question
        for query in (lesson.right, lesson.usual):
            yield query
            yield result_of(lesson.combination.database, query)
