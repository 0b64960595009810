"""The Modelfile of an exported policy: how Ollama serves its GGUF file.

Ollama of version 0.30 or later renders conversations by the file's own chat template where that does more
than ``TEMPLATE``; earlier ones know ``TEMPLATE`` alone, in Go's language. Invariant: a ``TEMPLATE`` that is
written renders the conversations of :data:`_PROBES` as the chat template does, and none is guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agl_local.policy.gguf_vocabulary import begins_with_bos
from agl_local.text.rendering import TemplateError
from agl_local.text.template import Message
from agl_local.text.tokenizer import ChatTokenizer

_ROLES = ("system", "user", "assistant")
_MOST_CONTEXT = 8192
"""Tokens of context that a Modelfile asks for at most: Ollama takes the memory when it loads the model."""
_ODD = ' Two lines,\n\n{{ braces }}, "quotes" and 温度. \n'
_PROBES = (
    ("user",),
    ("system", "user"),
    ("user", "assistant", "user"),
    ("system", "user", "assistant", "user", "assistant"),
)
"""Roles of conversations by which a translation is checked."""


def modelfile(tokenizer: ChatTokenizer, context: int, file: str, licence: str) -> tuple[str, list[str]]:
    """Return the Modelfile of ``file``, and notes: what Ollama does otherwise.

    ``context``: how many tokens the policy reads. Answers are greedy, as an evaluation's are.
    """
    template, notes = _template(tokenizer)
    stops = [tokenizer.backend.id_to_token(end) for end in tokenizer.eos_ids]
    lines = [
        f"FROM ./{file}",
        *([f'TEMPLATE """{template}"""'] if template else []),
        *(f'PARAMETER stop "{text}"' for text in stops if text and text.isprintable() and '"' not in text),
        f"PARAMETER num_ctx {min(context, _MOST_CONTEXT)}",
        "PARAMETER temperature 0",
        "PARAMETER repeat_penalty 1",
        *([f'LICENSE "{licence}"'] if licence.isprintable() and licence and '"' not in licence else []),
    ]
    if context > _MOST_CONTEXT:
        notes.append(f"num_ctx of the Modelfile is {_MOST_CONTEXT}; the policy reads {context} tokens.")
    return "\n".join(lines) + "\n", notes


def _template(tokenizer: ChatTokenizer) -> tuple[str, list[str]]:
    """Return the chat template in Go's language, empty where it has no equal, and notes."""
    if tokenizer.template is None:
        return "", ["The policy has no chat template: it continues texts."]
    frame = frame_of(tokenizer)
    if frame is None:
        return "", [
            "The chat template has no equal in Go's language, so the Modelfile has no TEMPLATE: Ollama "
            "before version 0.30 does not render conversations as they were trained."
        ]
    bos = tokenizer.special.get("bos_token", "") if begins_with_bos(tokenizer) else ""
    return replace(frame, begin=frame.begin.removeprefix(bos)).in_go(), [
        "TEMPLATE of the Modelfile has no tools; Ollama joins messages of one role that stand side by side."
    ]


@dataclass(frozen=True)
class Frame:
    """A chat template that puts each message between two texts of its role."""

    begin: str
    """What every conversation begins with."""
    start: str
    """What follows in one without a system message."""
    around: dict[str, tuple[str, str]]
    """Role → what stands before and after a message's content."""
    end: str
    """What an answer follows."""

    def render(self, messages: Sequence[Message]) -> str:
        """Return the prompt of a conversation, as :meth:`in_go` gives it."""
        parts = [] if messages[0]["role"] == "system" else [self.start]
        for message in messages:
            before, after = self.around[message["role"]]
            parts += [before, message["content"], after]
        return "".join([self.begin, *parts, self.end])

    def in_go(self) -> str:
        """Return the frame in the language of Go's text/template."""
        lines = ["{{- range $i, $_ := .Messages }}"]
        if self.start:
            start = _action(self.start)
            lines.append(f'{{{{- if and (eq $i 0) (ne .Role "system") }}}}{start}{{{{ end }}}}')
        for number, role in enumerate(_ROLES):
            before, after = map(_action, self.around[role])
            word = "else if" if number else "if"
            lines.append(f'{{{{- {word} eq .Role "{role}" }}}}{before}{{{{ .Content }}}}{after}')
        body = "\n".join([*lines, "{{- end }}", "{{- end }}"])
        return _action(self.begin) + body + _action(self.end)


def frame_of(tokenizer: ChatTokenizer) -> Frame | None:
    """Return the frame that a tokenizer's chat template is without tools; None if it is none."""
    marks = {"system": "qsq", "user": "quq", "assistant": "qaq", "again": "qvq"}
    talk = [{"role": role, "content": marks[role]} for role in _ROLES]
    again = {"role": "user", "content": marks["again"]}
    try:
        frame = _derived(tokenizer, talk, again)
        good = frame is not None and all(_same(frame, tokenizer, roles) for roles in _PROBES)
    except TemplateError:
        return None
    return frame if good else None


def _derived(tokenizer: ChatTokenizer, talk: list[dict[str, str]], again: dict[str, str]) -> Frame | None:
    """Return the frame that fits a few renderings; it may fit no others."""
    whole = tokenizer.render([*talk, again], add_generation_prompt=False)
    answered = tokenizer.render(talk, add_generation_prompt=False)
    asked = tokenizer.render([again], add_generation_prompt=False)
    prompt = tokenizer.render([again])
    pieces, rest = [], whole
    for message in (*talk, again):
        before, found, rest = rest.partition(message["content"])
        if not found:
            return None
        pieces.append(before)
    system, between, answer, question = pieces
    after_answer = answered.rpartition(talk[-1]["content"])[2]
    user = question.removeprefix(after_answer)
    start = asked.partition(again["content"])[0].removesuffix(user)
    bos = tokenizer.special.get("bos_token", "")
    # Where the token also begins each message, it is part of the message.
    once = system.startswith(bos) and start.startswith(bos) and not user.startswith(bos)
    begin = bos if once else ""
    around = {
        "system": (system.removeprefix(begin), between.removesuffix(user)),
        "user": (user, rest),
        "assistant": (answer.removeprefix(rest), after_answer),
    }
    return Frame(begin, start.removeprefix(begin), around, prompt.removeprefix(asked))


def _same(frame: Frame, tokenizer: ChatTokenizer, roles: Sequence[str]) -> bool:
    messages = [{"role": role, "content": f"{_ODD}{i}{_ODD}"} for i, role in enumerate(roles)]
    return frame.render(messages) == tokenizer.render(messages)


def _action(text: str) -> str:
    """Return an action of Go's templates that writes ``text``, whatever it holds."""
    return f'{{{{ "{"".join(map(_escaped, text))}" }}}}' if text else ""


def _escaped(character: str) -> str:
    if (short := {'"': '\\"', "\\": "\\\\", "\n": "\\n"}.get(character)) is not None:
        return short
    return character if character.isprintable() else f"\\U{ord(character):08x}"
