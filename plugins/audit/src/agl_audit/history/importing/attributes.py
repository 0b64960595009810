"""A span of a model call, by its attributes: three conventions.

* OpenTelemetry's GenAI semantic conventions (1.37 and later): ``gen_ai.input.messages``,
  ``gen_ai.output.messages`` as JSON of messages with parts.
* The earlier form of OpenLLMetry, AgentOps and Agent Lightning v0.3: ``gen_ai.prompt.0.role``,
  ``gen_ai.completion.0.content``.
* OpenInference (Phoenix): ``llm.input_messages.0.message.role``, ``llm.output_messages.0.message.content``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agl_audit.history.importing.trace import ImportedCall, Message, count, text_of
from agl_audit.history.importing.values import flat, numbered, parsed

Attributes = Mapping[str, Any]
_SAMPLING = ("temperature", "top_p", "max_tokens", "seed", "frequency_penalty", "presence_penalty")
_AGENT = ("gen_ai.agent.name", "agent.name", "agentops.agent.name", "graph.node.id", "traceloop.entity.name")


def call_of(attributes: Attributes) -> ImportedCall | None:
    """Return the model call that a span describes; ``None`` if it describes none, or has no messages."""
    known = flat(attributes)
    for read in (_gen_ai, _numbered_gen_ai, _open_inference):
        messages, answers = read(known)
        if messages:
            break
    else:
        return None
    model = _first(known, "gen_ai.response.model", "gen_ai.request.model", "llm.model_name")
    used = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
    made = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion")
    reason = parsed(_first(known, "gen_ai.response.finish_reasons", "gen_ai.completion.0.finish_reason"))
    return ImportedCall(
        messages=messages,
        answer=answers[0] if answers else None,
        model=str(model or ""),
        agent=str(_first(known, *_AGENT) or ""),
        tools=_tools(known),
        prompt_tokens=count(_first(known, *used)),
        completion_tokens=count(_first(known, *made)),
        sampling=_sampling(known),
        finish_reason=str(reason[0] if isinstance(reason, list) and reason else reason) if reason else None,
    )


def _first(known: Attributes, *names: str) -> Any:
    return next((known[name] for name in names if known.get(name) not in (None, "", [], ())), None)


def _sampling(known: Attributes) -> dict[str, Any]:
    found = {name: known[f"gen_ai.request.{name}"] for name in _SAMPLING if f"gen_ai.request.{name}" in known}
    given = parsed(known.get("llm.invocation_parameters"))
    if isinstance(given, dict):
        found |= {name: given[name] for name in _SAMPLING if name in given}
    return found


def _tools(known: Attributes) -> list[dict[str, Any]]:
    told = parsed(known.get("gen_ai.tool.definitions"))
    if isinstance(told, list):
        return [one for one in told if isinstance(one, dict)]
    listed = [parsed(one.get("tool.json_schema")) for one in numbered(known, "llm.tools")]
    functions = [
        {
            "type": "function",
            "function": {
                "name": one["name"],
                "description": one.get("description", ""),
                "parameters": parsed(one.get("parameters")) or {},
            },
        }
        for one in numbered(known, "llm.request.functions")
        if "name" in one
    ]
    return [one for one in listed if isinstance(one, dict)] or functions


# ------------------------------------------------------------------------------------ GenAI, with parts
def _gen_ai(known: Attributes) -> tuple[list[Message], list[Message]]:
    system = parsed(known.get("gen_ai.system_instructions"))
    before = [{"role": "system", "content": _joined(system)}] if system else []
    messages = [message for one in _items(known, "gen_ai.input.messages") for message in _of_parts(one)]
    answers = [message for one in _items(known, "gen_ai.output.messages") for message in _of_parts(one)]
    return [*before, *messages] if messages else [], answers


def _items(known: Attributes, name: str) -> list[dict[str, Any]]:
    found = parsed(known.get(name))
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _joined(parts: Any) -> str:
    if isinstance(parts, str):
        return parts
    return "".join(str(part.get("content", "")) for part in parts if isinstance(part, dict))


def _of_parts(one: Mapping[str, Any]) -> list[Message]:
    role, parts = str(one.get("role", "user")), one.get("parts")
    if not isinstance(parts, list):
        return [{"role": role, "content": text_of(one.get("content"))}]
    told = [part for part in parts if isinstance(part, dict)]
    results = [
        {
            "role": "tool",
            "tool_call_id": part.get("id"),
            "content": _text(part.get("response", part.get("result"))),
        }
        for part in told
        if part.get("type") == "tool_call_response"
    ]
    if results:
        return results
    texts = [part for part in told if part.get("type") == "text"]
    calls = [
        tool_call(part.get("id"), part.get("name"), part.get("arguments"))
        for part in told
        if part.get("type") == "tool_call"
    ]
    message: Message = {"role": role, "content": _joined(texts) if texts or not calls else None}
    return [{**message, "tool_calls": calls} if calls else message]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def tool_call(call_id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """Return a tool call as the chat completions API has it."""
    return {
        "id": str(call_id or ""),
        "type": "function",
        "function": {"name": str(name or ""), "arguments": _text({} if arguments is None else arguments)},
    }


# ------------------------------------------------------------------------------- GenAI, numbered attributes
def _numbered_gen_ai(known: Attributes) -> tuple[list[Message], list[Message]]:
    return _messages(numbered(known, "gen_ai.prompt")), _messages(
        numbered(known, "gen_ai.completion"), "assistant"
    )


def _messages(items: Sequence[Mapping[str, Any]], role: str = "user") -> list[Message]:
    found = []
    for one in items:
        calls = [
            tool_call(call.get("id"), call.get("name"), call.get("arguments"))
            for call in numbered(one, "tool_calls")
        ]
        message: Message = {
            "role": str(one.get("role") or role),
            "content": text_of(parsed(one.get("content"))),
        }
        if one.get("tool_call_id"):
            message["tool_call_id"] = one["tool_call_id"]
        found.append({**message, "tool_calls": calls} if calls else message)
    return found


# ------------------------------------------------------------------------------------------- OpenInference
def _open_inference(known: Attributes) -> tuple[list[Message], list[Message]]:
    if str(known.get("openinference.span.kind", "LLM")).upper() != "LLM":
        return [], []
    asked, told = numbered(known, "llm.input_messages"), numbered(known, "llm.output_messages")
    return [_inferred(one) for one in asked], [_inferred(one, "assistant") for one in told]


def _inferred(one: Mapping[str, Any], role: str = "user") -> Message:
    known = {name.removeprefix("message."): value for name, value in one.items()}
    calls = [
        tool_call(
            call.get("tool_call.id"),
            call.get("tool_call.function.name"),
            call.get("tool_call.function.arguments"),
        )
        for call in numbered(known, "tool_calls")
    ]
    parts = [str(part.get("message_content.text", "")) for part in numbered(known, "contents")]
    content = known.get("content", "".join(parts) if parts else None)
    message: Message = {"role": str(known.get("role") or role), "content": content}
    if known.get("tool_call_id"):
        message["tool_call_id"] = known["tool_call_id"]
    return {**message, "tool_calls": calls} if calls else message
