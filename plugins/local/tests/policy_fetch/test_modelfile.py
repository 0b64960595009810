"""A Modelfile has a TEMPLATE where Go's language has an equal of the chat template, and none otherwise."""

from __future__ import annotations

import pytest
from tokenizers import processors

from agl_local.policy.modelfile import frame_of, modelfile
from agl_local.text.tokenizer import ChatTokenizer
from plugins.local.tests.engine_fixtures import trained_tokenizer

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
DEFAULT = (
    "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\nBe \"good\".<|im_end|>\\n' }}{% endif %}"
)


def speaking(template: str | None, **config: str) -> ChatTokenizer:
    given = {"eos_token": "<|im_end|>", **config}
    return ChatTokenizer(trained_tokenizer().backend, chat_template=template, config=given)


def test_a_template_that_frames_messages() -> None:
    text, notes = modelfile(speaking(CHATML), 512, "policy.gguf", "Apache-2.0")
    assert text == (
        "FROM ./policy.gguf\n"
        'TEMPLATE """{{- range $i, $_ := .Messages }}\n'
        '{{- if eq .Role "system" }}{{ "<|im_start|>system\\n" }}{{ .Content }}{{ "<|im_end|>\\n" }}\n'
        '{{- else if eq .Role "user" }}{{ "<|im_start|>user\\n" }}{{ .Content }}{{ "<|im_end|>\\n" }}\n'
        '{{- else if eq .Role "assistant" }}{{ "<|im_start|>assistant\\n" }}{{ .Content }}'
        '{{ "<|im_end|>\\n" }}\n'
        "{{- end }}\n"
        '{{- end }}{{ "<|im_start|>assistant\\n" }}"""\n'
        'PARAMETER stop "<|im_end|>"\n'
        "PARAMETER num_ctx 512\n"
        "PARAMETER temperature 0\n"
        "PARAMETER repeat_penalty 1\n"
        'LICENSE "Apache-2.0"\n'
    )
    assert len(notes) == 1 and "no tools" in notes[0]


def test_a_text_before_conversations_without_a_system_message() -> None:
    tokenizer = speaking(DEFAULT + CHATML)
    frame = frame_of(tokenizer)
    assert frame is not None and frame.start == '<|im_start|>system\nBe "good".<|im_end|>\n'
    talk = [{"role": "user", "content": "a\n"}, {"role": "assistant", "content": " b"}]
    assert frame.render(talk) == tokenizer.render(talk)
    action = (
        '{{- if and (eq $i 0) (ne .Role "system") }}'
        '{{ "<|im_start|>system\\nBe \\"good\\".<|im_end|>\\n" }}{{ end }}'
    )
    assert action in modelfile(tokenizer, 512, "policy.gguf", "")[0]


def test_a_bos_token_that_the_engine_adds_is_left_out() -> None:
    tokenizer = speaking("{{ bos_token }}" + CHATML, bos_token="<|endoftext|>")
    assert "<|endoftext|>" in modelfile(tokenizer, 512, "policy.gguf", "")[0]
    tokenizer.backend.post_processor = processors.TemplateProcessing(
        single=["<|endoftext|>", "$A"], pair=None, special_tokens=[("<|endoftext|>", 0)]
    )
    text = modelfile(tokenizer, 512, "policy.gguf", "")[0]
    assert "TEMPLATE" in text and "<|endoftext|>" not in text


def test_a_bos_token_that_begins_each_message_stays_there() -> None:
    plain = modelfile(speaking(CHATML), 512, "policy.gguf", "")[0]
    assert modelfile(speaking(CHATML, bos_token="<|im_start|>"), 512, "policy.gguf", "")[0] == plain


@pytest.mark.parametrize(
    "template",
    [
        CHATML.replace("message.content", "message.content.strip()"),
        CHATML.replace("message.content", "(message.content if loop.last else 'cut')"),
        CHATML.replace("message.content", "message.content.upper()"),
        CHATML.replace("'<|im_end|>\\n'", "('<|im_end|>\\n' if loop.index > 1 else '!')"),
        "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + CHATML,
    ],
)
def test_a_template_without_an_equal_is_not_guessed(template: str) -> None:
    text, notes = modelfile(speaking(template), 512, "policy.gguf", "")
    assert "TEMPLATE" not in text and "has no equal in Go's language" in notes[0]


def test_a_policy_without_a_template_and_a_long_context() -> None:
    text, notes = modelfile(speaking(None), 32768, "policy.gguf", "")
    assert "TEMPLATE" not in text and "num_ctx 8192" in text
    assert "continues texts" in notes[0] and "reads 32768 tokens" in notes[1]
