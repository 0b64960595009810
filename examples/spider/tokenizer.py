"""The tiny policy's tokenizer: byte-level BPE over the teacher's traces, single digits, and scaffold tokens.

A scaffold token is a fixed piece of the prompts (an instruction, the schema of one of the eight databases,
the words between question, query and result) as one *added, not special* token. The text on the wire stays
what it is; an unexpected text, such as another database's schema, falls back to BPE, down to bytes. It makes
a prompt 20 to 70 tokens long instead of 500, and the network's whole task reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer

from agl_local.tokenizer import ChatTokenizer
from spider.prompts import CHECK, REWRITE, WRITE
from spider.questions import DATABASES
from spider.sql.showing import ERROR
from spider.teacher import IT_FAILS, IT_IS_RIGHT, NOTHING, lessons, result_of, schema_of

TEMPLATE = Path(__file__).resolve().parent / "template.jinja"
END, START, PAD = "<|im_end|>", "<|im_start|>", "<|endoftext|>"
BPE_SIZE = 1024
"""At most: bytes, special tokens and merges. The scaffold tokens come on top."""
TRAINING_LESSONS = 4000
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen2 cuts text into words, digits one by one. Loaders that go by the model's type (transformers,
vLLM) put Qwen2's own cutting in place of what the tokenizer file says, so it must be the same.
"""

SCAFFOLD: tuple[str, ...] = (
    "system\n",
    "user\n",
    "assistant\n",
    WRITE,
    CHECK,
    REWRITE,
    *map(schema_of, DATABASES),
    "Question: ",
    "\n\nQuery:\n",
    "\n\nResult:\n",
    "\n\nJudgement:\n",
    "```sql\n",
    "\n```",
    ERROR,
    IT_IS_RIGHT,
    IT_FAILS,
    NOTHING,
)


def build_tokenizer() -> ChatTokenizer:
    """The tokenizer with its chat template; the same every time."""
    backend = Tokenizer(BPE(unk_token=None))
    backend.normalizer = NFC()
    words = Split(Regex(WORDS), behavior="isolated")
    backend.pre_tokenizer = Sequence([words, ByteLevel(add_prefix_space=False, use_regex=False)])
    backend.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=BPE_SIZE,
        special_tokens=[PAD, START, END],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_texts(), trainer)
    backend.add_tokens([AddedToken(piece, special=False, normalized=False) for piece in SCAFFOLD])
    return ChatTokenizer(
        backend,
        chat_template=TEMPLATE.read_text(encoding="utf-8"),
        config={"eos_token": END, "pad_token": PAD, "model_max_length": 2048},
    )


def _texts() -> Iterator[str]:
    """Questions, queries, and what they return."""
    for lesson in islice(lessons(seed=0), TRAINING_LESSONS):
        yield lesson.question
        for query in (lesson.right, lesson.usual):
            yield query
            yield result_of(lesson.combination.database, query)
