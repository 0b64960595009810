"""The syntax of calls, made from rendered turns: where calls stand, and which literals are around them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from agl_local.text import cores, probes as p
from agl_local.text.form import Form
from agl_local.text.rendering import TemplateError, TemplateStopped
from agl_local.text.syntax import ID, INDEX, KEY, MARK, CallSyntax, Core, Writing

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


def derive(template: p.Renders, form: Form) -> CallSyntax | None:
    """The syntax in which ``template`` writes calls in this form, if they can be read back."""
    one = p.turn(template, form, p.message_of([p.A]))
    if p.TEXT not in one or (form.empty is None and re.search(r"\b(?:None|null)\b", one)):
        return None
    lead, _, end = p.turn(template, form, p.SAYS).partition(p.SAID)
    two, deep = _turn_or_none(template, form, [p.A, p.B]), _turn_or_none(template, form, [p.DEEP])
    one, two, deep = (_mark_ids(text, form) for text in (one, two if "zqother" in two else "", deep))
    turns = _Turns(one, two, deep, lead, end)
    checked = [*p.PLAIN, [p.A, p.B]] if turns.two else p.PLAIN
    for find in (_json, _named, _python, _gemma, _tags):
        found = find(turns)
        if found is None or (turns.two and not found.two):
            continue
        candidate = _around(turns, found)
        if all(p.reads_back(template, replace(form, syntax=candidate), calls) for calls in checked):
            return candidate
    return None


def _turn_or_none(template: p.Renders, form: Form, calls: Sequence[p.Call]) -> str:
    try:
        return p.turn(template, form, p.message_of(calls))
    except TemplateStopped:
        raise
    except TemplateError:
        return ""


def _mark_ids(text: str, form: Form) -> str:
    for i, given in enumerate(p.ID_TEXTS):
        text = text.replace(form.id_of(given, (p.FIRST, p.SECOND)[i], i), ID) if form.ids != "named" else text
    return text


def _around(turns: _Turns, found: _Found) -> CallSyntax:
    """The literals around the calls that were found."""
    before, after = turns.one[: found.one[0]], turns.one[found.one[1] :]
    head = tail = ""
    single, open_ended = not turns.two, False
    if len(found.two) == 2:
        between = turns.two[found.two[0][1] : found.two[1][0]]
        tail = p.whole_marks(p.common_start(after, between))
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
        name_end = found.one[0] + len(p.FIRST)
        between = turns.one[name_end : turns.one.index(p.TEXT_KEY, name_end)].removesuffix(found.tags[0])
        joint = turns.two[found.two[0][1] : found.two[1][0]] if found.two else ""
        after = turns.one[found.one[1] :].removesuffix(ending)
        return Writing(turns.one[: found.one[0]], between, after, joint, found.tags)
    if found.kind not in ("json", "named"):
        return None
    first, second = (json.dumps(call[1]) for call in (p.A, p.B))
    start = turns.one.find(first)
    name = turns.one.rfind(p.FIRST, 0, start)
    if start < 0 or name < 0:
        return None
    joint, start_2 = "", turns.two.find(second)
    if start_2 >= 0:
        joint = turns.two[turns.two.find(first) + len(first) : turns.two.rfind(p.SECOND, 0, start_2)]
    after = turns.one[start + len(first) :].removesuffix(ending)
    return Writing(turns.one[:name], turns.one[name + len(p.FIRST) : start], after, joint)


def _common_end(one: str, other: str) -> str:
    """What both end with, without the part of a mark that its beginning cuts."""
    common = one[len(one) - len(p.common_start(one[::-1], other[::-1])) :]
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

    one = spans(turns.one, [p.FIRST])
    if len(one) != 1:
        return None
    start, end, value = one[0]
    shape = _shape(value, p.FIRST)
    assert shape is not None
    two = [(a, b) for a, b, _ in spans(turns.two, [p.FIRST, p.SECOND])]
    return _Found("json", cores.json_core(*shape), (start, end), two, turns.one[start])


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
    def spans(text: str, calls: Sequence[p.Call]) -> list[tuple[int, int, int]]:
        found, done = [], 0
        for start, end, value in _values(text):
            name = next((n for n, arguments in calls if arguments == value), None)
            at = text.rfind(name, done, start) if name else -1
            if at >= 0 and name:
                found.append((at, start, end))
                done = end
        return found

    one = spans(turns.one, [p.A])
    if len(one) != 1:
        return None
    (at, start, end) = one[0]
    middle = turns.one[at + len(p.FIRST) : start]
    two = spans(turns.two, [p.A, p.B])
    if len(two) == 2 and turns.two[two[1][0] + len(p.SECOND) : two[1][1]] != middle:
        middle = re.sub(r"\d+", INDEX, middle)
    return _Found("named", cores.named_core(middle), (at, end), [(a, b) for a, _, b in two], "", (middle,))


def _python(turns: _Turns) -> _Found | None:
    def span(text: str, first: str, last: str) -> Span | None:
        start, end = text.find(first + "("), text.find(")", text.rfind(last + "("))
        if start < 0 or end < 0:
            return None
        listed = text[:start].endswith("[") and text[end + 1 :].startswith("]")
        return start - listed, end + 1 + listed

    one, two = span(turns.one, p.FIRST, p.FIRST), span(turns.two, p.FIRST, p.SECOND)
    if one is None:
        return None
    return _Found("python", cores.python_core, one, [two] if two else [], turns.one[one[0]])


def _gemma(turns: _Turns) -> _Found | None:
    def span(text: str, name: str) -> Span | None:
        at = text.find(name + "{")
        try:
            return (at, cores.gemma_core(text, at, {})[1]) if at >= 0 else None
        except ValueError:
            return None

    one, two = span(turns.one, p.FIRST), [span(turns.two, name) for name in (p.FIRST, p.SECOND)]
    if one is None:
        return None
    return _Found(
        "gemma", cores.gemma_core, one, [place for place in two if place is not None], "", (cores.QUOTE,)
    )


def _tags(turns: _Turns) -> _Found | None:
    def places(text: str, name: str, first: str, second: str) -> list[int] | None:
        """Beginnings of name, key, value, key and value."""
        key = text.find(p.TEXT_KEY, text.find(name))
        found = [text.rfind(name, 0, key), key]
        for piece in (first, p.NUMBER_KEY, second):
            found.append(text.find(piece, found[-1] + 1))
        return found if key >= 0 and min(found) >= 0 else None

    one = places(turns.one, p.FIRST, p.TEXT, str(p.NUMBER))
    if one is None:
        return None
    name, key, value, key_2, value_2 = one
    last = value_2 + len(str(p.NUMBER))
    to_key = turns.one[value + len(p.TEXT) : key_2].replace(p.TEXT_KEY, KEY)
    after = turns.one[last:].replace(p.NUMBER_KEY, KEY)
    after_value = p.whole_marks(p.common_start(to_key, after)).rstrip()
    before_key = to_key[len(after_value) :]
    after_name = turns.one[name + len(p.FIRST) : key].rstrip()
    after_name = after_name.removesuffix(before_key.strip()).rstrip()
    after_key = [turns.one[key + len(p.TEXT_KEY) : value], turns.one[key_2 + len(p.NUMBER_KEY) : value_2]]
    if (at := turns.deep.find(p.DEEP_KEY)) >= 0 and (deep := turns.deep.find("{", at)) >= 0:
        after_key.append(turns.deep[at + len(p.DEEP_KEY) : deep])
    end = last + len(after_value.replace(KEY, p.NUMBER_KEY))
    two: list[Span] = []
    if turns.two:
        begun = places(turns.two, p.FIRST, p.TEXT, str(p.NUMBER))
        rest = places(turns.two, p.SECOND, "zqother", "7042") if begun else None
        if begun and rest:
            two = [(begun[0], begun[0] + end - name), (rest[0], rest[4] + 4 + end - last)]
    tail = ""
    if len(two) == 2:
        tail = p.whole_marks(p.common_start(turns.one[end:], turns.two[two[0][1] : two[1][0]]))
    closing = tail.strip() or _split_end(turns.one[end:], turns.end)[0].strip()
    if len(two) == 2 and turns.two[two[1][0] + len(p.SECOND) :][: len(after_name)] != after_name:
        after_name = re.sub(r"\d+", INDEX, after_name)
    inside = (after_name, before_key, *after_key, after_value)
    core = cores.tags_core(after_name, before_key, after_key, after_value, closing)
    own = (to_key[len(after_value) :], after_key[0], after_key[1], after_value)
    return _Found("tags", core, (name, end), two, "", inside, None if KEY in "".join(own) else own)
