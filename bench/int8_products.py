"""Weights in int8 beside float32: the matrix products of one forward pass, by the number of its tokens.

    python bench/record.py int8_products -- python bench/int8_products.py

The shapes are those of SmolLM2-135M: 30 layers of four products, and the product with the vocabulary.
``float32`` is what the local engine computes, by oneDNN; ``int8`` is torch's product of bfloat16 activations
with weights of one scale a row (``aten::_weight_int8pack_mm``). Both on one thread; the figure is CPU
milliseconds, the fastest of ``--rounds``, which other work on the machine changes little. ``error`` is the
norm of the difference over the norm of the exact product. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from agl_local.network.product import Matrix, available

LAYER = ((576, 960), (576, 576), (576, 3072), (1536, 576))
SHAPES = (*LAYER * 30, (576, 49152))
"""Inputs and outputs of each product."""


def milliseconds(run: Callable[[], object], rounds: int) -> float:
    """Return the CPU time of the fastest of ``rounds`` runs."""
    times = []
    for _ in range(rounds):
        began = time.process_time()
        run()
        times.append(time.process_time() - began)
    return round(min(times) * 1e3, 1)


def int8(inputs: Mapping[int, torch.Tensor], weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the product of the inputs of the weight's width with it."""
    out: torch.Tensor = torch.ops.aten._weight_int8pack_mm(inputs[weight.shape[1]].bfloat16(), weight, scale)
    return out


def each(calls: Sequence[tuple[Callable[..., object], *tuple[torch.Tensor, ...]]]) -> None:
    """Call the first of every tuple with the others."""
    for function, *given in calls:
        function(*given)


@torch.inference_mode()
def main() -> None:
    """Measure at 1, 8, 32 and 64 tokens, print."""
    parser = argparse.ArgumentParser(description="Products with int8 and with float32 weights.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8, 32, 64])
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    weights = [torch.randn(outputs, inputs) * 0.05 for inputs, outputs in SHAPES]
    matrices = [Matrix(weight) for weight in weights]
    scales = [weight.abs().amax(1) / 127 for weight in weights]
    small = [
        (weight / scale[:, None]).round().to(torch.int8)
        for weight, scale in zip(weights, scales, strict=True)
    ]
    quantised = list(zip(small, (scale.bfloat16() for scale in scales), strict=True))
    rows = []
    for tokens in given.tokens:
        inputs = {size: torch.randn(tokens, size) for size in (576, 1536)}
        error = (int8(inputs, *quantised[0]).float() - inputs[576] @ weights[0].T).norm()
        exact = partial(each, [(matrix, inputs[matrix.weight.shape[1]]) for matrix in matrices])
        rounded = partial(each, [(partial(int8, inputs), *one) for one in quantised])
        rows.append(
            {
                "tokens": tokens,
                "float32_ms": milliseconds(exact, given.rounds),
                "int8_ms": milliseconds(rounded, given.rounds),
                "error": round((error / (inputs[576] @ weights[0].T).norm()).item(), 4),
            }
        )
    print(json.dumps({"onednn": available(), "rows": rows}))


if __name__ == "__main__":
    main()
