"""Published chat templates, one or two of each family: what they want, and that their calls are read back.

The templates and what is expected of each are in ``templates/`` (``families.toml``).
"""

from __future__ import annotations

import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agl_local.fresh.roundtrip import ADD, NOTE, TOOLS, USER, Examination, examine, message, read, turn_text
from agl_local.fresh.tokenizer import tokenizer_for
from agl_local.sft.chats import Chat, ChatDataError, encode
from agl_local.text.form import Form
from agl_local.text.rendering import TemplateError
from agl_local.text.template import ChatTemplate
from agl_local.text.tokenizer import ChatTokenizer
from agl_local.text.tools import CallStream

FOLDER = Path(__file__).parent / "templates"
FAMILIES: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "families.toml").read_text(encoding="utf-8"))
READ = sorted(name for name, family in FAMILIES.items() if "problem" not in family)
LOST = sorted(set(FAMILIES) - set(READ))
BROKEN = {
    "gptoss": ["text and a call"],
    "nemotron_3_nano": ["text and a call"],
    "lfm2_2_5_v2": ["quotation marks", "several lines"],
}
"""Cases that the check refuses: what these templates make of a text beside a call is not what was said, or
they write a text in quotation marks without escaping those, or line ends, in it.
"""
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "c",
            "type": "function",
            "function": {"name": "calculate", "arguments": '{"expression": "2+3"}'},
        }
    ],
}
ASKED = {"role": "user", "content": "What is 2+3?"}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "5"}


def source(name: str) -> str:
    return (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")


@cache
def template(name: str) -> ChatTemplate:
    return ChatTemplate(source(name), SPECIAL)


@cache
def tokenizer(name: str) -> ChatTokenizer:
    """A small tokenizer whose special tokens are the template's marks."""
    chats = [Chat([USER, {"role": "assistant", "content": "42.5 in all."}], TOOLS)]
    return tokenizer_for(chats, 2048, FOLDER / f"{name}.jinja")


@cache
def examined(name: str) -> Examination:
    return examine(tokenizer(name))


def test_every_template_is_in_the_table() -> None:
    assert {file.stem for file in FOLDER.glob("*.jinja")} == set(FAMILIES)


@pytest.mark.parametrize("name", READ)
def test_the_form_is_found_by_rendering(name: str) -> None:
    want, form = FAMILIES[name], template(name).form
    syntax = form.syntax
    assert syntax is not None, form.problem
    found = {
        "family": want["family"],
        "kind": syntax.kind,
        "opens": list(syntax.opens),
        "close": syntax.close,
        "head": syntax.head,
        "ending": syntax.ending,
        "calls_in_a_turn": "many" if syntax.many else "one",
        "arguments": "object" if form.mapping else "text",
        "empty": "null" if form.empty is None else form.empty,
        "ids": form.ids,
        "shows_tools": bool(form.tools),
        "thinks": want["thinks"],
    }
    found |= {"written_into_the_content": True} if form.written else {}
    found |= {"text_beside_calls": False} if form.alone else {}
    assert found == want


@pytest.mark.parametrize("name", LOST)
def test_a_template_without_calls_says_so(name: str) -> None:
    form = template(name).form
    assert form.syntax is None and form.problem.startswith(FAMILIES[name]["problem"])


@pytest.mark.parametrize("name", READ)
def test_calls_come_back_equal(name: str) -> None:
    found = examined(name)
    wrong = [case for case, reason in found.round_trips.items() if reason]
    assert found.failed is None and wrong == BROKEN.get(name, []), found.round_trips
    assert len(found.round_trips) + len(found.refused) == 11


@pytest.mark.parametrize("name", READ)
def test_arguments_are_not_encoded_twice(name: str) -> None:
    """History holds the call that the model made, also where the template refuses text."""
    shown = template(name).render([ASKED, CALL, RESULT], TOOLS, True, {})
    assert "2+3" in shown and '\\"expression\\"' not in shown


@pytest.mark.parametrize("name", ["qwen2_5", "llama3_1", "mistral_small_3_2", "hermes3"])
def test_arguments_stand_in_the_prompt_as_the_model_wrote_them(name: str) -> None:
    """White space of its own too: so the next prompt extends the answer token by token."""
    odd = '{"expression":"2+3",  "b" : 1.50}'
    call = {**CALL["tool_calls"][0], "function": {"name": "calculate", "arguments": odd}}
    shown = template(name).render([ASKED, {**CALL, "tool_calls": [call]}, RESULT], TOOLS, True, {})
    assert odd in shown


@pytest.mark.parametrize("name", ["qwen2_5", "llama3_1", "qwen3_5_think"])
def test_it_is_the_text_of_a_template_that_is_given_an_object(name: str) -> None:
    """As transformers renders it for those who parse the arguments first."""
    plain = Form(mapping=False)
    function = {"name": "calculate", "arguments": {"expression": "2+3"}}
    given = {**CALL, "content": "", "tool_calls": [{**CALL["tool_calls"][0], "function": function}]}
    messages = [ASKED, given, RESULT]
    variables = {"messages": messages, "tools": TOOLS, "add_generation_prompt": True, **SPECIAL}
    from agl_local.text.rendering import RENDERER

    assert RENDERER.render(source(name), variables, plain.mapping) == template(name).render(
        [ASKED, CALL, RESULT], TOOLS, True, {}
    )


@pytest.mark.parametrize("name", READ)
def test_any_pieces_give_the_same_parse(name: str) -> None:
    one = tokenizer(name)
    assert one.form.syntax is not None
    calls = [ADD, NOTE] if one.form.syntax.many else [ADD]
    text = turn_text(one, [USER], message("So:", calls))
    whole = read(one, text)
    stream = CallStream(one.syntax, lambda k: f"call_{k:024x}", {})
    stream._schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    pieces = [stream.push(char) for char in text] + [stream.finish()]
    assert "".join(content for content, _ in pieces) == (whole.content or "")
    assert [call for _, made in pieces for call in made] == whole.calls
    assert stream.malformed == whole.malformed
    assert "".join(raw for _, raw in stream.segments) == text


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("cut", [1, 7, 20])
def test_a_broken_call_stays_in_the_content(name: str, cut: int) -> None:
    one = tokenizer(name)
    text = turn_text(one, [USER], message(None, [ADD]))
    parsed = read(one, text[: len(text) // 2 - cut])
    assert not parsed.calls and (parsed.content or "") == text[: len(text) // 2 - cut]


@pytest.mark.parametrize("name", READ)
def test_thousands_of_brackets_are_no_call(name: str) -> None:
    one = tokenizer(name)
    assert one.form.syntax is not None
    text = turn_text(one, [USER], message(None, [NOTE])).replace("twelve", "[{" * 20000)
    for body in (text, text.replace('"[', "[").replace("'[", "[")):
        parsed = read(one, body)
        assert len(parsed.calls) <= 1


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3_5_think", "llama3_1", "granite_3_3"])
def test_sft_teaches_the_form_that_the_engine_reads(name: str) -> None:
    one = tokenizer(name)
    chat = Chat([USER, message(None, [ADD])], TOOLS)
    (sample,) = encode(one, [chat], 10_000).samples
    answer = one.decode([sample.ids[i] for i in sample.trained if sample.ids[i] not in one.eos_ids])
    assert [(c.name, json.loads(c.arguments)) for c in read(one, answer).calls] == [ADD]


def test_sft_refuses_a_call_that_the_template_leaves_out() -> None:
    with pytest.raises(ChatDataError, match=r"a chat.*calls.*leaves calls out"):
        encode(tokenizer("phi3"), [Chat([USER, message(None, [ADD])], TOOLS)], 10_000)


@pytest.mark.parametrize(
    ("name", "messages", "rule"),
    [
        ("llama3_1", [USER, message(None, [ADD, NOTE])], r"line \d+.*single tool-calls at once"),
        ("gemma3", [USER, USER], r"line \d+.*must alternate"),
        ("mistral_nemo", [message("Hi", []), USER], r"line \d+.*"),
    ],
)
def test_a_rule_of_the_template_is_named(name: str, messages: list[dict[str, Any]], rule: str) -> None:
    with pytest.raises(TemplateError, match=rf"refuses this conversation \({rule}"):
        template(name).render(messages, TOOLS, True, {})


def test_arguments_that_are_no_json_are_named() -> None:
    call = {**CALL["tool_calls"][0], "function": {"name": "calculate", "arguments": "{oops"}}
    with pytest.raises(TemplateError, match=r"messages\[1\]: arguments of 'calculate' are no JSON"):
        template("llama3_1").render([ASKED, {**CALL, "tool_calls": [call]}], TOOLS, True, {})


def test_no_arguments_are_an_empty_object() -> None:
    call = {**CALL["tool_calls"][0], "function": {"name": "calculate", "arguments": ""}}
    shown = template("qwen2_5").render([ASKED, {**CALL, "tool_calls": [call]}], TOOLS, True, {})
    assert '"arguments": {}' in shown


def test_a_template_that_nobody_has_seen_works_too() -> None:
    """Marks, keys and order of its own."""
    unseen = ChatTemplate(
        "{% if tools %}{{ tools | tojson }}{% endif %}"
        "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
        "«do»{{ {'fn': c.function.name, 'with': c.function.arguments} | tojson }}«done»"
        "{% endfor %}[end]{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    form = unseen.form
    assert form.syntax is not None and form.syntax.kind == "json" and form.syntax.opens == ("«do»",)
    parsed = form.syntax.read('{"fn": "f", "with": {"a": [1]}}', {})
    assert [(call.name, call.arguments) for call in parsed] == [("f", '{"a": [1]}')]
