"""How large a network is, by formula: its parameters, and the numbers that a token or a position keeps.

Everything is counted in numbers; times 4 or 2 bytes they are memory (float32, bfloat16). With hidden size H,
intermediate size I, L layers, q query heads and k key heads of D numbers, and a vocabulary of V:

    a layer's matrices       H·D·(2q + 2k) + 3·H·I
    all parameters           L·(matrices + norms + biases) + H + V·H; an output layer of its own: V·H more
    a token in the cache     2·L·k·D                             its keys and values
    a trained position       L·(4H + 2·(q + k)·D + 3I + q)       what the backward pass reads again
    the same, checkpointed   L·H, and one layer's share of it    Chen et al., arXiv:1604.06174
    LoRA of rank r           L·r·(inputs + outputs, summed over a layer's matrices)
                                                                 Hu et al., arXiv:2106.09685

A trained position keeps in each layer: input and output of both norms (4H), turned queries, keys and values,
the attention's output with one number a head, and three vectors of the MLP (gate, up, the product). What is
cheap is not kept but computed again: probabilities of attention, the scales of norms, the gate's SiLU.
"""

from __future__ import annotations

from agl_local.network.config import ModelConfig


def layer_matrices(config: ModelConfig) -> list[tuple[int, int]]:
    """Return (inputs, outputs) of the matrices of one layer: q, k, v, o, gate, up, down."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention = [(hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden)]
    return [*attention, (hidden, inner), (hidden, inner), (inner, hidden)]


def matrix_numbers(config: ModelConfig) -> int:
    """Return the numbers in the matrices of all layers, output layer and embedding left out."""
    return config.num_layers * sum(a * b for a, b in layer_matrices(config))


def parameter_count(config: ModelConfig) -> int:
    """Return the number of parameters; a tied output layer counts once."""
    norms = 2 * config.hidden_size + 2 * config.head_dim * config.qk_norm
    bias = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim * config.qkv_bias
    embeddings = config.vocab_size * config.hidden_size * (1 if config.tied else 2)
    return matrix_numbers(config) + config.num_layers * (norms + bias) + config.hidden_size + embeddings


def cached_numbers(config: ModelConfig) -> int:
    """Return the numbers that one token has in a cache of keys and values."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim


def saved_numbers(config: ModelConfig, checkpointed: bool = False) -> int:
    """Return the numbers that the layers keep of one position between forward and backward pass.

    ``checkpointed``: only the layers' inputs are kept, and one layer at a time is computed again.
    """
    heads, width = config.num_heads, config.head_dim
    norms, attention = 4 * config.hidden_size, 2 * (heads + config.num_kv_heads) * width + heads
    layer = norms + attention + 3 * config.intermediate_size
    if checkpointed:
        return config.num_layers * config.hidden_size + layer
    return config.num_layers * layer


def lora_count(config: ModelConfig, rank: int) -> int:
    """Return the numbers of LoRA's matrices beside every matrix of the layers."""
    return config.num_layers * rank * sum(a + b for a, b in layer_matrices(config))
