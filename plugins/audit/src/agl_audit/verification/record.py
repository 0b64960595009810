"""Compare a run's record, its summary, and the files that repeat both.

The chain holds each as it was logged; the files of a run without a chain are compared with its store.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from agentlightning.algorithms.journal import GROWING_ENTRIES
from agentlightning.algorithms.totals import Totals
from agentlightning.credit.digest import plain, summary_entry
from agentlightning.types import Evaluation, StepReport
from agl_audit.run import OpenRun
from agl_audit.verification.chain import Chain
from agl_audit.verification.differences import (
    Difference,
    make_difference,
    shorten,
    value_differences,
)
from agl_audit.verification.evaluations import headline, headroom

LEFT_OUT = frozenset({"resources", "resumed"})
"""Entries of the record that ``run.json`` of a resumed run does not repeat."""

FILES = ("run.json", "summary.json", "metrics.jsonl", "evaluations.jsonl")


def compare_record(run: OpenRun, chain: Chain) -> Iterator[Difference]:
    """Compare the run's record in the store, and ``run.json``, with the first link."""
    record = {k: v for k, v in plain(run.info).items() if k not in GROWING_ENTRIES}
    then = chain.start.body["info"] if chain.start else record
    if chain.start:
        known = {k: v for k, v in record.items() if k in then}
        yield from value_differences("run", then, known, "it says", of="the run's record")
    truth = {k: v for k, v in then.items() if k not in LEFT_OUT}
    yield from _compare_file(run, "run.json", "run", truth, GROWING_ENTRIES | LEFT_OUT)


def compare_summary(run: OpenRun, chain: Chain) -> Iterator[Difference]:
    """Compare the summary in the run's record, and ``summary.json``, with the last link."""
    noted, end = run.info.get("summary"), chain.end
    truth = {**end.body["summary"], "chain": summary_entry(end)} if end else plain(noted)
    if end is not None and noted is None:
        yield make_difference(
            "summary", "it is missing from the run's record (removed after training)", of="summary"
        )
    elif end is not None:
        of = "summary in the run's record"
        yield from value_differences("summary", truth, plain(noted), "it says", of=of)
    elif noted is not None and not chain.links and noted.get("chain"):
        what = f"the run's summary names {noted['chain'].get('links')} links, the store holds none: deleted"
        yield make_difference("chain", what, of="the chain", then=noted["chain"])
    elif noted is not None and chain.links and ("end", run.run_id) not in chain.tampered:
        what = (
            "the run's record has a summary, and the chain does not end with one: its last links were removed"
        )
        yield make_difference("chain", what, of="the chain")
    if truth is not None:
        yield from _compare_file(run, "summary.json", "summary", truth)


def _compare_file(
    run: OpenRun, name: str, kind: str, truth: Mapping[str, Any], skipped: Collection[str] = ()
) -> Iterator[Difference]:
    """Compare a JSON file of the run's folder, without its entries ``skipped``, with the logged values."""
    file = _read(run, name)
    if isinstance(file, str):
        yield make_difference(kind, file, of=name)
    elif file is not None:
        said = {k: v for k, v in plain(file).items() if k not in skipped}
        yield from value_differences(kind, truth, said, "it says", of=name)


def summary_of(run: OpenRun, chain: Chain) -> dict[str, Any]:
    """Return the summary of the chain, else of the run's record."""
    found: dict[str, Any] = chain.end.body["summary"] if chain.end else plain(run.info.get("summary") or {})
    return found


def compare_headline(
    run: OpenRun, chain: Chain, made: Mapping[str, Evaluation], reports: Sequence[StepReport]
) -> Iterator[Difference]:
    """Compare evaluations and totals in the summary with recomputed ones."""
    said = summary_of(run, chain)
    again: dict[str, Any] = {k: v for k, v in headline(made).items() if k in said}
    if isinstance(said.get("headroom"), dict):
        again["headroom"] = headroom(made, said["headroom"])
    if isinstance(said.get("totals"), dict) and not run.trained and reports:
        totals = Totals()
        for report in reports:
            totals.count(report, multi_policy=False)
        again["totals"] = {k: v for k, v in totals.values.items() if k in said["totals"]}
    then = {k: ({n: said[k].get(n) for n in v} if isinstance(v, dict) else said[k]) for k, v in again.items()}
    source = "the run's steps and evaluations give"
    yield from value_differences("summary", then, plain(again), source, recomputed=True, of="summary")


def compare_lines(
    run: OpenRun, reports: Sequence[StepReport], evaluations: Sequence[Evaluation]
) -> Iterator[Difference]:
    """Compare the lines of ``metrics.jsonl`` and ``evaluations.jsonl`` with the run's records, in order."""
    names: Counter[str] = Counter()
    steps = [_FileLine(_name(r, names), plain(r), r.step, r.step) for r in reports]
    scores = [_FileLine(_name(e, names), plain(e), rank) for rank, e in enumerate(evaluations)]
    files = (("metrics.jsonl", StepReport, steps), ("evaluations.jsonl", Evaluation, scores))
    for name, kind, known in files:
        file = _read(run, name) if known else None
        if isinstance(file, str):
            yield make_difference(name.removesuffix(".jsonl"), file, of=name)
        elif file is not None:
            yield from _compare_file_lines(name, known, _as_lines(file, kind), bool(run.info.get("summary")))


@dataclass(frozen=True, slots=True)
class _FileLine:
    """A line of a file: its subject, value, rank and step."""

    name: str
    value: Any
    rank: int = 0
    step: int | None = None


def _compare_file_lines(
    name: str, known: Sequence[_FileLine], lines: Sequence[_FileLine], finished: bool
) -> Iterator[Difference]:
    """Check that the lines are the known records, in order, each once."""
    kind = name.removesuffix(".jsonl")
    truth = {line.name: line for line in known}
    seen: set[str] = set()
    last = -1
    for number, line in enumerate(lines, 1):
        of, then = f"{name}, line {number}", truth.get(line.name)
        if then is None or line.name in seen:
            what = "is there twice (copied" if then else "is no record of the run (added"
            yield make_difference(kind, f"{line.name} {what} after training)", of=of, now=line.value)
            continue
        seen.add(line.name)
        if then.rank < last:
            what = f"{line.name} is out of its place (moved after training)"
            yield make_difference(kind, what, of=of, step=then.step, now=line.value)
        last = max(last, then.rank)
        yield from value_differences(
            kind, then.value, line.value, "the file says", label=f"{line.name}: ", of=of, step=then.step
        )
    missing = [line for line in known if line.name not in seen]
    if not finished and missing == [known[-1]]:
        return  # a run that broke off, or is under way, between its store and its file
    for line in missing:
        what = f"the line of {line.name} is missing (removed after training)"
        yield make_difference(kind, what, of=name, step=line.step)


def _as_lines(values: Sequence[Any], kind: type[StepReport] | type[Evaluation]) -> list[_FileLine]:
    names: Counter[str] = Counter()
    found: list[_FileLine] = []
    for value in values:
        try:
            record = msgspec.convert(value, kind)
        except msgspec.ValidationError:
            found.append(_FileLine(shorten(value), plain(value)))
            continue
        further = {k: v for k, v in value.items() if k not in kind.__struct_fields__}
        found.append(_FileLine(_name(record, names), {**plain(record), **further}))
    return found


def _name(record: StepReport | Evaluation, names: Counter[str]) -> str:
    """The name of a line; an evaluation's has a number from the second of that name on."""
    if isinstance(record, StepReport):
        return f"step {record.step}/{record.policy}"
    names[record.name] += 1
    n = names[record.name]
    return f"evaluation {record.name}" + (f" ({n})" if n > 1 else "")


def _read(run: OpenRun, name: str) -> Any:
    """Read a file of the run's folder: its value (of lines, a list), or a text that names the error. ``None``
    if the run keeps no files.
    """
    if run.folder is None or not any((run.folder / file).is_file() for file in FILES):
        return None
    path = run.folder / name
    if not path.is_file():
        return "it is missing (removed after training)"
    try:
        text = path.read_text(encoding="utf-8")
        if name.endswith(".jsonl"):  # may hold NaN, which JSON does not know
            return [json.loads(line) for line in text.split("\n") if line.strip()]
        found = json.loads(text)
        return found if isinstance(found, dict) else "it is no JSON object (edited after training)"
    except (OSError, ValueError) as error:
        return f"it cannot be read ({error}): damaged after training"
