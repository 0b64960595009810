"""The machine's limits: matrix products per second and bytes per second, with the threads of this run."""

from __future__ import annotations

import statistics
import time

import torch

from agl_local.network.product import Matrix, available

SIZES = ((2048, 576, 3072), (2048, 1536, 576), (1024, 1024, 1024))
"""Matrix products whose best rate is taken: the larger ones of the model, and a square one."""
ROUNDS = 7


class Subject:
    """Measures and holds nothing."""

    def __init__(self, folder: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self.version = f"torch {torch.__version__}"

    def limits(self) -> dict[str, object]:
        """Return the best rate of float32 products in operations per second, all rates, and bytes per second.

        Products are those of torch's default library and, where it is there, of oneDNN. Each is a median. The
        bandwidth is that of reading a vector of 512 MB, as decoding at batch 1 reads the weights.
        """
        rates: dict[str, float] = {}
        for m, k, n in SIZES:
            left, right = torch.randn(m, k), torch.randn(k, n)
            rates[f"{m}x{k}x{n}"] = 2.0 * m * k * n / _median(lambda a=left, b=right: torch.mm(a, b), 5)
            if available():
                weight = Matrix(right.t().contiguous())
                seconds = _median(lambda a=left, w=weight: w(a), 5)
                rates[f"{m}x{k}x{n}, oneDNN"] = 2.0 * m * k * n / seconds
        large = torch.ones(2**27)
        return {
            "operations": max(rates.values()),
            "rates": rates,
            "bytes": 4.0 * len(large) / _median(large.sum, 1),
        }


def _median(function: object, repeat: int) -> float:
    """Seconds of one call, median of several rounds after one that warms up."""
    taken = []
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        for _ in range(repeat):
            function()  # type: ignore[operator]
        taken.append((time.perf_counter() - began) / repeat)
    return statistics.median(taken[1:])
