"""One conversation as each tool writes it: by the tool's own library where it is installed, else as
documented.

A calculator agent asks twice: the model calls a tool, then answers. The trace has a score of 0.5.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

TRACE = "0af7651916cd43dd8448eb211c80319c"
ROOT, FIRST, SECOND = "b7ad6b7169203331", "00f067aa0ba902b7", "53995c3f42cd8ad8"
QUESTION = "What is 2 + 3?"
SYSTEM: dict[str, Any]
USER: dict[str, Any]
SYSTEM, USER = {"role": "system", "content": "Use the calculator."}, {"role": "user", "content": QUESTION}
CALL: dict[str, Any] = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'},
}
CALLED: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT: dict[str, Any] = {"role": "tool", "content": "5", "tool_call_id": "call_1"}
ANSWER: dict[str, Any] = {"role": "assistant", "content": "It is 5."}
ASKED = ([SYSTEM, USER], [SYSTEM, USER, CALLED, RESULT])
ANSWERS = (CALLED, ANSWER)
BEGAN = datetime(2026, 11, 2, 12, 0, 0, tzinfo=UTC)
MODEL = "gpt-5-mini"


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def iso(seconds: float) -> str:
    return at(seconds).isoformat().replace("+00:00", "Z")


def lines(entries: list[Any]) -> str:
    return "".join(json.dumps(entry) + "\n" for entry in entries)


# ------------------------------------------------------------------------------------------------------ spans
def parts(message: dict[str, Any]) -> dict[str, Any]:
    """A message with parts, as the GenAI conventions have it."""
    told: list[dict[str, Any]] = []
    if message["role"] == "tool":
        told = [{"type": "tool_call_response", "id": message["tool_call_id"], "response": message["content"]}]
    elif message.get("content"):
        told = [{"type": "text", "content": message["content"]}]
    for call in message.get("tool_calls", ()):
        inner = call["function"]
        arguments = json.loads(inner["arguments"])
        told.append({"type": "tool_call", "id": call["id"], "name": inner["name"], "arguments": arguments})
    return {"role": message["role"], "parts": told}


def gen_ai(n: int) -> dict[str, Any]:
    """The second call's span, or the first one's, by the GenAI conventions."""
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": MODEL,
        "gen_ai.agent.name": "solver",
        "gen_ai.request.temperature": 0.7,
        "gen_ai.input.messages": json.dumps([parts(m) for m in ASKED[n]]),
        "gen_ai.output.messages": json.dumps([parts(ANSWERS[n])]),
        "gen_ai.usage.input_tokens": 20 + n,
        "gen_ai.usage.output_tokens": 7,
    }


def numbered(n: int) -> dict[str, Any]:
    """The same in the earlier form, of OpenLLMetry and AgentOps."""
    found: dict[str, Any] = {"gen_ai.request.model": MODEL, "gen_ai.usage.prompt_tokens": 20 + n}
    found |= {"gen_ai.usage.completion_tokens": 7, "gen_ai.request.temperature": 0.7, "agent.name": "solver"}
    for prefix, messages in (("gen_ai.prompt", ASKED[n]), ("gen_ai.completion", [ANSWERS[n]])):
        for place, message in enumerate(messages):
            here = f"{prefix}.{place}"
            found |= {f"{here}.{k}": v for k, v in message.items() if isinstance(v, str)}
            for at_call, call in enumerate(message.get("tool_calls", ())):
                inner = {"id": call["id"], **call["function"]}
                found |= {f"{here}.tool_calls.{at_call}.{k}": v for k, v in inner.items()}
    return found


def inferred(n: int) -> dict[str, Any]:
    """The same by OpenInference."""
    found: dict[str, Any] = {"llm.model_name": MODEL, "agent.name": "solver"}
    found |= {
        "llm.token_count.prompt": 20 + n,
        "llm.token_count.completion": 7,
        "llm.invocation_parameters": '{"temperature": 0.7}',
    }
    found["openinference.span.kind"] = "LLM"
    for prefix, messages in (("llm.input_messages", ASKED[n]), ("llm.output_messages", [ANSWERS[n]])):
        for place, message in enumerate(messages):
            here = f"{prefix}.{place}.message"
            found |= {f"{here}.{k}": v for k, v in message.items() if isinstance(v, str)}
            for at_call, call in enumerate(message.get("tool_calls", ())):
                name = f"{here}.tool_calls.{at_call}.tool_call"
                found[f"{name}.id"] = call["id"]
                found |= {f"{name}.function.{k}": v for k, v in call["function"].items()}
    return found


# ------------------------------------------------------------------------------------------------------- OTLP
@contextmanager
def tracing() -> Iterator[tuple[Any, list[Any]]]:
    """A tracer of the OpenTelemetry SDK, and the spans that it has ended."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    ended: list[Any] = []
    yield provider.get_tracer("test"), ended
    ended.extend(exporter.get_finished_spans())
    provider.shutdown()


def otlp(folder: Path) -> Path:
    """Written by the OpenTelemetry SDK and its encoder."""
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.trace import set_span_in_context

    with tracing() as (tracer, ended):
        root = tracer.start_span("run", attributes={"input.value": "What is 2 + 3?"})
        context = set_span_in_context(root)
        for n in range(2):
            tracer.start_span(f"chat {MODEL}", context, attributes=gen_ai(n)).end()
        score = {"gen_ai.evaluation.name": "reward", "gen_ai.evaluation.score.value": 0.5}
        tracer.start_span("evaluate", context, attributes=score).end()
        root.end()
    path = folder / "spans.jsonl"
    path.write_text(json.dumps(MessageToDict(encode_spans(ended))) + "\n")
    return path


# ------------------------------------------------------------------------------------------ as documented
def v03(folder: Path) -> Path:
    """Agent Lightning v0.3's ``Span`` models, a line each."""
    common: dict[str, Any] = {"rollout_id": "ro-1", "attempt_id": "at-1", "trace_id": TRACE}
    common["status"] = {"status_code": "OK"}
    reward = {"type": "reward", "value": 0.5}
    spans = [
        {"span_id": ROOT, "parent_id": None, "name": "run", "attributes": {"input": QUESTION}},
        *(
            {
                "span_id": span_id,
                "parent_id": ROOT,
                "name": "openai.chat.completion",
                "start_time": 2.0 + n,
                "attributes": {**numbered(n), "prompt_token_ids": [1, 2], "response_token_ids": [3]},
            }
            for n, span_id in enumerate((FIRST, SECOND))
        ),
        {
            "span_id": "c1",
            "parent_id": ROOT,
            "name": "agentlightning.annotation",
            "start_time": 9.0,
            "attributes": {"agentops.entity.output": json.dumps(reward)},
        },
    ]
    common |= {"start_time": 1.0, "end_time": 10.0}
    path = folder / "v03.jsonl"
    path.write_text(lines([{**common, "sequence_id": n, **span} for n, span in enumerate(spans)]))
    return path


def agentops(folder: Path) -> Path:
    """``GET /v2/traces/{id}`` of AgentOps; its spans nest their attributes."""
    reward = {"agentlightning": {"reward": [{"name": "reward", "value": 0.5}]}}
    given = [
        (ROOT, None, "run.session", 1.0, {"agentops": {"entity": {"input": "What is 2 + 3?"}}}),
        (FIRST, ROOT, "openai.chat.completion", 2.0, numbered(0)),
        (SECOND, ROOT, "openai.chat.completion", 3.0, numbered(1)),
        ("c1", ROOT, "reward", 9.0, reward),
    ]
    spans = [
        {
            "span_id": span_id,
            "parent_span_id": parent,
            "span_name": name,
            "start_time": iso(start),
            "end_time": iso(start + 1),
            "status_code": "STATUS_CODE_OK",
            "span_attributes": attributes,
        }
        for span_id, parent, name, start, attributes in given
    ]
    path = folder / "agentops.json"
    path.write_text(json.dumps({"trace_id": TRACE, "spans": spans}))
    return path


def phoenix(folder: Path) -> Path:
    """Rows of Phoenix's dataframe of spans, by ``to_json(orient="records")``."""
    given = [
        (ROOT, None, "run", "AGENT", 1.0, {"input.value": QUESTION}),
        *(
            (span_id, ROOT, "ChatCompletion", "LLM", 2.0 + n, inferred(n))
            for n, span_id in enumerate((FIRST, SECOND))
        ),
    ]
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "span_kind": kind,
            "parent_id": parent,
            "start_time": int(1000 * at(start).timestamp()),
            "end_time": int(1000 * at(start + 1).timestamp()),
            "status_code": "OK",
            "context.trace_id": TRACE,
            "context.span_id": span_id,
            **{f"attributes.{key}": value for key, value in attributes.items()},
        }
        for span_id, parent, name, kind, start, attributes in given
    ]
    rows[0]["annotations"] = [{"name": "reward", "result": {"score": 0.5}}]
    path = folder / "phoenix.json"
    path.write_text(json.dumps(rows))
    return path


def langfuse(folder: Path) -> Path:
    """``GET /api/public/traces/{id}`` of Langfuse."""
    observations = [
        {
            "id": span_id,
            "traceId": TRACE,
            "type": "GENERATION",
            "name": "chat",
            "parentObservationId": ROOT,
            "startTime": iso(2 + n),
            "endTime": iso(3 + n),
            "model": MODEL,
            "modelParameters": {"temperature": 0.7},
            "metadata": {"agent": "solver"},
            "input": ASKED[n],
            "output": ANSWERS[n],
            "usageDetails": {"input": 20 + n, "output": 7, "total": 27 + n},
            "level": "DEFAULT",
        }
        for n, span_id in enumerate((FIRST, SECOND))
    ]
    root = {"id": ROOT, "traceId": TRACE, "type": "SPAN", "name": "run", "startTime": iso(1)}
    scores = [{"id": "s", "traceId": TRACE, "name": "reward", "value": 0.5, "dataType": "NUMERIC"}]
    trace = {"id": TRACE, "timestamp": iso(1), "name": "run", "input": "What is 2 + 3?", "output": "It is 5."}
    path = folder / "langfuse.json"
    path.write_text(json.dumps({**trace, "observations": [root, *observations], "scores": scores}))
    return path


def langfuse_sdk(folder: Path) -> Path:
    """A page of observations, by the models of Langfuse's SDK (5 and later)."""
    from langfuse.api import ObservationsV2Response

    made = json.loads(langfuse(folder).read_text())
    extra = {"projectId": "p", "createdAt": iso(1), "updatedAt": iso(1)}
    rows = [
        {**extra, "input": QUESTION if one["id"] == ROOT else None, **one} for one in made["observations"]
    ]
    texts = [
        {
            name: json.dumps(value) if name in ("input", "output") and value else value
            for name, value in row.items()
        }
        for row in rows
    ]
    named = [{re.sub("([A-Z])", lambda m: "_" + m[1].lower(), k): v for k, v in row.items()} for row in texts]
    page = ObservationsV2Response.model_validate({"data": named, "meta": {}})
    path = folder / "observations.json"
    path.write_text(page.model_dump_json())
    return path


def phoenix_client(folder: Path) -> Path:
    """A page of spans, by the types of Phoenix's client and the names of OpenInference's package."""
    from openinference.semconv.trace import OpenInferenceSpanKindValues, SpanAttributes
    from phoenix.client.__generated__ import v1

    spans: list[v1.Span] = []
    for row in json.loads(phoenix(folder).read_text()):
        attributes = {k.removeprefix("attributes."): v for k, v in row.items() if k.startswith("attributes.")}
        if row["span_kind"] == OpenInferenceSpanKindValues.LLM.value:
            assert SpanAttributes.LLM_MODEL_NAME in attributes
            assert f"{SpanAttributes.LLM_INPUT_MESSAGES}.0.message.role" in attributes
        context = v1.SpanContext(trace_id=row["context.trace_id"], span_id=row["context.span_id"])
        times = {
            name: datetime.fromtimestamp(row[name] / 1000, UTC).isoformat()
            for name in ("start_time", "end_time")
        }
        kind = {"name": row["name"], "span_kind": row["span_kind"], "status_code": "OK"}
        span = v1.Span(context=context, attributes=attributes, **kind, **times)
        if row["parent_id"]:
            span["parent_id"] = row["parent_id"]
        spans.append(span)
    path = folder / "spans.json"
    path.write_text(json.dumps({"data": spans, "next_cursor": None}))
    return path


# -------------------------------------------------------------------------------------------------- LangSmith
def langsmith(folder: Path) -> Path:
    """Runs as LangSmith's ``Run`` models dump them, with LangChain's own dumps of messages."""
    from uuid import UUID

    from langchain_core.load import dumpd
    from langchain_core.messages import convert_to_messages
    from langsmith.schemas import Run

    root = UUID(int=1)
    common: dict[str, Any] = {"trace_id": root, "session_id": UUID(int=9), "start_time": at(1)}
    common["end_time"] = at(2)
    runs = [
        Run(
            id=root,
            name="run",
            run_type="chain",
            dotted_order="a",
            inputs={"question": "What is 2 + 3?"},
            outputs={},
            feedback_stats={"reward": {"n": 1, "avg": 0.5}},
            **common,
        )
    ]
    for n in range(2):
        asked = [dumpd(one) for one in convert_to_messages(ASKED[n])]
        [answer] = convert_to_messages([ANSWERS[n]])
        runs.append(
            Run(
                id=UUID(int=2 + n),
                name="ChatOpenAI",
                run_type="llm",
                parent_run_id=root,
                dotted_order=f"a.{n}",
                inputs={"messages": [asked]},
                outputs={"generations": [[{"text": answer.text, "message": dumpd(answer)}]]},
                extra={
                    "invocation_params": {"model": MODEL, "temperature": 0.7},
                    "metadata": {"langgraph_node": "solver"},
                },
                prompt_tokens=20 + n,
                completion_tokens=7,
                **{**common, "start_time": at(2 + n), "end_time": at(3 + n)},
            )
        )
    path = folder / "langsmith.jsonl"
    path.write_text(lines([json.loads(run.model_dump_json()) for run in runs]))
    return path


WRITERS: dict[str, Callable[[Path], Path]] = {
    "otlp": otlp,
    "v03": v03,
    "agentops": agentops,
    "langsmith": langsmith,
    "langfuse": langfuse,
    "phoenix": phoenix,
}
"""Format → a file of it."""
LIBRARIES: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "otlp": ("google.protobuf", otlp),
    "langsmith": ("langchain_core", langsmith),
    "langfuse": ("langfuse", langfuse_sdk),
    "phoenix": ("phoenix.client", phoenix_client),
}
"""Format → the library that writes a file of it, and how; a page of its API, which has no scores for some."""
