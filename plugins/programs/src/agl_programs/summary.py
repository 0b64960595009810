"""The summary of ``agl run``: calls with their verdicts, agents, tools, tokens and rewards.

It is read from the store after the programs have ended, so it reports only recorded calls and spans.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from agentlightning import semconv
from agentlightning.capture.emit import get_reward_value
from agentlightning.credit.verdicts import (
    engine_refusal,
    refusal_of,
    refused,
    unrecorded,
    verdicts,
)
from agentlightning.store.pages import pages
from agentlightning.types import Record
from agl_programs.attempts import ProgramAttempt
from agl_programs.collector import adapter_errors
from agl_programs.process import exit_status
from agl_programs.session import ProgramSession

UNNAMED = "unknown"
"""Name of the agent of calls without a tag ``agent``."""
_ROLLOUTS_PER_READ = 100
_SPANS_PER_READ = 10_000


class Summary(msgspec.Struct, kw_only=True):
    """The records of one ``agl run``, counted."""

    run_id: str
    store: str
    folder: str | None = None
    rollouts: list[str] = []
    """Rollouts of processes, then of entries."""
    statuses: dict[str, int] = {}
    exit_codes: list[int | None] = []
    """Exit statuses of the processes as a shell reports them; ``null``: the time was up."""
    failures: dict[str, int] = {}
    """Reason → rollouts that failed with it."""
    calls: int = 0
    verdicts: dict[str, int] = {}
    unsure: dict[str, int] = {}
    """Verdict and reason of calls that are not exact → calls."""
    errors: int = 0
    """Calls without an answer."""
    refused: dict[str, int] = {}
    """Reason → calls that the gateway or the engine refused: the code of the gateway's answer, or the
    engine's HTTP status."""
    agents: dict[str, int] = {}
    """Agent → calls; ``unknown`` without a tag ``agent``."""
    tools: dict[str, int] = {}
    tokens_in: int = 0
    tokens_out: int = 0
    rewards: list[float] = []
    processes: int = 0
    """Processes in which capture began."""
    adapters: list[str] = []
    """Adapters that were active."""
    warnings: list[str] = []
    counts: dict[str, int] = {}
    """Reason → spans, calls or processes that could not be recorded."""
    seconds: float = 0.0


async def summarise(session: ProgramSession, results: Sequence[ProgramAttempt], seconds: float) -> Summary:
    """Read the records of the session's rollouts and return their summary."""
    ids = [one.rollout.rollout_id for one in results if one.rollout is not None] + session.entries
    summary = Summary(
        run_id=session.run_id,
        store=session.store_location,
        folder=None if session.folder is None else str(session.folder),
        rollouts=ids,
        exit_codes=[None if one.code is None else exit_status(one.code) for one in results],
        seconds=round(seconds, 3),
    )
    for start in range(0, len(ids), _ROLLOUTS_PER_READ):
        for record in await session.store.records(ids[start : start + _ROLLOUTS_PER_READ]):
            _add(summary, record)
            await _add_spans(summary, session, record)
            await _add_refusals(summary, session, record)
    _add_process_reports(summary, session, results)
    for why in sorted({one.store_error for one in results if one.store_error is not None}):
        summary.warnings.append(f"the end of a program could not be stored: {why}")
    number, planned = session.processes.ending_signal, len(session.options.tasks)
    if number is not None and len(results) < planned:
        why = f"{signal.Signals(number).name} arrived"
        summary.warnings.append(f"{planned - len(results)} of {planned} processes were not started: {why}")
    for field in ("statuses", "failures", "verdicts", "unsure", "agents", "tools", "counts", "refused"):
        setattr(summary, field, dict(Counter(getattr(summary, field)).most_common()))
    return summary


def _add(summary: Summary, record: Record) -> None:
    """Add a rollout's calls."""
    _count(summary.statuses, str(record.rollout.status))
    if record.rollout.reason:
        _count(summary.failures, record.rollout.reason)
    judged = verdicts(record)
    for call in record.calls:
        summary.calls += 1
        verdict = judged[call.call_id]
        _count(summary.verdicts, verdict.kind)
        if verdict.kind != "exact":
            _count(summary.unsure, f"{verdict.kind}: {verdict.reason}")
        summary.errors += call.status != "ok"
        _count(summary.agents, call.tags.get("agent") or UNNAMED)
        if call.choice == 0:
            summary.tokens_in += call.prompt_tokens or len(call.prompt_ids or ())
        summary.tokens_out += len(call.response_ids) if call.response_ids else call.completion_tokens or 0
    if past := unrecorded(record):
        _count(summary.counts, "calls-past-the-gateway", len(past))


async def _add_refusals(summary: Summary, session: ProgramSession, record: Record) -> None:
    """Add a rollout's refused calls. The gateway has counted those that no SDK of ours saw."""
    for call in record.calls:
        if (status := engine_refusal(call)) is not None:
            _count(summary.refused, status)
    seen = Counter(refusal_of(span) for span in refused(record))
    counts = (await session.store.counts(record.rollout.rollout_id)).get("refused", {})
    requests = {reason: n for reason, n in counts.items() if not reason.startswith("otlp-")}
    for reason in [*seen, *(reason for reason in requests if reason not in seen)]:
        _count(summary.refused, reason, seen[reason] or requests[reason])


async def _add_spans(summary: Summary, session: ProgramSession, record: Record) -> None:
    """Add a rollout's tools and rewards."""
    async for page in pages(session.store.spans, record.rollout.rollout_id, size=_SPANS_PER_READ):
        for span in page:
            name, operation = (span.attributes.get(n) for n in (semconv.TOOL_NAME, semconv.OPERATION_NAME))
            if name and operation in (None, "execute_tool"):
                _count(summary.tools, str(name))
            if (value := get_reward_value(span)) is not None:
                summary.rewards.append(value)


def _add_process_reports(
    summary: Summary, session: ProgramSession, results: Sequence[ProgramAttempt]
) -> None:
    """Add the processes' reports about capture."""
    programs = [one.program for one in results if one.program is not None]
    reports = [report for program in programs for report in program.reports.values()]
    summary.processes = len(reports)
    for program in programs:
        for reason, times in program.counts.items():
            _count(summary.counts, reason, times)
    for reason, times in session.collector.refused.items():
        _count(summary.counts, f"refused-{reason}", times)
    adapters = adapter_errors(reports)
    summary.adapters = sorted(name for name, error in adapters.items() if error is None and name != "wire")
    for name, error in adapters.items():
        if error is not None:
            what = "the wire layer" if name == "wire" else f"adapter {name}"
            summary.warnings.append(f"{what} is not on: {error}")
    if summary.calls and not summary.processes:
        summary.warnings.append(
            "no process of the program imported an SDK or a framework that capture knows, so its calls are "
            "known from the gateway only, which records their tokens: that is all of a program that asks by "
            "plain HTTP (requests, httpx) or is not Python; one that imports openai needs agl-core beside it"
        )
    if not summary.calls and not summary.refused:
        summary.warnings.append(
            "no model call reached the gateway: check that the program reads OPENAI_BASE_URL and names no "
            "server of its own"
        )


def _count(counts: dict[str, int], name: str, times: int = 1) -> None:
    counts[name] = counts.get(name, 0) + times


def as_record(summary: Summary) -> dict[str, Any]:
    """Return the summary in the form of the run's record."""
    record: dict[str, Any] = msgspec.to_builtins(summary)
    return {**record, "total_seconds": summary.seconds}
