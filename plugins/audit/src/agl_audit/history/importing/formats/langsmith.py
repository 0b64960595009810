"""Runs of LangSmith: one JSON object for each, as ``Client.list_runs`` gives them and its bulk export writes
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agl_audit.history.importing.chat import answer_of, messages_of
from agl_audit.history.importing.trace import ImportedCall, ImportedTrace, UnreadableTrace, count, number
from agl_audit.history.importing.values import parsed, seconds


def is_mine(first: Any) -> bool:
    """Return whether the first entry of a file is a run."""
    return isinstance(first, Mapping) and {"run_type", "inputs"} <= first.keys()


def read(entries: Sequence[Any]) -> list[ImportedTrace]:
    """Return the traces of a file: the runs of one ``trace_id``."""
    traces: dict[str, ImportedTrace] = {}
    for run in entries:
        if not is_mine(run):
            raise UnreadableTrace("an entry that is no run of LangSmith: it has no run_type and inputs")
        trace_id = str(run.get("trace_id") or run.get("id"))
        _add(traces.setdefault(trace_id, ImportedTrace(trace_id)), run)
    return [trace.finished() for trace in traces.values()]


def _add(trace: ImportedTrace, run: Mapping[str, Any]) -> None:
    inputs, outputs = parsed(run.get("inputs")) or {}, parsed(run.get("outputs")) or {}
    root = not run.get("parent_run_id")
    if root:
        trace.error = run.get("error")
        trace.task = inputs if run["run_type"] != "llm" else None
    for name, told in (run.get("feedback_stats") or {}).items():
        if (value := number(told.get("avg") if isinstance(told, Mapping) else told)) is not None:
            trace.rewards.append((str(name), value))
    if run["run_type"] != "llm":
        if not root:
            trace.left_out["run-without-a-call"] += 1
        return
    if not (messages := messages_of(inputs)):
        trace.left_out["call-without-messages"] += 1
        return
    asked = (parsed(run.get("extra")) or {}).get("invocation_params") or {}
    metadata = (parsed(run.get("extra")) or {}).get("metadata") or {}
    sampling = ("temperature", "top_p", "max_tokens", "seed")
    trace.calls.append(
        ImportedCall(
            messages=messages,
            answer=answer_of(outputs),
            model=str(asked.get("model") or asked.get("model_name") or metadata.get("ls_model_name") or ""),
            agent=str(metadata.get("langgraph_node") or metadata.get("agent") or ""),
            tools=list(asked.get("tools") or ()),
            start=seconds(run.get("start_time")),
            end=seconds(run.get("end_time")),
            prompt_tokens=count(run.get("prompt_tokens")),
            completion_tokens=count(run.get("completion_tokens")),
            sampling={name: asked[name] for name in sampling if asked.get(name) is not None},
            error=run.get("error"),
        )
    )
