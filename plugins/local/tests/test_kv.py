"""The memory of a cache of keys and values; what it holds is tested with the network (``test_model``)."""

from __future__ import annotations

import psutil
import torch

from agl_local.network.kv import zeros


def test_a_cache_takes_memory_as_it_is_written() -> None:
    before = psutil.Process().memory_info().rss
    cache = zeros((64, 2**20), torch.float32, torch.device("cpu"))  # 256 MB
    assert not cache[:, ::4096].any()
    cache[3, :1000] = 1
    assert cache[3].sum() == 1000 and cache[2:5, -1].sum() == 0
    assert psutil.Process().memory_info().rss - before < 2**26
