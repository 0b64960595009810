"""The index: SQLite's full-text search (FTS5) with BM25 over the documents, and the agent's two tools over
it.

A word that stands in a title counts twelve times. Words are any text: what FTS5 would read as its own syntax
is quoted. Both tools answer with a bounded text, whatever is asked.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Sequence
from functools import cache
from threading import Lock

from search.corpus import LINES, Document, documents

HITS = 3
"""Documents that a search returns."""
FIRST_LINE, PASSAGE = 60, 700
"""Characters of a first line, and of what is read at once; every document of the corpus is shorter."""
TITLE_WEIGHT, TEXT_WEIGHT = 12.0, 1.0
NOTHING = "Nothing was found."
NO_SUCH_TITLE = "There is no document with this title."


class Index:
    """The documents, ready to be searched; safe to share between threads."""

    def __init__(self, found: Iterable[Document]) -> None:
        self._lock = Lock()
        self._db = sqlite3.connect(":memory:", check_same_thread=False)
        self._db.execute(
            "CREATE VIRTUAL TABLE document"
            " USING fts5(title, text, tokenize = 'unicode61 remove_diacritics 2')"
        )
        self._db.executemany("INSERT INTO document VALUES (?, ?)", ((one.title, one.text) for one in found))

    def best(self, words: str, count: int = HITS) -> Sequence[Document]:
        """The documents with most of the words, rare words first; equals in the order of their titles."""
        query = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", words))
        if not query:
            return []
        with self._lock:
            rows = self._db.execute(
                "SELECT title, text FROM document WHERE document MATCH ?"
                " ORDER BY bm25(document, ?, ?), title LIMIT ?",
                (query, TITLE_WEIGHT, TEXT_WEIGHT, count),
            ).fetchall()
        return [Document(*row) for row in rows]

    def search(self, words: str) -> str:
        """Titles and first lines of the best documents for some words."""
        found = [
            f"{one.title}{LINES}{one.text.partition(chr(10))[0][:FIRST_LINE]}" for one in self.best(words)
        ]
        return "\n".join(found) or NOTHING

    def read(self, title: str) -> str:
        """The text of the document with a title, in either case."""
        with self._lock:
            row = self._db.execute(
                "SELECT text FROM document WHERE title = ? COLLATE NOCASE", (title.strip(),)
            ).fetchone()
        return str(row[0])[:PASSAGE] if row else NO_SUCH_TITLE


@cache
def factbook() -> Index:
    """The index of the whole corpus, made once in a process."""
    return Index(documents())
