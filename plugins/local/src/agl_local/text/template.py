"""Chat templates as published with models, and the form in which each wants the messages of the OpenAI API.

Published templates differ in what they take: arguments of a call as a JSON object or as text, no content as
null or as an empty text, content as text or as parts, ids of a certain shape. Nothing of this is decided by a
model's name: ``forms.study`` renders probes, once for each template, and sees which form comes out right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from agl_local.text.form import Form
from agl_local.text.forms import study
from agl_local.text.rendering import RENDERER, TemplateError

Message = Mapping[str, Any]


class ChatTemplate:
    """A chat template: ``render`` is a pure function of its arguments (but for ``strftime_now``).

    ``special``: the tokenizer's special tokens by the names that templates use (``bos_token`` …).
    """

    def __init__(self, source: str, special: Mapping[str, str] | None = None) -> None:
        self.source = source
        self.special = dict(special or {})

    def check(self) -> None:
        """Raise TemplateError for a text that is no template; a line is named."""
        RENDERER.render(self.source, None, False)

    @cached_property
    def form(self) -> Form:
        """The form that the template wants, and the syntax of its calls."""
        return study(self)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
        form: Form | None = None,
    ) -> str:
        """The prompt text. Raise TemplateError with the template's own reason."""
        plain = [_plain(message) for message in messages]
        form = form or self.form
        given = {
            **self.special,
            **variables,
            "messages": form.apply(plain),
            "tools": None,
            form.tools or "tools": list(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        text = RENDERER.render(self.source, given, form.mapping)
        most = max((len(message.get("tool_calls") or ()) for message in plain), default=0)
        if most > 1 and form.syntax is not None and not form.syntax.many:
            raise TemplateError(f"the chat template writes one call in a turn, and a message has {most}")
        return text


def _plain(message: Message) -> dict[str, Any]:
    """Text parts become one string, joined by newlines; other parts are refused. Nothing else is touched."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return dict(message)
    if not isinstance(content, Sequence):
        raise TemplateError(
            f"message content must be text, null or a list of parts, not {type(content).__name__}"
        )
    texts: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise TemplateError(
                f"message content part of type {kind!r} is not supported: this engine reads text only. Leave "
                "images and other media out, or serve the policy with an engine that takes them"
            )
        texts.append(part["text"])
    return {**message, "content": "\n".join(texts)}
