"""The tokenizer of a small policy: byte-level BPE, single digits, and scaffold tokens.

A scaffold token is a fixed piece of the prompts as one *added, not special* token. The text on the wire stays
what it is; an unexpected text falls back to BPE, down to bytes. Prompts become several times shorter, and the
network's whole task reading.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer

from agl_local.text.tokenizer import ChatTokenizer

END, START, PAD = "<|im_end|>", "<|im_start|>", "<|endoftext|>"
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen2 cuts text into words, digits one by one. Loaders that go by the model's type (transformers,
vLLM) put Qwen2's own cutting in place of what the tokenizer file says, so it must be the same.
"""


def tokenizer_of(
    texts: Iterable[str], size: int, scaffold: Iterable[str], template: Path, length: int = 2048
) -> ChatTokenizer:
    """BPE of at most ``size`` tokens (bytes, special tokens and merges) over ``texts``, the scaffold on top,
    and the chat template, for a model of ``length`` tokens; the same every time.
    """
    backend = Tokenizer(BPE(unk_token=None))
    backend.normalizer = NFC()
    words = Split(Regex(WORDS), behavior="isolated")
    backend.pre_tokenizer = Sequence([words, ByteLevel(add_prefix_space=False, use_regex=False)])
    backend.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=size,
        special_tokens=[PAD, START, END],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    backend.add_tokens([AddedToken(piece, special=False, normalized=False) for piece in scaffold])
    return ChatTokenizer(
        backend,
        chat_template=template.read_text(encoding="utf-8"),
        config={"eos_token": END, "pad_token": PAD, "model_max_length": length},
    )
