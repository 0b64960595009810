"""What form a chat template wants, and in which syntax it writes calls: found by rendering probes.

A probe is a conversation with names, keys and values that occur nowhere else. A form is right if the calls of
the rendered turn can be read back equal: alone, two at a time, with nested and empty arguments. So a template
that nobody here has seen works too, if it writes calls in one of the ways of ``syntax``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from os.path import commonprefix
from typing import Any, NamedTuple

from agl_local.text import syntax as s
from agl_local.text.rendering import TemplateError, TemplateStopped
from agl_local.text.syntax import ID, KEY, MARK, CallSyntax, Core, Writing
from agl_local.text.template import ChatTemplate
from agl_local.text.tools import parse_calls

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


_WRITTEN = {"<|tool_call|>": s.GRANITE, "<|tool_list_start|>": s.LFM, "<tool_call>": s.HERMES}
"""For templates that show tools and leave out calls: by a mark with which they show them."""

# ------------------------------------------------------------------------------------------------------ probes
_QUESTION, _SAID = "zqask", "zqsay"
_FIRST, _SECOND = "zqlook", "zqsend"
_TEXT_KEY, _NUMBER_KEY, _DEEP_KEY = "zqtext", "zqnumber", "zqdeep"
_TEXT, _NUMBER = "zqval one", 7041
_ID_TEXTS = ("call_zqid12345", "call_zqid67890")
_USER = {"role": "user", "content": _QUESTION}
_SAYS = {"role": "assistant", "content": _SAID}


def _tool(name: str) -> dict[str, Any]:
    properties = {
        _TEXT_KEY: {"type": "string", "description": "Words."},
        _NUMBER_KEY: {"type": "integer", "description": "A number."},
        _DEEP_KEY: {"type": "object", "description": "More.", "properties": {}},
    }
    parameters = {"type": "object", "properties": properties, "required": []}
    return {"type": "function", "function": {"name": name, "description": "Do.", "parameters": parameters}}


TOOLS = [_tool(_FIRST), _tool(_SECOND)]
_SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
Call = tuple[str, dict[str, Any]]
_A: Call = (_FIRST, {_TEXT_KEY: _TEXT, _NUMBER_KEY: _NUMBER})
_DEEP: Call = (_FIRST, {_DEEP_KEY: {"zqinner": 7043}})
_B: Call = (_SECOND, {_TEXT_KEY: "zqother", _NUMBER_KEY: 7042})
_PLAIN: Sequence[Sequence[Call]] = ([_A], [_DEEP])
"""Turns that must come back equal, besides [_A, _B]."""


def message_of(calls: Sequence[Call], content: str | None = None) -> dict[str, Any]:
    """An assistant message that makes ``calls``, as the OpenAI API has it."""
    made = [
        {
            "id": _ID_TEXTS[i],
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
        }
        for i, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": content, "tool_calls": made}


def turn(template: ChatTemplate, form: Form, message: Mapping[str, Any]) -> str:
    """What the template writes of ``message`` after the prompt, to the end of the text."""
    prompt = template.render([_USER], TOOLS, True, {}, form)
    whole = template.render([_USER, message], TOOLS, False, {}, form)
    return rest_of(whole, prompt)


def rest_of(whole: str, prompt: str) -> str:
    """``whole`` after what it has in common with ``prompt``, no mark cut: usually after ``prompt``."""
    return whole[len(_whole_marks(commonprefix((prompt, whole)))) :]


_CONTROL = re.compile(
    r"<\|[^<>\s]*>|<[^<>\s]*\|>|<｜[^<>]*｜>|\[\|[^\[\]]*\|\]|\[/?[A-Z_]{2,}\]|</?s>"
    r"|<(?:start|end)_[a-z_]*>|<SPECIAL_\d+>|<seed:[a-z]*os>|[\[\]][e~]~?b?[\[\]]"
)
"""Marks that are special tokens in the vocabularies of published models."""


def control_marks(template: ChatTemplate) -> tuple[list[str], list[str]]:
    """The special tokens that a template writes, in the order of a conversation with a call, and those that
    end a turn: of text, of calls. Raise TemplateError for a template that cannot write it.
    """
    form = template.form
    calls = [_A, _B] if form.syntax and form.syntax.many else [_A]
    result = {"role": "tool", "tool_call_id": _ID_TEXTS[0], "content": "zqresult"}
    talks: list[tuple[list[dict[str, Any]], str]] = [([_USER, _SAYS, _USER], _SAID)]
    if form.syntax is not None:
        talks.append(([_USER, message_of(calls), result], str(calls[-1][1][_NUMBER_KEY])))
    texts = [template.render(talk, TOOLS, True, {}) for talk, _ in talks]
    after = [text.partition(said)[2] for text, (_, said) in zip(texts, talks, strict=True)]
    last = template.render([_USER, _SAYS], TOOLS, False, {}).partition(_SAID)[2]
    after[0] = (
        last if _CONTROL.search(last) else after[0]
    )  # no token of its own ends it: the next role's does
    if form.syntax is not None:  # what closes the calls ends no turn
        ending = form.syntax.ending.strip()
        after[1] = ending or after[1].partition(form.syntax.close)[2]
    ends = [found[0] for text in after if (found := _CONTROL.search(text))]
    return list(dict.fromkeys([*_CONTROL.findall("".join(texts)), *ends])), list(dict.fromkeys(ends))


def study(template: ChatTemplate) -> Form:
    """The form that ``template`` wants. A broken template, or one that breaks a limit, has the default one."""
    try:
        return _study(template)
    except TemplateError as error:
        return Form(problem=str(error))


def _study(template: ChatTemplate) -> Form:
    base = replace(Form(), parts=_wants_parts(template))
    base = replace(base, tools=_tools_variable(template, base))
    shown = template.render([_USER], TOOLS, True, {}, base)
    problems: list[tuple[int, str]] = []
    for ids, mapping, empty in product(("own", "short", "named"), (True, False), (None, "")):
        form = replace(base, ids=ids, mapping=mapping, empty=empty)
        try:
            found = _derive(template, form)
        except TemplateStopped:
            raise
        except TemplateError as error:
            problems.append((2, str(error)))
            continue
        if found is not None:
            return _with_text(template, replace(form, syntax=found))
        written = turn(template, form, message_of([_A]))
        if _TEXT in written:
            said = f"calls cannot be read back from what the template writes: {written[:200]!r}"
            problems.append((0, said))
        else:
            problems.append((1, "the template leaves calls out of the conversation"))
    for mark, syntax in _WRITTEN.items():
        ending = turn(template, base, _SAYS).partition(_SAID)[2]
        form = replace(base, written=syntax, syntax=replace(syntax, ending=ending))
        if mark in shown and all(_reads_back(template, form, calls) for calls in _PLAIN):
            return form
    return replace(base, problem=min(problems)[1])


def _with_text(template: ChatTemplate, form: Form) -> Form:
    """``form``, without the text beside calls where the template leaves out the calls of a turn with text."""
    alone = replace(form, alone=True)
    return form if _reads_back(template, form, [_A], _SAID) else alone


def _tools_variable(template: ChatTemplate, form: Form) -> str:
    """The variable by which the template takes tools; empty: it shows none to the model."""
    names = re.findall(r"\b(?:\w+_)?(?:tools|functions)\b", template.source)
    for name in dict.fromkeys(["tools", *names]):
        try:
            if _FIRST in template.render([_USER], TOOLS, True, {}, replace(form, tools=name)):
                return name
        except TemplateStopped:
            raise
        except TemplateError:
            continue
    return ""


def _wants_parts(template: ChatTemplate) -> bool:
    for parts in (False, True):
        try:
            if _QUESTION in template.render([_USER], None, True, {}, Form(parts=parts)):
                return parts
        except TemplateStopped:
            raise
        except TemplateError:
            continue
    return False


def _reads_back(
    template: ChatTemplate, form: Form, calls: Sequence[Call], content: str | None = None
) -> bool:
    """Whether ``calls`` come back equal, with no text beside them but for ``content``."""
    if form.syntax is None:
        return False
    try:
        text = turn(template, form, message_of(calls, content))
    except TemplateStopped:
        raise
    except TemplateError:
        return False
    parsed = parse_calls(text.removesuffix(form.syntax.ending), form.syntax, schemas=_SCHEMAS)
    found = [(call.name, json.loads(call.arguments)) for call in parsed.calls]
    return found == list(calls) and (content is not None or not parsed.content)


# -------------------------------------------------------------------------------------------------- derivation
Span = tuple[int, int]


@dataclass(frozen=True)
class _Turns:
    """Rendered turns."""

    one: str
    two: str
    """Two calls; empty where the template refuses them, or writes one."""
    deep: str
    """A call with an object as its argument; empty where that is refused."""
    lead: str
    """What stands before the text of a turn with text."""
    end: str
    """And what stands after it."""


class _Found(NamedTuple):
    """Where the calls of ``one`` and of ``two`` stand, and how each is read."""

    kind: str
    core: Core
    one: Span
    two: Sequence[Span]
    """One span, if both are in one."""
    first: str = ""
    inside: tuple[str, ...] = ()
    tags: tuple[str, str, str, str] | None = None


def _derive(template: ChatTemplate, form: Form) -> CallSyntax | None:
    """The syntax in which ``template`` writes calls in this form, if they can be read back."""
    one = turn(template, form, message_of([_A]))
    if _TEXT not in one or (form.empty is None and re.search(r"\b(?:None|null)\b", one)):
        return None
    lead, _, end = turn(template, form, _SAYS).partition(_SAID)
    two, deep = _turn_or_none(template, form, [_A, _B]), _turn_or_none(template, form, [_DEEP])
    marked = [_mark_ids(text, form) for text in (one, two if "zqother" in two else "", deep)]
    turns = _Turns(*marked, lead, end)
    checked = [*_PLAIN, [_A, _B]] if turns.two else _PLAIN
    for find in (_json, _named, _python, _gemma, _tags):
        found = find(turns)
        if found is None or (turns.two and not found.two):
            continue
        candidate = _around(turns, found)
        if all(_reads_back(template, replace(form, syntax=candidate), calls) for calls in checked):
            return candidate
    return None


def _turn_or_none(template: ChatTemplate, form: Form, calls: Sequence[Call]) -> str:
    try:
        return turn(template, form, message_of(calls))
    except TemplateStopped:
        raise
    except TemplateError:
        return ""


def _mark_ids(text: str, form: Form) -> str:
    for i, given in enumerate(_ID_TEXTS):
        text = text.replace(form.id_of(given, (_FIRST, _SECOND)[i], i), ID) if form.ids != "named" else text
    return text


def _around(turns: _Turns, found: _Found) -> CallSyntax:
    """The literals around the calls that were found."""
    before, after = turns.one[: found.one[0]], turns.one[found.one[1] :]
    head = tail = ""
    single, open_ended = not turns.two, False
    if len(found.two) == 2:
        between = turns.two[found.two[0][1] : found.two[1][0]]
        tail = _whole_marks(commonprefix((after, between)))
        tail = tail.rstrip()
        head = _common_end(before, between).lstrip()
        before, after = before[: len(before) - len(head)], after[len(tail) :]
        longer = turns.two[found.two[1][1] :].removeprefix(tail)
        if after != longer and not after.strip():  # what closes several calls is left out after one
            after, open_ended = longer, True
    after, ending = _split_end(after, turns.end)
    own = before.removeprefix(turns.lead).strip()
    if not own and head.strip():  # each call is a block of its own
        before, own, head = before + head, head.strip(), ""
        if tail.strip():
            after, tail, single = tail + after, "", True
    opens = [before.strip(), own, _last_mark(own)] if own else []
    return CallSyntax(
        kind=found.kind,
        opens=tuple(sorted({literal for literal in opens if literal}, key=len, reverse=True)),
        close=after.strip(),
        core=found.core,
        head=head,
        tail=tail,
        single=single,
        open_ended=open_ended,
        many=bool(turns.two),
        first=found.first,
        inside=found.inside,
        writing=_writing(turns, found, ending),
        ending=ending,
    )


def _writing(turns: _Turns, found: _Found, ending: str) -> Writing | None:
    """The literals around names and arguments, where the arguments are JSON or tags."""
    if found.kind == "tags" and found.tags is not None and len(found.two) in (0, 2):
        name_end = found.one[0] + len(_FIRST)
        between = turns.one[name_end : turns.one.index(_TEXT_KEY, name_end)].removesuffix(found.tags[0])
        joint = turns.two[found.two[0][1] : found.two[1][0]] if found.two else ""
        after = turns.one[found.one[1] :].removesuffix(ending)
        return Writing(turns.one[: found.one[0]], between, after, joint, found.tags)
    if found.kind not in ("json", "named"):
        return None
    first, second = (json.dumps(call[1]) for call in (_A, _B))
    start = turns.one.find(first)
    name = turns.one.rfind(_FIRST, 0, start)
    if start < 0 or name < 0:
        return None
    joint, start_2 = "", turns.two.find(second)
    if start_2 >= 0:
        joint = turns.two[turns.two.find(first) + len(first) : turns.two.rfind(_SECOND, 0, start_2)]
    after = turns.one[start + len(first) :].removesuffix(ending)
    return Writing(turns.one[:name], turns.one[name + len(_FIRST) : start], after, joint)


def _whole_marks(literal: str) -> str:
    """``literal`` without the part of a mark that its end cuts."""
    cut = literal.rfind("<")
    return literal[:cut] if cut > literal.rfind(">") else literal


def _common_end(one: str, other: str) -> str:
    """What both end with, without the part of a mark that its beginning cuts."""
    common = one[len(one) - len(commonprefix((one[::-1], other[::-1]))) :]
    cut, opening = common.find(">"), common.find("<")
    return common[cut + 1 :] if cut >= 0 and (opening < 0 or cut < opening) else common


def _split_end(after: str, end: str) -> tuple[str, str]:
    """What closes the calls, and what ends the turn: as a turn with text, or else the last mark."""
    common = _common_end(after, end)
    if common == end or common.strip():
        return after[: len(after) - len(common)], common
    last = re.search(rf"(?:{MARK})\s*$", after)
    return (after[: last.start()], after[last.start() :]) if last else (after, "")


def _last_mark(literal: str) -> str:
    marks = list(re.finditer(MARK, literal))
    return literal[marks[-1].start() :] if marks else literal


def _values(text: str) -> Iterator[tuple[int, int, Any]]:
    """The JSON objects and lists in ``text`` that lie in no other one, with their places."""
    at = 0
    while (begun := re.compile(r"[{\[]").search(text, at)) is not None:
        try:
            value, at = json.JSONDecoder().raw_decode(text, begun.start())
            yield begun.start(), at, value
        except ValueError:
            at = begun.end()


def _json(turns: _Turns) -> _Found | None:
    def spans(text: str, names: Sequence[str]) -> list[tuple[int, int, Any]]:
        return [(a, b, v) for a, b, v in _values(text) if any(_shape(v, name) for name in names)]

    one = spans(turns.one, [_FIRST])
    if len(one) != 1:
        return None
    start, end, value = one[0]
    shape = _shape(value, _FIRST)
    assert shape is not None
    two = [(a, b) for a, b, _ in spans(turns.two, [_FIRST, _SECOND])]
    return _Found("json", s.json_core(*shape), (start, end), two, turns.one[start])


def _shape(value: Any, name: str) -> tuple[str, str, frozenset[str], str] | None:
    """How a JSON value holds a call of ``name``: key of the name, of the arguments, other keys, outer key."""
    if isinstance(value, list):
        return next((found for one in value if (found := _shape(one, name))), None)
    if not isinstance(value, dict):
        return None
    if name in value and isinstance(value[name], dict):
        return "", "", frozenset(), ""
    for key, inner in value.items():
        if inner == name:
            arguments = next((k for k, v in value.items() if isinstance(v, dict)), None)
            others = frozenset(value) - {key, arguments or ""}
            return (key, arguments, others, "") if arguments else None
        if isinstance(inner, dict) and (found := _shape(inner, name)) and found[0]:
            return found[0], found[1], frozenset(value) - {key} | found[2], key
    return None


def _named(turns: _Turns) -> _Found | None:
    def spans(text: str, calls: Sequence[Call]) -> list[tuple[int, int, int]]:
        found, done = [], 0
        for start, end, value in _values(text):
            name = next((n for n, arguments in calls if arguments == value), None)
            at = text.rfind(name, done, start) if name else -1
            if at >= 0 and name:
                found.append((at, start, end))
                done = end
        return found

    one = spans(turns.one, [_A])
    if len(one) != 1:
        return None
    (at, start, end) = one[0]
    middle = turns.one[at + len(_FIRST) : start]
    two = spans(turns.two, [_A, _B])
    if len(two) == 2 and turns.two[two[1][0] + len(_SECOND) : two[1][1]] != middle:
        middle = re.sub(r"\d+", s.INDEX, middle)
    return _Found("named", s.named_core(middle), (at, end), [(a, b) for a, _, b in two], "", (middle,))


def _python(turns: _Turns) -> _Found | None:
    def span(text: str, first: str, last: str) -> Span | None:
        start, end = text.find(first + "("), text.find(")", text.rfind(last + "("))
        if start < 0 or end < 0:
            return None
        listed = text[:start].endswith("[") and text[end + 1 :].startswith("]")
        return start - listed, end + 1 + listed

    one, two = span(turns.one, _FIRST, _FIRST), span(turns.two, _FIRST, _SECOND)
    if one is None:
        return None
    return _Found("python", s.python_core, one, [two] if two else [], turns.one[one[0]])


def _gemma(turns: _Turns) -> _Found | None:
    def span(text: str, name: str) -> Span | None:
        at = text.find(name + "{")
        try:
            return (at, s.gemma_core(text, at, {})[1]) if at >= 0 else None
        except ValueError:
            return None

    one, two = span(turns.one, _FIRST), [span(turns.two, name) for name in (_FIRST, _SECOND)]
    if one is None:
        return None
    return _Found("gemma", s.gemma_core, one, [place for place in two if place is not None], "", (s.QUOTE,))


def _tags(turns: _Turns) -> _Found | None:
    def places(text: str, name: str, first: str, second: str) -> list[int] | None:
        """Beginnings of name, key, value, key and value."""
        key = text.find(_TEXT_KEY, text.find(name))
        found = [text.rfind(name, 0, key), key]
        for piece in (first, _NUMBER_KEY, second):
            found.append(text.find(piece, found[-1] + 1))
        return found if key >= 0 and min(found) >= 0 else None

    one = places(turns.one, _FIRST, _TEXT, str(_NUMBER))
    if one is None:
        return None
    name, key, value, key_2, value_2 = one
    last = value_2 + len(str(_NUMBER))
    to_key = turns.one[value + len(_TEXT) : key_2].replace(_TEXT_KEY, KEY)
    after = turns.one[last:].replace(_NUMBER_KEY, KEY)
    after_value = _whole_marks(commonprefix((to_key, after))).rstrip()
    before_key = to_key[len(after_value) :]
    after_name = turns.one[name + len(_FIRST) : key].rstrip()
    after_name = after_name.removesuffix(before_key.strip()).rstrip()
    after_key = [turns.one[key + len(_TEXT_KEY) : value], turns.one[key_2 + len(_NUMBER_KEY) : value_2]]
    if (at := turns.deep.find(_DEEP_KEY)) >= 0 and (deep := turns.deep.find("{", at)) >= 0:
        after_key.append(turns.deep[at + len(_DEEP_KEY) : deep])
    end = last + len(after_value.replace(KEY, _NUMBER_KEY))
    two: list[Span] = []
    if turns.two:
        begun = places(turns.two, _FIRST, _TEXT, str(_NUMBER))
        rest = places(turns.two, _SECOND, "zqother", "7042") if begun else None
        if begun and rest:
            two = [(begun[0], begun[0] + end - name), (rest[0], rest[4] + 4 + end - last)]
    tail = ""
    if len(two) == 2:
        tail = _whole_marks(commonprefix((turns.one[end:], turns.two[two[0][1] : two[1][0]])))
    closing = tail.strip() or _split_end(turns.one[end:], turns.end)[0].strip()
    if len(two) == 2 and turns.two[two[1][0] + len(_SECOND) :][: len(after_name)] != after_name:
        after_name = re.sub(r"\d+", s.INDEX, after_name)
    inside = (after_name, before_key, *after_key, after_value)
    core = s.tags_core(after_name, before_key, after_key, after_value, closing)
    own = (to_key[len(after_value) :], after_key[0], after_key[1], after_value)
    return _Found("tags", core, (name, end), two, "", inside, None if KEY in "".join(own) else own)
