"""Chat templates of the catalogue: as the model's own without tools, and tool calls that the engine reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agl_local.policy.catalogue import CATALOGUE
from agl_local.text.cores import HERMES
from agl_local.text.template import ChatTemplate
from agl_local.text.tokenizer import ChatTokenizer
from agl_local.text.tools import parse_calls
from plugins.local.tests.driver_fixtures import tiny_tokenizer

OWN = (  # of SmolLM2-135M-Instruct (HuggingFaceTB, Apache-2.0)
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SYSTEM = {"role": "system", "content": " Be brief.\n"}
USER = {"role": "user", "content": "Add <1> & 'ü'\n"}
REPLY = {"role": "assistant", "content": "2"}
TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}},
}
ARGUMENTS = '{"a":1,  "b": "ü"}'
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": ARGUMENTS}}


@pytest.fixture(scope="module")
def ours() -> ChatTemplate:
    source = CATALOGUE["smollm2"].chat_template
    assert source is not None
    return ChatTemplate(source)


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize(
    "messages",
    [[USER], [SYSTEM, USER], [USER, REPLY, USER], [SYSTEM, USER, REPLY, USER], [SYSTEM], [USER, SYSTEM]],
)
def test_without_tools_it_renders_what_the_models_own_does(ours, messages, prompt) -> None:
    assert ours.render(messages, None, prompt, {}) == ChatTemplate(OWN).render(messages, None, prompt, {})


@pytest.mark.parametrize("start", [[USER], [SYSTEM, USER]])
def test_tools_are_in_the_system_message(ours, start) -> None:
    text = ours.render(start, [TOOL], True, {})
    system, rest = text.split("<|im_end|>", 1)
    assert system.startswith("<|im_start|>system\n") and json.dumps(TOOL["function"]) in system
    assert rest.startswith("\n<|im_start|>user\n") and "<tools>" not in rest


@pytest.mark.parametrize("content", [None, "", "I add."])
@pytest.mark.parametrize("calls", [1, 2])
def test_a_call_is_rendered_as_the_engine_reads_it(ours, content, calls) -> None:
    message = {"role": "assistant", "content": content, "tool_calls": [CALL] * calls}
    before = ours.render([USER], [TOOL], True, {})
    after = ours.render([USER, message], [TOOL], False, {})
    assert after.startswith(before) and after.endswith("<|im_end|>\n")
    said = after[len(before) :].removesuffix("<|im_end|>\n")
    parsed = parse_calls(said, HERMES)
    assert (parsed.content or "") == (content or "") and not parsed.malformed
    assert [(c.name, c.arguments) for c in parsed.calls] == [("add", ARGUMENTS)] * calls


def test_a_message_without_content_and_a_tools_result_are_rendered(ours) -> None:
    result = {"role": "tool", "tool_call_id": "c", "content": "3"}
    text = ours.render([USER, {"role": "assistant", "content": None}, result], [TOOL], True, {})
    assert "<|im_start|>assistant\n<|im_end|>\n<|im_start|>user\n<tool_response>\n3\n</tool_response>" in text


@pytest.mark.parametrize("in_files", [True, False])
def test_a_folders_template_for_tools_renders_requests_with_tools(tmp_path: Path, in_files: bool) -> None:
    tiny_tokenizer().save(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    if in_files:
        (tmp_path / "chat_template.jinja").write_text("plain")
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates/tool_use.jinja").write_text("tools")
    else:
        named = {"default": "plain", "tool_use": "tools"}
        config["chat_template"] = [{"name": name, "template": text} for name, text in named.items()]
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    for folder in (tmp_path, tmp_path / "saved"):
        tokenizer = ChatTokenizer.load(folder)
        assert tokenizer.render([USER]) == "plain" and tokenizer.render([USER], [TOOL]) == "tools"
        tokenizer.save(tmp_path / "saved")
