"""A tokenizer and template for a few dozen chats: byte-level BPE over their texts, single digits, and their
fixed lines as one token each.

A line that stands in at least half of the chats (a system prompt, the schema of a tool, the beginning of a
call) is one *added, not special* token. The text on the wire stays what it is; any other text falls back to
BPE, down to bytes. Prompts become several times shorter.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer

from agentlightning.types import UsageError
from agl_local.sft.chats import Chat
from agl_local.text.forms import control_marks
from agl_local.text.rendering import TemplateError
from agl_local.text.template import ChatTemplate
from agl_local.text.tokenizer import ChatTokenizer

TEMPLATE = Path(__file__).parents[1] / "policy" / "templates" / "small.jinja"
END, START, PAD = "<|im_end|>", "<|im_start|>", "<|endoftext|>"
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen2 cuts text into words, digits one by one. Loaders that go by the model's type (transformers, vLLM)
put Qwen2's own cutting in place of what the tokenizer file says, so it must be the same.
"""
SIZE = 512
"""Bytes, special tokens and merges, at most; the fixed lines come on top."""
SHORTEST = 5
"""Characters of a fixed line, at least."""
_CALL = re.compile(r'^\{"name": "[^"]+", "\w+": \{(?:"\w+": )?"?')
_BOS, _EOS = "<s>", "</s>"
"""For templates that write the tokenizer's own."""


def tokenizer_for(chats: Iterable[Chat], length: int, template: Path = TEMPLATE) -> ChatTokenizer:
    """Return the tokenizer of these chats, for a model of ``length`` tokens; the same every time. The marks
    of ``template`` are its special tokens.
    """
    chats = list(chats)
    source = template.read_text(encoding="utf-8")
    marks, ends, config = special_tokens(source)
    backend = Tokenizer(BPE(unk_token=None))
    backend.normalizer = NFC()
    words = Split(Regex(WORDS), behavior="isolated")
    backend.pre_tokenizer = Sequence([words, ByteLevel(add_prefix_space=False, use_regex=False)])
    backend.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=SIZE,
        special_tokens=marks,
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator((text for chat in chats for text in _texts(chat)), trainer)
    config["model_max_length"] = length
    ids = [i for end in ends if (i := backend.token_to_id(end)) is not None]
    plain = ChatTokenizer(backend, chat_template=source, eos_ids=ids, config=config)
    rendered = [plain.render(one.messages, one.tools, add_generation_prompt=False) for one in chats]
    fixed = fixed_lines(rendered, marks)
    backend.add_tokens([AddedToken(line, special=False, normalized=False) for line in fixed])
    return ChatTokenizer(backend, chat_template=source, eos_ids=ids, config=config)


def special_tokens(source: str) -> tuple[list[str], list[str], dict[str, Any]]:
    """Return the special tokens of a new tokenizer for the chat template ``source``, those that end a turn,
    and their part of tokenizer_config.json. Raise :class:`UsageError` for a template that ends no turn by
    one.
    """
    try:
        marks, ends = control_marks(ChatTemplate(source, {"bos_token": _BOS, "eos_token": _EOS}))
    except TemplateError as error:
        raise UsageError(str(error)) from None
    if not ends:
        raise UsageError(
            "the chat template ends an assistant's turn by no special token: no answer would end"
        )
    config = {"eos_token": ends[0], "pad_token": PAD}
    if _BOS in marks:
        config["bos_token"] = _BOS
    return list(dict.fromkeys([PAD, *marks])), ends, config


def fixed_lines(rendered: Collection[str], marks: Collection[str] = (START, END)) -> list[str]:
    """Return the lines, and beginnings of calls, that stand in at least half of the chats, longest first.
    ``marks`` begin and end lines.
    """
    counts: Counter[str] = Counter()
    for text in rendered:
        counts.update(set(_pieces(text, marks)))
    fixed = [piece for piece, n in counts.items() if 2 * n >= len(rendered) and len(piece) >= SHORTEST]
    return sorted(fixed, key=lambda piece: (-len(piece), piece))


def _pieces(text: str, marks: Collection[str]) -> Iterator[str]:
    for turn in re.split("|".join(map(re.escape, marks)), text):
        for line in turn.splitlines(keepends=True):
            begun = _CALL.match(line)
            yield begun[0] if begun else line


def _texts(chat: Chat) -> Iterator[str]:
    """Return what a chat says; the arguments of its calls too."""
    for message in chat.messages:
        if isinstance(message.get("content"), str):
            yield message["content"]
        for call in message.get("tool_calls") or ():
            given = call["function"].get("arguments", "")
            yield given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
