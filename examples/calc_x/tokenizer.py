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

from agl_local.fresh.tokenizer import tokenizer_for
from agl_local.sft.chats import Chat
from agl_local.text.tokenizer import ChatTokenizer
from calc_x.grading import ANSWER_FORM
from calc_x.problems import problems
from calc_x.teacher import SYSTEM, TOOLS, traces
from small_policy.reading import tokenizer_of

TEMPLATE = Path(__file__).resolve().parent / "template.jinja"
BPE_SIZE = 512
"""At most: bytes, special tokens and merges, which end when each word of the problems is one token. The
scaffold tokens come on top.
"""
TRAINING_TEXTS = 4000
TRACES = 500
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
    texts = (problem["question"] for problem in islice(problems("train", seed=0), TRAINING_TEXTS))
    return tokenizer_of(texts, BPE_SIZE, scaffold, template)


def tokenizer_of_template(template: Path) -> ChatTokenizer:
    """The tokenizer for a published chat template: its marks are special tokens, and the lines that stand in
    half of the teacher's traces are the scaffold."""
    pairs = islice(traces(seed=0), TRACES)
    chats = [Chat([*one.messages, one.reply], one.tools) for pair in pairs for one in pair]
    return tokenizer_for(chats, 2048, template)
