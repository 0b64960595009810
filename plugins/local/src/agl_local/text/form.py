"""The form in which a chat template wants the messages of the OpenAI API, and how they come into it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agl_local.text.rendering import TemplateError
from agl_local.text.syntax import CallSyntax

_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
_NAMED_ID = re.compile(r"functions\.[^\s:]+:\d+")


@dataclass(frozen=True)
class Form:
    """How messages of the OpenAI API reach a template. The defaults suit one that has no tools."""

    mapping: bool = True
    """Arguments of calls as a JSON object; else as text."""
    empty: str | None = ""
    """The content of a turn that only calls."""
    tools: str = "tools"
    """The variable by which the template takes tools; empty: it shows none to the model."""
    alone: bool = False
    """Calls without the text beside them: the template writes one of both, and not the calls."""
    parts: bool = False
    """Content as a list of one text part."""
    ids: str = "own"
    """Ids of calls: ``own`` as they are, ``short`` nine letters or digits, ``named`` ``functions.name:0``."""
    written: CallSyntax | None = None
    """The syntax in which calls are put into the content, for a template that leaves ``tool_calls`` out."""
    syntax: CallSyntax | None = None
    """How the policy writes calls; None: the template renders no call that could be read back."""
    problem: str = ""
    """Why there is no syntax."""

    def apply(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """``messages`` as the template wants them; arguments stay text, which ``sandbox`` makes an object."""
        known: dict[str, str] = {}
        return [self._message(message, known) for message in messages]

    def _message(self, message: Mapping[str, Any], known: dict[str, str]) -> dict[str, Any]:
        made = {key: value for key, value in message.items() if value is not None}
        content, calls = made.get("content") or "", made.pop("tool_calls", None)
        if calls:
            calls = [self._call(call, known) for call in calls]
            if self.written is not None:
                content = "\n".join(filter(None, (content, _written(self.written, calls))))
            else:
                made["tool_calls"] = calls
        if "tool_call_id" in made:
            made["tool_call_id"] = known.get(made["tool_call_id"], made["tool_call_id"])
        made["content"] = [{"type": "text", "text": content}] if self.parts else content
        if "tool_calls" in made and (not content or self.alone):
            made["content"] = [] if self.parts else self.empty
        return made

    def _call(self, call: Any, known: dict[str, str]) -> dict[str, Any]:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise TemplateError("each of tool_calls must be {'type': 'function', 'function': {'name': …}}")
        arguments = function.get("arguments")
        if isinstance(arguments, Mapping):
            arguments = json.dumps(arguments, ensure_ascii=False)
        if not isinstance(arguments, str | None):
            raise TemplateError(f"arguments of {function['name']!r} must be JSON as text")
        made = {**call, "function": {**function, "arguments": arguments or "{}"}}
        if "id" in call:
            known[call["id"]] = made["id"] = self.id_of(str(call["id"]), function["name"], len(known))
        return made

    def id_of(self, given: str, name: str, count: int) -> str:
        if self.ids == "short" and not _SHORT_ID.fullmatch(given):
            return hashlib.sha256(given.encode(errors="surrogatepass")).hexdigest()[:9]
        if self.ids == "named" and not _NAMED_ID.fullmatch(given):
            return f"functions.{name}:{count}"
        return given


def _written(syntax: CallSyntax, calls: Sequence[Mapping[str, Any]]) -> str:
    """Calls in one of the syntaxes of ``_WRITTEN``."""
    functions = [call["function"] for call in calls]
    if syntax.kind == "python":
        texts = []
        for f in functions:
            pairs = json.loads(f["arguments"]).items()
            texts.append(f"{f['name']}({', '.join(f'{key}={value!r}' for key, value in pairs)})")
        return f"{syntax.opens[-1]}[{', '.join(texts)}]{syntax.close}"
    texts = [f'{{"name": {json.dumps(f["name"])}, "arguments": {f["arguments"]}}}' for f in functions]
    if not syntax.close:
        return f"{syntax.opens[-1]}[{', '.join(texts)}]"
    return "\n".join(f"{syntax.opens[-1]}\n{text}\n{syntax.close}" for text in texts)
