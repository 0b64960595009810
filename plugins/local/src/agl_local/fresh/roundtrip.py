"""Whether what a chat template writes can be read back, and whether later prompts extend earlier ones.

Round trip: a conversation with calls of its own is rendered, the assistant's turn is parsed as the engine
parses an answer, the calls must be equal, and the parsed message must render to equal ids. Prefix: turn
n + 1's prompt must begin with the ids of turn n's prompt and answer; where it does not, each call becomes a
training row of its own and its context is computed again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agl_local.text.probes import common_start, rest_of
from agl_local.text.rendering import TemplateError, TemplateStopped
from agl_local.text.textstream import TextStream
from agl_local.text.tokenizer import ChatTokenizer
from agl_local.text.tools import Parsed, parse_calls

Message = dict[str, Any]
_TEXT = {"type": "string", "description": "A text."}
_NUMBER = {"type": "number", "description": "A number."}


def _tool(name: str, properties: Mapping[str, Any]) -> Message:
    parameters = {"type": "object", "properties": dict(properties), "required": []}
    return {
        "type": "function",
        "function": {"name": name, "description": f"{name}.", "parameters": parameters},
    }


TOOLS = [
    _tool("add_numbers", {"first": _NUMBER, "second": _NUMBER, "label": _TEXT}),
    _tool(
        "save_note", {"text": _TEXT, "fields": {"type": "object", "description": "More.", "properties": {}}}
    ),
]
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
Call = tuple[str, dict[str, Any]]
ADD: Call = ("add_numbers", {"first": 12, "second": 30.5, "label": "sum of both"})
NOTE: Call = ("save_note", {"text": "twelve"})
USER: Message = {"role": "user", "content": "How many are twelve and thirty?"}
CASES: dict[str, tuple[str | None, list[Call]]] = {
    "a call": (None, [ADD]),
    "a call, content empty": ("", [ADD]),
    "text and a call": ("I will add them.", [ADD]),
    "two calls": (None, [ADD, NOTE]),
    "no arguments": (None, [("save_note", {})]),
    "unicode": (None, [("save_note", {"text": "Grüße, 漢字 🙂"})]),
    "quotation marks": (None, [("save_note", {"text": 'it\'s "so" \\ <b> & {x: [1]}'})]),
    "several lines": (None, [("save_note", {"text": "one\n  two\n"})]),
    "a number as text": (None, [("save_note", {"text": "007"})]),
    "nested arguments": (None, [("save_note", {"fields": {"a": [1, {"b": None}], "c": True, "d": "x"}})]),
}
"""What an assistant says and calls in a turn, by what it tries."""
TALK: list[Message] = [
    USER,
    {"role": "assistant", "content": "42.5 in all."},
    {"role": "user", "content": "Sure?"},
]

_SYSTEM: Message = {"role": "system", "content": "Be brief."}
RULES: dict[str, list[Message]] = {
    "a system prompt": [_SYSTEM, USER],
    "two messages of the user in a row": [USER, TALK[2]],
    "a conversation that the assistant begins": [TALK[1], USER],
}
"""Conversations that some templates refuse by a rule about roles."""


@dataclass
class Examination:
    """What was found about a tokenizer's chat template."""

    round_trips: dict[str, str | None] = field(default_factory=dict)
    """Case → None, or what is wrong."""
    refused: dict[str, str] = field(default_factory=dict)
    """Cases that the template refuses by a rule of its own, with its reason."""
    warnings: list[str] = field(default_factory=list)
    prefix: str | None = None
    """Where and why a later prompt does not extend an earlier one; None: all do."""
    failed: str | None = None
    """Why agents with tools cannot use the policy."""

    @property
    def ok(self) -> bool:
        return self.failed is None and not any(self.round_trips.values())


def examine(tokenizer: ChatTokenizer) -> Examination:
    """Try all cases on a tokenizer. Raise TemplateError where not even a question can be rendered."""
    found = Examination()
    tokenizer.apply([USER], TOOLS)
    form = tokenizer.form
    if form.syntax is None:
        found.failed = form.problem
        return found
    if not form.tools:
        found.warnings.append(
            "the template shows no tools to the model, which knows them only if the agent's prompt names them"
        )
    for name, (content, calls) in CASES.items():
        _try(found, tokenizer, name, [USER], message(content, calls))
    history = [USER, message(None, [ADD]), result("42.5")]
    _try(found, tokenizer, "a call after a result", history, message(None, [NOTE], first=1))
    found.failed = _lost_result(tokenizer)
    found.prefix = stability(tokenizer)
    return found


def message(content: str | None, calls: Sequence[Call], first: int = 0) -> Message:
    """An assistant message of the OpenAI API."""
    made = [
        {
            "id": f"call_{first + i:024x}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
        }
        for i, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": content, **({"tool_calls": made} if made else {})}


def result(content: str, call: int = 0) -> Message:
    """A tool's answer."""
    return {"role": "tool", "tool_call_id": f"call_{call:024x}", "content": content}


def _try(
    found: Examination, tokenizer: ChatTokenizer, name: str, history: Sequence[Message], said: Message
) -> None:
    try:
        wrong = round_trip(tokenizer, history, said, found.warnings)
    except TemplateStopped:
        raise
    except TemplateError as error:
        if len(said["tool_calls"]) > 1:
            found.refused[name] = str(error)
        else:
            found.round_trips[name] = str(error)
        return
    found.round_trips[name] = wrong


def round_trip(
    tokenizer: ChatTokenizer, history: Sequence[Message], said: Message, warnings: list[str]
) -> str | None:
    """None if ``said``, rendered after ``history``, is read back equal and renders to equal ids, else what is
    wrong. A text beside the calls may be lost, with a warning. Raise TemplateError for a conversation that
    the template refuses.
    """
    text = turn_text(tokenizer, history, said)
    parsed = read(tokenizer, text)
    wanted = [_plain(call["function"]["name"], call["function"]["arguments"]) for call in said["tool_calls"]]
    got = [_plain(call.name, call.arguments) for call in parsed.calls]
    if got != wanted:
        why = f" ({parsed.malformed[0]})" if parsed.malformed else ""
        return f"the template writes {_short(text)}, which is read as {got or 'no call'}{why}"
    content = parsed.content
    if said["content"] and said["content"] not in (content or ""):
        warnings.append(f"the template leaves out the text beside calls: {_short(text)}")
    elif not said["content"]:
        content = None  # what stands there is not the answer's: the template begins the turn otherwise
    again = {**said, "content": content, "tool_calls": [call.to_openai() for call in parsed.calls]}
    first = tokenizer.apply([*history, said], TOOLS, add_generation_prompt=False)
    second = tokenizer.apply([*history, again], TOOLS, add_generation_prompt=False)
    return None if first == second else "read back and rendered again, the turn has other tokens"


def turn_text(tokenizer: ChatTokenizer, history: Sequence[Message], said: Message) -> str:
    """The answer that the template puts after ``history``, as the engine would have it from the policy: to
    the end token, special tokens without a text.
    """
    ids = tokenizer.encode(_rest(tokenizer, history, said))
    end = next((i for i, token in enumerate(ids) if token in tokenizer.eos_ids), len(ids))
    stream = TextStream(tokenizer)
    return stream.push_all(ids[:end]) + stream.finish()


def _rest(tokenizer: ChatTokenizer, history: Sequence[Message], said: Message) -> str:
    """What the template puts after the prompt of ``history``, or after that prompt's last line if it writes
    the history otherwise once it is answered.
    """
    prompt = tokenizer.render(history, TOOLS)
    whole = tokenizer.render([*history, said], TOOLS, add_generation_prompt=False)
    bare = tokenizer.render(history, TOOLS, add_generation_prompt=False)
    begun = prompt[len(common_start(bare, prompt)) :]
    if begun.strip() and not whole.startswith(prompt) and begun in whole:
        return whole[whole.rindex(begun) + len(begun) :]
    return rest_of(whole, prompt)


def read(tokenizer: ChatTokenizer, text: str) -> Parsed:
    """Content and calls of an answer, as the engine reads it."""
    return parse_calls(text, tokenizer.syntax, lambda k: f"call_{k:024x}", SCHEMAS)


def _plain(name: str, arguments: str) -> Call:
    return name, json.loads(arguments)


def _short(text: str) -> str:
    return repr(text if len(text) <= 160 else f"{text[:160]}…")


def _lost_result(tokenizer: ChatTokenizer) -> str | None:
    """What is wrong if the model never sees the answer of a tool."""
    said = "zq-result-4711"
    try:
        shown = tokenizer.render([USER, message(None, [ADD]), result(said)], TOOLS)
    except TemplateStopped:
        raise
    except TemplateError as error:
        return f"no result of a tool can be given back: {error}"
    return None if said in shown else "the template leaves out what a tool answers"


# ----------------------------------------------------------------------------------------------------- prefix
def conversation() -> Iterator[tuple[list[Message], Message]]:
    """The turns of an agent: what was said before each, and the assistant's message."""
    said: list[Message] = [USER]
    answers = [message(None, [ADD]), message(None, [NOTE], first=1), message("42.5 in all.", [])]
    after = [result("42.5"), result("saved", call=1), {"role": "user", "content": "And twice that?"}]
    for answer, next_one in zip(answers, after, strict=True):
        yield list(said), answer
        said += [answer, next_one]
    yield list(said), message("85.", [])


def stability(tokenizer: ChatTokenizer) -> str | None:
    """Where and why a later prompt does not extend an earlier one and its answer, and what it costs; None if
    all do.
    """
    turns = list(conversation())
    ids: list[int] = []
    text = ""
    breaks: list[str] = []
    apart = together = 0
    for number, (history, said) in enumerate(turns, start=1):
        prompt_text = tokenizer.render(history, TOOLS)
        prompt = tokenizer.encode(prompt_text)
        if ids and prompt[: len(ids)] != ids:
            breaks.append(f"turn {number} does not extend turn {number - 1}: {_cause(text, prompt_text)}")
            together += len(ids)
        answer = answer_text(tokenizer, history, said)
        ids, text = prompt + tokenizer.encode(answer), prompt_text + answer
        apart += len(ids)
    together += len(ids)
    if not breaks:
        return None
    return (
        f"{breaks[0]} (in {len(breaks)} of {len(turns) - 1} later turns of a conversation with tools): calls "
        f"that do not extend are rows of their own, {together} tokens here where one row had {len(ids)}"
    )


def answer_text(tokenizer: ChatTokenizer, history: Sequence[Message], said: Message) -> str:
    """The answer of a policy that writes as its template does, end token included."""
    ids = tokenizer.encode(_rest(tokenizer, history, said))
    ends = [i for i, token in enumerate(ids) if token in tokenizer.eos_ids]
    return tokenizer.decode(ids[: ends[0] + 1] if ends else ids)


def _cause(before: str, now: str) -> str:
    if now.startswith(before):
        return "the same text has other tokens"
    at = len(common_start(before, now))
    what = f"{before[at : at + 40]!r} became {now[at : at + 40]!r}"
    if "think" in before[max(0, at - 12) : at + 24]:
        return f"the template leaves out earlier thinking: {what}"
    return f"the template writes earlier turns otherwise: {what}"
