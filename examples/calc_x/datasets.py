"""Loaders: every set comes out as a list of ``Problem``, named by one string.

``load("generated:train")``, ``load("svamp")`` (the small sample beside the example),
``load("gsm8k:some/file.jsonl")``. A row that cannot be read is an error that names file, row and field; no
row is skipped silently.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agentlightning.algorithms.tasks import DatasetError, read_file
from calc_x.problems import Problem, Split, generate

SAMPLES = Path(__file__).resolve().parent / "data"
GENERATED_SIZE: dict[str, int] = {"train": 2048, "heldout": 256}

Row = Mapping[str, Any]


class _FieldError(ValueError):
    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"field {field!r} {problem}")


def load(spec: str, limit: int | None = None, split: Split | None = None, seed: int = 0) -> list[Problem]:
    """The problems of ``spec``, at most ``limit`` of them.

    ``spec`` is ``generated:train`` or ``generated:heldout``, or a format (``svamp gsm8k aqua gsmhard
    calcx``), alone for the bundled sample or followed by ``:PATH``. ``split`` takes a fixed four fifths
    (train) or the other fifth (heldout) of a file, by a checksum of the id. ``seed`` is used by the generated
    problems only.
    """
    name, _, rest = spec.partition(":")
    if limit is not None and limit < 0:
        raise DatasetError(f"limit is {limit}: it must be 0 or more")
    if name == "generated":
        which = rest or split or "train"
        if which not in GENERATED_SIZE:
            raise DatasetError(f"{spec!r}: the generated problems have the splits 'train' and 'heldout'")
        size = GENERATED_SIZE[which] if limit is None else limit
        return generate("train" if which == "train" else "heldout", size, seed)
    if name not in READERS:
        known = ", ".join(["generated", *READERS])
        raise DatasetError(
            f"unknown dataset {name!r} in {spec!r}: choose one of {known}, as NAME or NAME:PATH"
        )
    problems = read(Path(rest) if rest else SAMPLES / f"{name}.jsonl", name)
    if split is not None:
        problems = [problem for problem in problems if _split_of(problem["id"]) == split]
    return problems if limit is None else problems[:limit]


def read(path: Path, form: str) -> list[Problem]:
    """All problems of one file (``.jsonl``, ``.json`` with a list, ``.parquet``) whose rows have the given
    format.
    """
    reader = READERS[form]
    problems = []
    for number, row in enumerate(read_file(path, "problems"), start=1):
        try:
            if not isinstance(row, Mapping):
                raise ValueError(f"is not an object but {type(row).__name__}")
            problems.append(reader(row, f"{path.stem}-{number}"))
        except ValueError as error:
            raise DatasetError(f"{path}, row {number}: {error}") from None
    return problems


def guess_format(path: Path) -> str:
    """The format of a file, from the fields of its first row."""
    for _, row in enumerate(read_file(path, "problems"), start=1):
        fields = set(row) if isinstance(row, Mapping) else set()
        for form, wanted in _SIGNS.items():
            if wanted <= fields:
                return form
        raise DatasetError(f"{path}, row 1: fields {sorted(fields)} belong to none of {', '.join(READERS)}")
    raise DatasetError(f"{path} has no rows")


def _svamp(row: Row, fallback_id: str) -> Problem:
    body = _text(row, "Body").strip()
    body += "" if body.endswith((".", "?", "!", ",")) else "."
    equation = re.sub(r"(\d)\.0\b", r"\1", _text(row, "Equation")).replace(" ", "")
    return Problem(
        id=f"svamp-{_text(row, 'ID')}",
        question=f"{body} {_text(row, 'Question').strip()}",
        result=_number(row, "Answer"),
        source="svamp",
        kind=str(row.get("Type", "")),
        expression=equation[1:-1] if equation.startswith("(") and equation.count("(") == 1 else equation,
    )


def _gsm8k(row: Row, fallback_id: str) -> Problem:
    chain, mark, gold = _text(row, "answer").rpartition("####")
    if not mark or not gold.strip():
        raise _FieldError("answer", "has no final answer after ####")
    steps: list[str] = re.findall(r"<<([^<>=]+)=[^<>]*>>", chain)
    return Problem(
        id=str(row.get("id", f"gsm8k-{fallback_id}")),
        question=_text(row, "question"),
        result=gold.strip().replace(",", ""),
        source="gsm8k",
        kind="",
        expression=steps[-1].strip() if steps else "",
    )


def _aqua(row: Row, fallback_id: str) -> Problem:
    options = row.get("options")
    if not isinstance(options, list) or not options or not all(isinstance(option, str) for option in options):
        raise _FieldError("options", "must be a list of texts like 'A)21'")
    gold = _text(row, "correct").strip()
    if gold not in [option[:1] for option in options]:
        raise _FieldError("correct", f"is {gold!r}, which is none of the options")
    listed = "\n".join(re.sub(r"^([A-Z])\)\s*", r"\1) ", option) for option in options)
    return Problem(
        id=str(row.get("id", f"aqua-{fallback_id}")),
        question=f"{_text(row, 'question')}\nChoose one letter:\n{listed}",
        result=gold,
        source="aqua",
        kind="",
        expression="",
    )


def _gsmhard(row: Row, fallback_id: str) -> Problem:
    return Problem(
        id=f"gsmhard-{fallback_id}",
        question=_text(row, "input"),
        result=_number(row, "target"),
        source="gsmhard",
        kind="",
        expression="",
    )


def _calcx(row: Row, fallback_id: str) -> Problem:
    result = _text(row, "result")
    steps = re.findall(r'<gadget id="calculator">([^<]*)</gadget>', str(row.get("chain", "")))
    return Problem(
        id=_text(row, "id"),
        question=_text(row, "question"),
        result=result,
        source=str(row.get("source", "calcx")),
        kind="",
        expression=steps[-1].strip() if steps else "",
    )


READERS: dict[str, Callable[[Row, str], Problem]] = {
    "svamp": _svamp,
    "gsm8k": _gsm8k,
    "aqua": _aqua,
    "gsmhard": _gsmhard,
    "calcx": _calcx,
}
_SIGNS: dict[str, set[str]] = {
    "svamp": {"Body", "Question"},
    "aqua": {"options", "correct"},
    "gsmhard": {"input", "target"},
    "calcx": {"question", "result"},
    "gsm8k": {"question", "answer"},
}


def _text(row: Row, field: str) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value.strip():
        raise _FieldError(field, "is missing" if value is None else f"must be a text, not {value!r}")
    return value


def _number(row: Row, field: str) -> str:
    value = row.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _FieldError(field, "is missing" if value is None else f"must be a number, not {value!r}")
    if not math.isfinite(value):
        raise _FieldError(field, f"must be a finite number, not {value!r}")
    return str(int(value)) if value == int(value) else repr(value)


def _split_of(problem_id: str) -> Split:
    return "heldout" if zlib.crc32(problem_id.encode()) % 5 == 0 else "train"
