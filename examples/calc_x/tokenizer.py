"""The tiny policy's tokenizer: byte-level BPE over the teacher's traces, single digits, and scaffold tokens.

A scaffold token is a fixed line of the prompts (the system text, the tools, the answer sentence, the JSON
around an expression) as one *added, not special* token. The text on the wire stays what it is; an unexpected
text falls back to BPE, down to bytes. It makes the first prompt about 45 tokens long instead of 230, and the
network's whole task reading.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Sequence as InTurn, Split
from tokenizers.trainers import BpeTrainer

from agl_local.tokenizer import ChatTokenizer
from calc_x.grading import ANSWER_FORM
from calc_x.problems import problems
from calc_x.teacher import SYSTEM, TOOLS

TEMPLATE = Path(__file__).resolve().parent / "template.jinja"
END, START, PAD = "<|im_end|>", "<|im_start|>", "<|endoftext|>"
BPE_SIZE = 512
"""At most: bytes, special tokens and merges, which end when each word of the problems is one token. The
scaffold tokens come on top.
"""
TRAINING_TEXTS = 4000
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
    SYSTEM,
    "\n\n# Tools\nTo call a function, write its name and arguments as JSON within "
    "<tool_call></tool_call>.\n<tools>\n",
    json.dumps(TOOLS[0]),
    "\n</tools>",
    f"\n\n{ANSWER_FORM}",
    "<tool_call>\n",
    '{"name": "calculate", "arguments": {"expression": "',
    '"}}\n',
    "</tool_call>",
    "<tool_response>\n",
    "\n</tool_response>",
    "### ANSWER: ",
    " ###",
)


def build_tokenizer(scaffold: Sequence[str] = SCAFFOLD, template: Path = TEMPLATE) -> ChatTokenizer:
    """The tokenizer with its chat template; the same every time."""
    backend = Tokenizer(BPE(unk_token=None))
    backend.normalizer = NFC()
    words = Split(Regex(WORDS), behavior="isolated")
    backend.pre_tokenizer = InTurn([words, ByteLevel(add_prefix_space=False, use_regex=False)])
    backend.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=BPE_SIZE,
        special_tokens=[PAD, START, END],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (problem["question"] for problem in islice(problems("train", seed=0), TRAINING_TEXTS))
    backend.train_from_iterator(texts, trainer)
    backend.add_tokens([AddedToken(line, special=False, normalized=False) for line in scaffold])
    return ChatTokenizer(
        backend,
        chat_template=template.read_text(encoding="utf-8"),
        config={"eos_token": END, "pad_token": PAD, "model_max_length": 2048},
    )
