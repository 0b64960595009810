"""Compare a run's record, its summary, and the files that repeat both.

The chain has each as it was logged; a run without a chain is compared with its store.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from agentlightning.algorithms.journal import GROWING_ENTRIES
from agentlightning.algorithms.totals import Totals
from agentlightning.audit.run import OpenRun
from agentlightning.audit.verification.chain import Chain
from agentlightning.audit.verification.compare import Difference, make_difference
from agentlightning.audit.verification.evaluations import headline, headroom
from agentlightning.audit.verification.values import close, differences, shorten
from agentlightning.credit.fingerprints.chain import plain
from agentlightning.types import Evaluation, StepReport

LEFT_OUT = frozenset({"resources", "resumed"})
"""Entries of the record that ``run.json`` of a resumed run does not repeat."""


def compare_record(run: OpenRun, chain: Chain) -> Iterator[Difference]:
    """The run's record in the store, and ``run.json``, against the first link."""
    record = {k: v for k, v in plain(run.info).items() if k not in GROWING_ENTRIES}
    then = chain.start.body["info"] if chain.start else record
    if chain.start:
        known = {k: v for k, v in record.items() if k in then}
        yield from _compare_values(then, known, "run", "the run's record")
    file = _read(run, "run.json")
    if isinstance(file, str):
        yield make_difference("run", file, of="run.json")
    elif file is not None:
        said = {k: v for k, v in plain(file).items() if k not in GROWING_ENTRIES | LEFT_OUT}
        truth = {k: v for k, v in then.items() if k not in LEFT_OUT}
        yield from _compare_values(truth, said, "run", "run.json")


def compare_summary(run: OpenRun, chain: Chain) -> Iterator[Difference]:
    """The summary in the run's record, and ``summary.json``, against the last link."""
    noted, file = run.info.get("summary"), _read(run, "summary.json")
    end = chain.end
    if end is not None:
        truth = {**end.body["summary"], "chain": chain.summary_entry()}
        if noted is None:
            what = "it is missing from the run's record (removed after training)"
            yield make_difference("summary", what, of="summary")
        else:
            yield from _compare_values(truth, plain(noted), "summary", "summary in the run's record")
    elif noted is not None and not chain.links and noted.get("chain"):
        what = (
            f"the run's summary speaks of {noted['chain'].get('links')} links, the store holds none: deleted"
        )
        yield make_difference("chain", what, of="the chain", then=noted["chain"])
    elif noted is not None and chain.links and ("end", run.run_id) not in chain.tampered:
        what = (
            "the run's record has a summary, and the chain does not end with one: its last links were removed"
        )
        yield make_difference("chain", what, of="the chain")
    truth = {**end.body["summary"], "chain": chain.summary_entry()} if end else plain(noted)
    if truth is None:
        return
    if isinstance(file, str):
        yield make_difference("summary", file, of="summary.json")
    elif file is not None:
        yield from _compare_values(truth, plain(file), "summary", "summary.json")


def summary_of(run: OpenRun, chain: Chain) -> dict[str, Any]:
    """The summary of the chain, else of the run's record."""
    found: dict[str, Any] = chain.end.body["summary"] if chain.end else plain(run.info.get("summary") or {})
    return found


def compare_headline(
    run: OpenRun, chain: Chain, made: Mapping[str, Evaluation], reports: Sequence[StepReport]
) -> Iterator[Difference]:
    """Evaluations and totals in the summary, against recomputed ones."""
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
    for path, was, now in differences(then, plain(again)):
        if close(was, now):
            continue
        what = f"{path} is {shorten(was)}, the run's steps and evaluations give {shorten(now)}"
        yield make_difference("summary", f"{what} (edited after training)", of="summary", then=was, now=now)


def compare_lines(
    run: OpenRun, reports: Sequence[StepReport], evaluations: Sequence[Evaluation]
) -> Iterator[Difference]:
    """``metrics.jsonl`` and ``evaluations.jsonl`` against the run's reports and evaluations, in order."""
    steps = [_FileLine(f"step {r.step}/{r.policy}", plain(r), r.step, r.step) for r in reports]
    names: Counter[str] = Counter()
    scores = [_FileLine(_named(e.name, names), plain(e), rank) for rank, e in enumerate(evaluations)]
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
        for path, was, now in differences(then.value, line.value):
            change = f"{path} was {shorten(was)}, the file says {shorten(now)}"
            what = f"{line.name}: {change} (edited after training)"
            yield make_difference(kind, what, of=of, step=then.step, then=was, now=now)
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
        name = (
            f"step {record.step}/{record.policy}"
            if isinstance(record, StepReport)
            else _named(record.name, names)
        )
        found.append(_FileLine(name, {**plain(record), **further}))
    return found


def _named(name: str, names: Counter[str]) -> str:
    """An evaluation's name; from the second of that name on, with its number."""
    names[name] += 1
    return f"evaluation {name}" + (f" ({names[name]})" if names[name] > 1 else "")


def _compare_values(
    then: Mapping[str, Any], now: Mapping[str, Any], kind: str, of: str
) -> Iterator[Difference]:
    for path, was, is_ in differences(then, now):
        what = f"{path} was {shorten(was)}, it says {shorten(is_)} (edited after training)"
        yield make_difference(kind, what, of=of, then=was, now=is_)


def _read(run: OpenRun, name: str) -> Any:
    """A file of the run's folder: its value (lines: a list); a text with the error if it cannot be read;
    ``None`` where the run keeps no files.
    """
    if run.folder is None or not _keeps_files(run.folder):
        return None
    path: Path = run.folder / name
    if not path.is_file():
        return "it is missing (removed after training)"
    try:
        text = path.read_text(encoding="utf-8")
        if name.endswith(".jsonl"):
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        found = json.loads(text)
        return found if isinstance(found, dict) else "it is no JSON object (edited after training)"
    except (OSError, ValueError) as error:
        return f"it cannot be read ({error}): damaged after training"


def _keeps_files(folder: Path) -> bool:
    names: Iterable[str] = ("run.json", "summary.json", "metrics.jsonl", "evaluations.jsonl")
    return any((folder / name).is_file() for name in names)
