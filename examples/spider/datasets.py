"""Loaders: every set comes out as a list of ``Question``, named by one string.

``load("generated:train")``, ``load("dev")`` (the real questions beside the example), ``load("spider:FILE")``
and ``load("spider:FOLDER")`` for other real ones, as jsonl, json or parquet. A row that cannot be read, and a
database that is missing, is an error that names file, row and field; no row is skipped silently.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from agentlightning.algorithms.tasks import DatasetError, read_file
from spider.databases import BUNDLED, find
from spider.questions import Question, Split, generate, questions as generated
from spider.sql.tokens import joined, meaningful, trimmed

_log = logging.getLogger(__name__)
SAMPLES = Path(__file__).resolve().parent / "data"
TRAINING_SIZE = 4000
"""Generated training questions without a limit; of the held-out ones there are as many as there are."""
FOLDERS = ("database", "test_database")
"""Where the public archive keeps databases: of training and development questions, and of test questions."""
KINDS_OF_FILE = (".jsonl", ".json", ".parquet")


def load(
    spec: str,
    limit: int | None = None,
    split: Split | None = None,
    seed: int = 0,
    databases: str | None = None,
) -> list[Question]:
    """The questions of ``spec``, at most ``limit`` of them.

    ``spec`` is ``generated:train``, ``generated:heldout``, ``dev``, or ``spider:PATH``. ``split`` takes a
    fixed four fifths (train) or the other fifth (heldout) by a checksum of database and gold SQL: nearly
    every query of this data has two paraphrases, which must not be parted. A question that comes more than
    once is held out once, and one that is held out is never trained on, whatever its SQL. ``seed`` is used by
    the generated questions only; no held-out one of these comes twice. ``databases``: the folder of the
    databases, if they are not beside the file in ``database`` or ``test_database``.
    """
    name, _, rest = spec.partition(":")
    if limit is not None and limit < 0:
        raise DatasetError(f"limit is {limit}: it must be 0 or more")
    if name == "generated":
        which = rest or split or "train"
        if which not in ("train", "heldout"):
            raise DatasetError(f"{spec!r}: the generated questions have the splits 'train' and 'heldout'")
        if which == "heldout":
            return list(islice(generated("heldout", seed), limit))
        return generate("train", TRAINING_SIZE if limit is None else limit, seed)
    if name == "dev":
        questions = read(SAMPLES / "dev.jsonl", None if databases is None else Path(databases))
    elif name == "spider" and rest:
        place = Path(rest).expanduser()
        questions = [
            question
            for path in (_files(place) if place.is_dir() else [place])
            for question in read(path, None if databases is None else Path(databases))
        ]
    else:
        raise DatasetError(
            f"unknown dataset {spec!r}: choose generated:train, generated:heldout, dev, or spider:PATH"
        )
    if split is not None:
        questions = parted(questions, split)
    return questions if limit is None else questions[:limit]


def read(path: Path, databases: Path | Sequence[Path] | None = None) -> list[Question]:
    """All questions of one file: rows with ``db_id``, ``question``, ``query``. Databases must be there;
    ``databases``: the folder, or folders, that hold them.
    """
    given = [databases] if isinstance(databases, Path) else databases
    folders = list(given or [path.parent / name for name in FOLDERS])
    questions = []
    for number, row in enumerate(read_file(path, "questions"), start=1):
        try:
            if not isinstance(row, Mapping):
                raise ValueError(f"is not an object but {type(row).__name__}")
            name = _text(row, "db_id")
            folder = _folder(name, folders)
            questions.append(
                Question(
                    id=str(row.get("id", f"{path.stem}-{number}")),
                    db_id=name,
                    question=_text(row, "question"),
                    query=_text(row, "query"),
                    kind="",
                    folder="" if folder == BUNDLED else str(folder),
                )
            )
        except ValueError as error:
            raise DatasetError(f"{path}, row {number}: {error}") from None
    return questions


def parted(questions: Sequence[Question], split: Split) -> list[Question]:
    """One side of the split; how many questions were left out of it, and why, is logged."""
    held: dict[tuple[str, str], Question] = {}
    again = 0
    for question in questions:
        if split_of(question) == "heldout":
            again += held.setdefault(_asked(question), question) is not question
    if split == "heldout":
        if again:
            _log.warning("%d held-out questions were left out: each had been asked before", again)
        return list(held.values())
    side = [question for question in questions if split_of(question) == "train"]
    kept = [question for question in side if _asked(question) not in held]
    if len(kept) < len(side):
        _log.warning("%d training questions were left out: they are held out", len(side) - len(kept))
    return kept


def _asked(question: Question) -> tuple[str, str]:
    """What makes two questions one: the database and the words."""
    return question["db_id"], " ".join(question["question"].lower().split())


def split_of(question: Question) -> Split:
    """Train or held out: a function of the database and the gold SQL, whatever its spaces and case."""
    same = f"{question['db_id']}/{joined(meaningful(trimmed(question['query']))).lower()}"
    return "heldout" if zlib.crc32(same.encode()) % 5 == 0 else "train"


def _folder(name: str, folders: list[Path]) -> Path:
    """The folder that has the database."""
    for folder in folders:
        try:
            find(name, folder.resolve())
        except FileNotFoundError:
            continue
        return folder.resolve()
    looked = ", ".join(str(folder) for folder in folders)
    raise ValueError(f"field 'db_id': no database {name!r} in {looked}; give its folder as databases=…")


def _files(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.iterdir() if path.suffix in KINDS_OF_FILE)
    if not found:
        raise DatasetError(f"{folder}: there is no {', '.join(KINDS_OF_FILE)} file in it")
    return found


def _text(row: Mapping[str, Any], field: str) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(
            f"field {field!r} {'is missing' if value is None else f'must be a text, not {value!r}'}"
        )
    return value
