from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, strategies as st
from transformers import AutoTokenizer

from agl_local.network.config import ConfigError
from agl_local.text.rendering import TemplateError
from agl_local.text.tokenizer import ChatTokenizer
from plugins.local.tests.engine_fixtures import TOOL, trained_tokenizer

CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "add", "arguments": '{"a":1,  "b": 2.0}'},
}
USER = {"role": "user", "content": "Was ist 1 + 2? <b>&amp;</b>"}
HISTORIES = [
    ([USER], None),
    ([{"role": "system", "content": "Be brief."}, USER], None),
    ([USER], [TOOL]),
    ([{"role": "system", "content": "Be brief."}, USER], [TOOL, TOOL]),
    (
        [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "3"},
            {"role": "tool", "tool_call_id": "call_1", "content": "3"},
            {"role": "assistant", "content": "It is 3."},
            {"role": "user", "content": "Sure?"},
        ],
        [TOOL],
    ),
]
TOKENIZER = trained_tokenizer()


@pytest.mark.parametrize(("messages", "tools"), HISTORIES)
@pytest.mark.parametrize("prompt", [True, False])
def test_rendering_is_that_of_transformers(messages, tools, prompt, policy_dir):
    ours = ChatTokenizer.load(policy_dir)
    theirs = AutoTokenizer.from_pretrained(policy_dir)
    options = {"tools": tools, "add_generation_prompt": prompt}
    text = theirs.apply_chat_template(messages, tokenize=False, **options)
    assert ours.render(messages, **options) == text
    ids = theirs.apply_chat_template(messages, tokenize=True, return_dict=False, **options)
    assert ours.apply(messages, **options) == ids


def test_arguments_reach_the_template_as_they_are():
    messages, tools = HISTORIES[-1]
    assert '{"a":1,  "b": 2.0}' in TOKENIZER.render(messages, tools)


def test_text_parts_become_one_text_and_others_are_refused():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert "one\ntwo" in TOKENIZER.render([{"role": "user", "content": parts}])
    with pytest.raises(TemplateError, match=r"image_url.*this engine reads text only"):
        TOKENIZER.render([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])
    with pytest.raises(TemplateError, match="int"):
        TOKENIZER.render([{"role": "user", "content": 3}])


def test_the_templates_own_refusal_is_the_reason():
    with pytest.raises(TemplateError, match="only the first message may be system"):
        TOKENIZER.render([USER, {"role": "system", "content": "late"}])


def test_without_a_template_there_is_no_chat():
    with pytest.raises(TemplateError, match="no chat template"):
        ChatTokenizer(TOKENIZER.backend).render([USER])


def test_a_broken_template_names_its_line():
    with pytest.raises(TemplateError, match="line 2"):
        ChatTokenizer(TOKENIZER.backend, chat_template="fine\n{% if %}").render([USER])


@pytest.mark.parametrize("attack", ["{{ messages.append(1) }}", "{{ ''.__class__.__mro__ }}"])
def test_a_template_cannot_leave_its_sandbox(attack):
    tokenizer = ChatTokenizer(TOKENIZER.backend, chat_template=attack)
    with pytest.raises(TemplateError):
        tokenizer.render([USER])


def test_generation_marks_and_other_variables():
    source = "{% generation %}{{ messages[0].content }}{% endgeneration %}{{ mood }}{{ strftime_now('%%') }}"
    tokenizer = ChatTokenizer(TOKENIZER.backend, chat_template=source)
    assert tokenizer.render([{"role": "user", "content": "hi"}], mood="!") == "hi!%"


@given(st.text(max_size=40))
def test_encode_and_decode(text):
    text = unicodedata.normalize("NFC", text)
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert b"".join(TOKENIZER.decode_token(i)[1] for i in ids) == text.encode()


def test_a_part_of_a_character_has_a_replacement_and_its_bytes():
    ids = TOKENIZER.encode("\U0001f40e")
    texts, raw = zip(*(TOKENIZER.decode_token(i) for i in ids), strict=True)
    assert len(ids) == 4 and texts[0] == "�" and b"".join(raw) == "\U0001f40e".encode()
    assert TOKENIZER.decode_token(10**6) == ("", b"")


def test_end_tokens_come_from_all_files(policy_dir, tmp_path):
    for file in policy_dir.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    assert set(ChatTokenizer.load(tmp_path).eos_ids) == {0, 2}


def test_template_files(policy_dir, tmp_path):
    TOKENIZER.backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        '{"chat_template": [{"name": "default", "template": "A"}]}'
    )
    assert ChatTokenizer.load(tmp_path).render([USER]) == "A"
    (tmp_path / "chat_template.jinja").write_text("B")
    assert ChatTokenizer.load(tmp_path).render([USER]) == "B"


def test_bad_folders_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        ChatTokenizer.load(tmp_path)
    TOKENIZER.backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<none>"}')
    with pytest.raises(ConfigError, match="<none>"):
        ChatTokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match="not valid JSON"):
        ChatTokenizer.load(tmp_path)
