"""The tokenizer of a policy as metadata of a GGUF file: ``gguf_tokenizer`` the other way round.

Invariant: what is written splits text in llama.cpp as here, but for the texts that the notes name. A
tokenizer that llama.cpp would replace by another one is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, models
from tokenizers.pre_tokenizers import PreTokenizer

from agentlightning.types import UsageError
from agl_local.policy.gguf_tokenizer import CONTROL, ROLES, SPLITS, UNUSED, USER_DEFINED
from agl_local.policy.gguf_writer import Value
from agl_local.text.tokenizer import ChatTokenizer

_NORMAL = 1
_ENDS = ("eos", "eot", "eom")
"""The keys of end tokens: of a text, of a turn, of a message."""
_PLAIN: dict[str, tuple[Any, ...]] = {
    "type": ("BPE",),
    "dropout": (None, 0.0),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "byte_fallback": (False,),
}
"""Settings of a tokenizer's model that llama.cpp has no other value of."""


class NoGGUF(UsageError, ValueError):
    """A policy that llama.cpp would compute or read otherwise; the text says by what."""


def vocabulary_of(tokenizer: ChatTokenizer, vocab_size: int) -> tuple[dict[str, Value], list[str]]:
    """Return the keys ``tokenizer.*`` for a network with ``vocab_size`` embeddings, and notes: which texts
    llama.cpp splits otherwise. Raise :class:`NoGGUF`.
    """
    content = json.loads(tokenizer.backend.to_str())
    pre = _pre_of(content)
    added = {int(token["id"]): token for token in content["added_tokens"]}
    tokens = [tokenizer.backend.id_to_token(i) for i in range(vocab_size)]
    kinds = [
        (CONTROL if added[i]["special"] else USER_DEFINED) if i in added else _NORMAL
        for i in range(vocab_size)
    ]
    found: dict[str, Value] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [f"[PAD{i}]" if token is None else token for i, token in enumerate(tokens)],
        "tokenizer.ggml.token_type": [
            UNUSED if token is None else kind for token, kind in zip(tokens, kinds, strict=True)
        ],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in content["model"]["merges"]],
        "tokenizer.ggml.add_bos_token": begins_with_bos(tokenizer),
        "tokenizer.ggml.add_eos_token": False,
        **_roles(tokenizer),
    }
    if tokenizer.template is not None:
        found["tokenizer.chat_template"] = tokenizer.template.source
    if tokenizer.tool_template is not None:
        found["tokenizer.chat_template.tool_use"] = tokenizer.tool_template.source
        found["tokenizer.chat_templates"] = ["tool_use"]
    return found, _notes(content, [token["content"] for token in added.values()])


def begins_with_bos(tokenizer: ChatTokenizer) -> bool:
    """Return whether texts begin with ``bos_token`` of themselves. Raise :class:`NoGGUF` for a tokenizer that
    adds other tokens.
    """
    plain, whole = tokenizer.encode("a"), tokenizer.encode("a", add_special_tokens=True)
    if whole == plain:
        return False
    bos = tokenizer.special.get("bos_token")
    if bos is not None and whole == [tokenizer.backend.token_to_id(bos), *plain]:
        return True
    raise NoGGUF(f"the tokenizer puts {whole} in the place of {plain}: llama.cpp adds bos_token alone")


def _pre_of(content: dict[str, Any]) -> str:
    """Return llama.cpp's name of how the tokenizer splits text."""
    model, normalizer = content["model"], content["normalizer"]
    for name, allowed in _PLAIN.items():
        if model.get(name, allowed[0]) not in allowed:
            raise NoGGUF(
                f"the tokenizer's model has {name} = {model[name]!r}: llama.cpp knows byte-level BPE"
            )
    if (content["decoder"] or {}).get("type") != "ByteLevel":
        raise NoGGUF("the tokenizer is not byte-level: its decoder is another one than ByteLevel")
    if normalizer not in (None, {"type": "NFC"}):
        raise NoGGUF(f"the tokenizer changes text before it splits it, by {normalizer}: llama.cpp does not")
    for token in content["added_tokens"]:
        if token["lstrip"] or token["rstrip"] or token["single_word"]:
            raise NoGGUF(
                f"the token {token['content']!r} takes blanks or whole words (lstrip, rstrip, single_word): "
                "llama.cpp does not"
            )
    for name, split in SPLITS.items():
        if _bare(content["pre_tokenizer"]) == _bare(_form(split())):
            if bool(model.get("ignore_merges")) != (name == "llama-bpe"):
                break
            return name
    raise NoGGUF(
        f"the tokenizer splits text by {json.dumps(content['pre_tokenizer'])}, ignore_merges = "
        f"{model.get('ignore_merges')}: llama.cpp would split prompts otherwise. Known are the splits of "
        f"{', '.join(SPLITS)}"
    )


def _form(split: PreTokenizer) -> Any:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = split
    return json.loads(backend.to_str())["pre_tokenizer"]


def _bare(form: Any) -> Any:
    """Return ``form`` without what only moves the offsets of tokens."""
    if isinstance(form, dict):
        return {name: _bare(value) for name, value in form.items() if name != "trim_offsets"}
    return [_bare(item) for item in form] if isinstance(form, list) else form


def _roles(tokenizer: ChatTokenizer) -> dict[str, Value]:
    """Return the ids of the special tokens and of those that end an answer."""
    ends = tokenizer.eos_ids
    if not 1 <= len(ends) <= len(_ENDS):
        raise NoGGUF(
            f"{len(ends)} tokens end an answer ({list(ends)}): a GGUF file names one to three. "
            "eos_token_id of generation_config.json has them"
        )
    ids = {key: tokenizer.backend.token_to_id(tokenizer.special.get(name, "")) for name, key in ROLES.items()}
    ids |= {f"{name}_token_id": end for name, end in zip(_ENDS, ends, strict=False)}
    return {f"tokenizer.ggml.{key}": token for key, token in ids.items() if token is not None}


def _notes(content: dict[str, Any], added: Sequence[str]) -> list[str]:
    notes = []
    if content["normalizer"] is not None:
        notes.append(
            "Text that is not in Unicode's form NFC is split otherwise: llama.cpp does not normalise it."
        )
    if overlaps := _overlaps(added):
        shown = "; ".join(f"{first!r} before {second!r}" for first, second in overlaps[:2])
        more = f", and {len(overlaps) - 2} more" if len(overlaps) > 2 else ""
        notes.append(
            f"Text in which two added tokens overlap is split otherwise ({shown}{more}): llama.cpp takes the "
            "longer token, and this tokenizer the one that begins first."
        )
    return notes


def _overlaps(added: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs of tokens of which the first, the shorter one, ends with what the second begins with."""
    return [
        (first, second)
        for first in added
        for second in added
        if len(first) < len(second) and any(second.startswith(first[at:]) for at in range(1, len(first)))
    ]
