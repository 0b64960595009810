"""llama.cpp as a reader of GGUF files: the prebuilt one of node-llama-cpp, on the CPU.

``read.mjs`` says what it does. The packages are installed by ``scripts/node_clients bench/llama_cpp``; all
prebuilt kinds of llama.cpp come along, about 700 MB.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXTS = (
    "Don't say 1234\nx",
    "I'LL  go   \n\n\t we'Ve 3.14159, 1,000,000!",
    " leading and trailing  ",
    "a\r\nb\r\n\r\nc",
    '{"name": "calculate", "arguments": {"expression": "2+3"}}\n',
    "<|im_start|>user\nhi<|im_end|>\n",
    "foo_bar(x)->y; /* c */ #!$%^&* 's 't 'RE ''d",
    "Überraschung für ältere Größen, naïve façades, x²½Ⅷ٣",
    "\u00a0a blank that does not break\u3000and a wide one",
    "emoji 🙂👩‍👩‍👧 and हिन्दी العربية עברית ไทย 한국어 日本語 温度",
    "\x04 a control character, and zeros" + " 0" * 10,
)
"""Texts that pre-tokenizers split in different ways. All are in Unicode's form NFC."""


def read(
    file: Path, texts: Sequence[str], prompts: Sequence[Sequence[int]], longest: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the ids of ``texts``, and the greedy answers to ``prompts`` of at most ``longest`` ids."""
    subprocess.run(
        [ROOT / "scripts" / "node_clients", "bench/llama_cpp"], check=True, stdout=subprocess.DEVNULL
    )
    asked = {"file": str(file), "texts": list(texts), "prompts": list(prompts), "longest": longest}
    told = subprocess.run(
        ["node", str(Path(__file__).parent / "read.mjs")],
        input=json.dumps(asked),
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=True,
    )
    found = json.loads(told.stdout.splitlines()[-1])
    return found["ids"], found["answers"]
