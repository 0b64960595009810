"""A policy folder as a GGUF file and a Modelfile, for llama.cpp and Ollama: ``convert`` the other way round.

Invariant: converted back, a file in f32 gives the policy's weights bit for bit. A network or a tokenizer
that llama.cpp would compute or read otherwise is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np

from agl_local.network.config import ELSEWHERE, ConfigError, ModelConfig, read_json
from agl_local.policy.convert import tensor_names
from agl_local.policy.folder import check_stored, read_tokenizer
from agl_local.policy.gguf import BadModelFile, Floats
from agl_local.policy.gguf_vocabulary import NoGGUF, vocabulary_of
from agl_local.policy.gguf_writer import Storage, Value, write_gguf
from agl_local.policy.modelfile import modelfile
from agl_local.policy.weights import stored_state

FILE = "policy.gguf"
_FILE_TYPES: Mapping[Storage, int] = {"f32": 0, "f16": 1, "q8_0": 7}
"""Values of ``general.file_type``."""


def export_gguf(policy: Path, folder: Path, storage: str, about: Mapping[str, str]) -> list[str]:
    """Write the model folder ``policy`` as ``policy.gguf`` and ``Modelfile`` into ``folder``, which exists.

    ``storage``: ``f32``, ``f16`` or ``q8_0``. ``about``: ``name``, ``license`` and further keys
    ``general.*``; empty ones are left out. Return notes: what differs in llama.cpp and Ollama. Raise
    :class:`NoGGUF` for a policy that they would compute otherwise, and a UsageError for one that cannot be
    loaded here (:func:`.check_stored`), or that holds a number too large for ``storage``.
    """
    kind = next((one for one in get_args(Storage) if one == storage), None)
    if kind is None:
        raise NoGGUF(f"gguf: {storage!r} is none of {', '.join(get_args(Storage))}")
    try:
        config = ModelConfig.from_hf(read_json(policy / "config.json"))
        _check(config)
        check_stored(policy)
        tokenizer = read_tokenizer(policy)
        vocabulary, notes = vocabulary_of(tokenizer, config.vocab_size)
    except (ConfigError, NoGGUF) as error:
        raise NoGGUF(f"{policy}: {error}") from error
    general = {f"general.{key}": value for key, value in about.items() if value}
    metadata = {**_general(config, kind), **general, **_network(config), **vocabulary}
    try:
        _write_tensors(policy, folder / FILE, metadata, config, kind)
    except BadModelFile as error:
        raise BadModelFile(f"{policy}: {error}") from error
    text, more = modelfile(tokenizer, config.max_positions, FILE, about.get("license", ""))
    (folder / "Modelfile").write_text(text, encoding="utf-8")
    return [*notes, *more]


def _check(config: ModelConfig) -> None:
    if config.arch not in ELSEWHERE:
        raise NoGGUF(
            f"its family is {config.arch}: only {', '.join(ELSEWHERE)} were seen to be the same there"
        )
    width = config.num_heads * config.head_dim
    if config.arch == "qwen2" and width != config.hidden_size:
        raise NoGGUF(
            f"its {config.num_heads} heads have {width} columns, and the network {config.hidden_size}: "
            "llama.cpp loads only networks of the Qwen2 family in which both are equal"
        )


def _general(config: ModelConfig, storage: Storage) -> dict[str, Value]:
    found: dict[str, Value] = {
        "general.architecture": config.arch,
        "general.type": "model",
        "general.file_type": _FILE_TYPES[storage],
    }
    return {**found, "general.quantization_version": 2} if storage == "q8_0" else found


def _network(config: ModelConfig) -> dict[str, Value]:
    sizes: dict[str, Value] = {
        "block_count": config.num_layers,
        "context_length": config.max_positions,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_eps,
        "rope.dimension_count": config.head_dim,
        "rope.freq_base": config.rope_theta,
        "vocab_size": config.vocab_size,
    }
    return {f"{config.arch}.{name}": value for name, value in sizes.items()}


def _write_tensors(
    policy: Path, file: Path, metadata: Mapping[str, Value], config: ModelConfig, storage: Storage
) -> None:
    tensors = stored_state(policy)
    names = list(tensor_names(config))
    parameters = {name: parameter for name, parameter, _ in names}

    def read(name: str) -> Floats:
        values: Any = tensors[parameters[name]].numpy()
        if config.arch == "llama" and ".attn_q." in name:
            return _permuted(values, config.num_heads)
        if config.arch == "llama" and ".attn_k." in name:
            return _permuted(values, config.num_kv_heads)
        return np.asarray(values, np.float32)

    write_gguf(file, metadata, {name: shape for name, _, shape in names}, read, storage)


def _permuted(values: Floats, heads: int) -> Floats:
    """Return rows of q or k in the order of GGUF files of Llama, as rotary embeddings of neighbours need
    them: the inverse of ``convert._unpermuted``.
    """
    half = len(values) // heads // 2
    split = values.reshape(heads, 2, half, *values.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(values.shape)
