"""How large a network is, by formula: parameters, and the numbers that a token or a position keeps.

Everything is counted in numbers; times 4 or 2 bytes they are memory (float32, bfloat16). With hidden size H,
intermediate size I, L layers, q query heads and k key heads of D numbers, and a vocabulary of V:

    a layer's matrices       H·D·(2q + 2k) + 3·H·I
    all parameters           L·(matrices + norms + biases) + H + V·H; an output layer of its own: V·H more
    a token in the cache     2·L·k·D                             its keys and values
    a trained position       L·(4H + 2·(q + k)·D + 3I + q)       what the backward pass reads again
    the same, checkpointed   L·H, and one layer's share of it    Chen et al., arXiv:1604.06174
    LoRA of rank r           L·r·(inputs + outputs, summed over a layer's matrices)
                                                                 Hu et al., arXiv:2106.09685

    a matrix in int8         a byte a number and four a row      (``network.quantized``)
    in nf4                   half a byte a number and four for 64 numbers

A trained position keeps in each layer: input and output of both norms (4H), turned queries, keys and values,
the attention's output with one number a head, and three vectors of the MLP (gate, up, the product). What is
cheap is not kept but computed again: probabilities of attention, the scales of norms, the gate's SiLU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from agl_local.network.shape import NetworkShape

Base = Literal["float32", "bfloat16", "int8", "nf4"]

SINGLE, HALF = 4, 2
"""Bytes of a number in float32 and bfloat16."""
STATES = 4 * SINGLE
"""Bytes of a trained parameter: weight, gradient and the two moments of Adam, in float32."""
OFFLOADED = 2 * SINGLE
"""The same on the device where the moments are the host's."""
CHECKPOINT = 3 * SINGLE
"""Bytes of a parameter in a checkpoint: weight and moments."""


def layer_matrices(shape: NetworkShape) -> list[tuple[int, int]]:
    """Return (inputs, outputs) of the matrices of one layer: q, k, v, o, gate, up, down."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    attention = [(hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden)]
    return [*attention, (hidden, inner), (hidden, inner), (inner, hidden)]


def matrix_numbers(shape: NetworkShape) -> int:
    """Return the numbers in the matrices of all layers, output layer and embedding left out."""
    return shape.num_layers * sum(a * b for a, b in layer_matrices(shape))


def parameter_count(shape: NetworkShape) -> int:
    """Return the number of parameters; a tied output layer counts once."""
    norms = 2 * shape.hidden_size + 2 * shape.head_dim * shape.qk_norm
    bias = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim * shape.qkv_bias
    embeddings = shape.vocab_size * shape.hidden_size * (1 if shape.tied else 2)
    return matrix_numbers(shape) + shape.num_layers * (norms + bias) + shape.hidden_size + embeddings


def quantized_bytes(kind: str, rows: int, columns: int) -> int:
    """Return the bytes of a matrix [rows, columns] in ``int8`` or ``nf4`` (``network.quantized``): its codes,
    and a float32 scale for each row or for each 64 numbers.
    """
    if kind == "int8":
        return rows * columns + SINGLE * rows
    return math.ceil(rows * columns / 64) * (32 + SINGLE)


def cached_numbers(shape: NetworkShape) -> int:
    """Return the numbers that one token has in a cache of keys and values."""
    return 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim


def saved_numbers(shape: NetworkShape, checkpointed: bool = False) -> int:
    """Return the numbers that the layers keep of one position between forward and backward pass.

    ``checkpointed``: only the layers' inputs are kept, and one layer at a time is computed again.
    """
    heads, width = shape.num_heads, shape.head_dim
    norms, attention = 4 * shape.hidden_size, 2 * (heads + shape.num_kv_heads) * width + heads
    layer = norms + attention + 3 * shape.intermediate_size
    if checkpointed:
        return shape.num_layers * shape.hidden_size + layer
    return shape.num_layers * layer


def lora_count(shape: NetworkShape, rank: int) -> int:
    """Return the numbers of LoRA's matrices beside every matrix of the layers."""
    return shape.num_layers * rank * sum(a + b for a, b in layer_matrices(shape))


def update_bytes(shape: NetworkShape, number: int, checkpointed: bool, positions: int, trained: int) -> int:
    """Return the bytes that a forward pass of the update keeps of so many ``positions``, at ``number`` bytes
    each number, and of the logits of the ``trained`` tokens among them.

    Logits, their log-softmax and their gradient are float32 whatever the rest is.
    """
    logits = 3 * SINGLE * trained * shape.vocab_size
    return number * positions * saved_numbers(shape, checkpointed) + logits


@dataclass(frozen=True)
class LocalRun:
    """A run of the driver ``local``. ``rank``: of LoRA; None: all weights are trained. ``base``: the type of
    the engine beside a float32 trainer, or in what both keep the matrices of the layers. ``positions`` and
    ``trained`` tokens of a micro-batch; ``held``: tokens in the engine's cache; ``engine``: the type of an
    engine over a quantised base. ``offloaded``: the moments are in the host's memory. ``policies``: of this
    kind in the run, with LoRA all over one base (``bases``).
    """

    rank: int | None
    base: Base
    checkpointed: bool
    positions: int
    trained: int
    held: int
    engine: Literal["float32", "bfloat16"] = "float32"
    offloaded: bool = False
    policies: int = 1

    @property
    def quantize(self) -> Literal["int8", "nf4"] | None:
        """The option."""
        return self.base if self.base in ("int8", "nf4") else None


def base_bytes(shape: NetworkShape, number: int, quantize: str | None) -> int:
    """Return the bytes of all weights, at ``number`` bytes each but for quantised matrices."""
    if quantize is None:
        return number * parameter_count(shape)
    matrices = sum(quantized_bytes(quantize, b, a) for a, b in layer_matrices(shape)) * shape.num_layers
    return matrices + number * (parameter_count(shape) - matrix_numbers(shape))


def states_bytes(shape: NetworkShape, plan: LocalRun) -> int:
    """Return the bytes of the trainer's weights, gradients and moments."""
    states = OFFLOADED if plan.offloaded else STATES
    if plan.rank is None:
        return plan.policies * states * parameter_count(shape)
    return base_bytes(shape, SINGLE, plan.quantize) + plan.policies * states * lora_count(shape, plan.rank)


def engine_bytes(shape: NetworkShape, plan: LocalRun) -> int:
    """Return the bytes of the engine's weights and of a cache for each policy. A and B stand beside a base
    that is quantised or that policies share; else the engine has the sums.
    """
    number = HALF if "bfloat16" in (plan.base, plan.engine) else SINGLE
    apart = plan.rank is not None and (plan.quantize is not None or plan.policies > 1)
    beside = lora_count(shape, plan.rank) if plan.rank is not None and apart else 0
    bases = 1 if plan.rank is not None else plan.policies
    own = number * (beside + plan.held * cached_numbers(shape))
    return bases * base_bytes(shape, number, plan.quantize) + plan.policies * own


def working_bytes(shape: NetworkShape, plan: LocalRun) -> int:
    """Return the bytes of a micro-batch of the update at its peak. LoRA keeps its products with A; over
    quantised matrices one is made in float32 when the logits are gone, or before they are there.
    """
    kept = update_bytes(shape, SINGLE, plan.checkpointed, plan.positions, 0)
    if plan.rank is not None:
        layers = 1 if plan.checkpointed else shape.num_layers
        kept += SINGLE * plan.positions * layers * len(layer_matrices(shape)) * plan.rank
    logits = update_bytes(shape, SINGLE, plan.checkpointed, 0, plan.trained)
    matrix = SINGLE * max(a * b for a, b in layer_matrices(shape)) if plan.quantize else 0
    return kept + max(logits, matrix)


def run_bytes(shape: NetworkShape, plan: LocalRun) -> int:
    """Return the bytes of a run at its peak, the engine's cache full: states, update and engine."""
    return states_bytes(shape, plan) + working_bytes(shape, plan) + engine_bytes(shape, plan)


def forward_flops(shape: NetworkShape, tokens: int) -> float:
    """Return the floating-point operations of one forward pass over a sequence of ``tokens``.

    Two for each number of the matrices and the output layer and each token, and causal attention's
    2·L·q·D·tokens² (scores and values, half of the square). Kaplan et al., arXiv:2001.08361, appendix.
    """
    matrices = matrix_numbers(shape) + shape.vocab_size * shape.hidden_size
    heads = shape.num_layers * shape.num_heads * shape.head_dim
    return 2.0 * matrices * tokens + 2.0 * heads * tokens**2
