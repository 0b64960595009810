"""The small policy's tokenizer: byte-level BPE over boards, each word of the board as one token of its own.

The words are *added, not special* tokens: the text on the wire stays what it is, and any other text falls
back to BPE, down to bytes.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer

from agl_local.tokenizer import ChatTokenizer
from werewolf.board import WORDS

TEMPLATE = Path(__file__).resolve().parent / "template.jinja"
END, START, PAD = "<|im_end|>", "<|im_start|>", "<|endoftext|>"
CUTS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen2 cuts text: loaders that go by the model's type put it in place of what the file says."""
BPE_SIZE = 300


def build_tokenizer() -> ChatTokenizer:
    """The tokenizer with its chat template; the same every time."""
    backend = Tokenizer(BPE(unk_token=None))
    backend.normalizer = NFC()
    cuts = Split(Regex(CUTS), behavior="isolated")
    backend.pre_tokenizer = Sequence([cuts, ByteLevel(add_prefix_space=False, use_regex=False)])
    backend.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=BPE_SIZE,
        special_tokens=[PAD, START, END],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(WORDS, trainer)
    scaffold = [f"{role}\n" for role in ("system", "user", "assistant")]
    backend.add_tokens([AddedToken(word, special=False, normalized=False) for word in (*scaffold, *WORDS)])
    return ChatTokenizer(
        backend,
        chat_template=TEMPLATE.read_text(encoding="utf-8"),
        config={"eos_token": END, "pad_token": PAD, "model_max_length": 512},
    )
