"""The tokenizer of a GGUF file, as the tokenizer of a Hugging Face folder.

Invariant: a tokenizer that is split otherwise than the tables here say is refused by name. Source: the
pre-tokenizers of llama.cpp (``src/llama-vocab.cpp``) and the tokenizer.json files of the same models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from agl_local.policy.gguf import BadModelFile, GGUFFile
from agl_local.text.tokenizer import ChatTokenizer

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
"""How Qwen2 and Llama 3 split text into words; they differ in how they split numbers."""
CONTROL, USER_DEFINED, UNUSED = 3, 4, 5
"""Values of ``tokenizer.ggml.token_type``."""
ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "pad_token": "padding_token_id",
    "unk_token": "unknown_token_id",
}
"""Name in tokenizer_config.json → key of the GGUF file."""


def _split_by(words: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(words), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


SPLITS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "gpt-2": _gpt2,
    "smollm": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()]),
    "qwen2": lambda: _split_by(_WORDS % r"\p{N}"),
    "llama-bpe": lambda: _split_by(_WORDS % r"\p{N}{1,3}"),
}
"""``tokenizer.ggml.pre`` → how text is split before pairs are merged."""


def tokenizer_of(file: GGUFFile, vocab_size: int) -> ChatTokenizer:
    """Return the tokenizer, special tokens and chat template of ``file``. Raise :class:`BadModelFile`."""
    model, pre = file.need("tokenizer.ggml.model", str), file.get("tokenizer.ggml.pre", str, "unnamed")
    if model != "gpt2" or pre not in SPLITS:
        raise BadModelFile(
            f"{file.path}: the tokenizer is of the kind {model!r} with the pre-tokenizer {pre!r}; the kind "
            f"'gpt2' with {', '.join(SPLITS)} is converted. Give the model's folder in Hugging Face layout"
        )
    tokens = _list(file, "tokenizer.ggml.tokens", str)
    kinds = _list(file, "tokenizer.ggml.token_type", int)
    if len(tokens) != len(kinds) or len(tokens) > vocab_size or len(set(tokens)) != len(tokens):
        raise BadModelFile(
            f"{file.path}: the tokenizer has {len(tokens)} tokens ({len(set(tokens))} different) and "
            f"{len(kinds)} token types, the network {vocab_size} embeddings: the file is damaged"
        )
    special = {
        name: _text_of(file, tokens, key)
        for name, key in ROLES.items()
        if f"tokenizer.ggml.{key}" in file.metadata
    }
    backend = _backend(file, tokens, kinds, pre)
    if file.get("tokenizer.ggml.add_bos_token", bool, pre == "llama-bpe") and "bos_token" in special:
        begin = special["bos_token"]
        backend.post_processor = processors.TemplateProcessing(
            single=[begin, "$A"],
            pair=[begin, "$A", begin, "$B:1"],
            special_tokens=[(begin, tokens.index(begin))],
        )
    config: dict[str, Any] = {**special, "clean_up_tokenization_spaces": False}
    template = file.get("tokenizer.chat_template", str, "")
    try:
        made = ChatTokenizer(backend, chat_template=template or None, eos_ids=end_ids(file), config=config)
        if made.template is not None:
            made.template.check()
        return made
    except ValueError as error:  # a broken template, or a special token that is unused
        raise BadModelFile(f"{file.path}: {error}") from error


def end_ids(file: GGUFFile) -> tuple[int, ...]:
    """Return the ids that end an answer: those of the end of a text and of a turn."""
    keys = [f"tokenizer.ggml.{name}" for name in ("eos_token_id", "eot_token_id")]
    return tuple(dict.fromkeys(file.need(key, int) for key in keys if key in file.metadata))


def _backend(file: GGUFFile, tokens: list[str], kinds: list[int], pre: str) -> Tokenizer:
    """Return byte-level BPE with the file's vocabulary and merges."""
    merges = [tuple(merge.split(" ")) for merge in _list(file, "tokenizer.ggml.merges", str)]
    if broken := [merge for merge in merges if len(merge) != 2]:
        raise BadModelFile(f"{file.path}: tokenizer.ggml.merges holds {' '.join(broken[0])!r}, not a pair")
    pairs = [(left, right) for left, right in merges]
    used = {token: i for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind != UNUSED}
    try:
        backend = Tokenizer(models.BPE(used, pairs, ignore_merges=pre == "llama-bpe"))
    except Exception as error:  # the Rust side raises Exception itself for a merge of unknown tokens
        raise BadModelFile(f"{file.path}: the tokenizer's merges and tokens disagree: {error}") from None
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = SPLITS[pre]()
    backend.decoder = decoders.ByteLevel()
    added = [
        AddedToken(token, normalized=False, special=kind == CONTROL)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind in (CONTROL, USER_DEFINED)
    ]
    backend.add_tokens(added)
    return backend


def _list(file: GGUFFile, key: str, kind: type[Any]) -> list[Any]:
    """Return the array of ``key``, all of one type."""
    values = file.need(key, list)
    if values and type(values[0]) is not kind:  # the items of an array share a type
        raise BadModelFile(f"{file.path}: {key} holds {type(values[0]).__name__}, not {kind.__name__}")
    return values


def _text_of(file: GGUFFile, tokens: list[str], role: str) -> str:
    token = file.need(f"tokenizer.ggml.{role}", int)
    if not 0 <= token < len(tokens):
        raise BadModelFile(f"{file.path}: tokenizer.ggml.{role} is {token}; there are {len(tokens)} tokens")
    return tokens[token]
