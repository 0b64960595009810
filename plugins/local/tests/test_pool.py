from __future__ import annotations

import threading

import pytest
import torch

from agl_local.generation.engine import Engine, Request
from agl_local.network.sampling import Sampling
from plugins.local.tests.engine_fixtures import small_policy


@pytest.mark.parametrize(("threads", "inside"), [(3, 3), (None, 1)])
def test_the_engines_thread_has_its_own_number_of_cores(threads, inside):
    policy = small_policy()
    seen: set[int] = set()
    with Engine(policy, slots=2, max_len=64, threads=threads) as engine:
        # Callbacks run in the engine's thread.
        request = Request(
            [1, 2, 3], Sampling(max_tokens=3), on_token=lambda _: seen.add(torch.get_num_threads())
        )
        engine.submit(request).result(60)
        other: list[int] = []
        thread = threading.Thread(target=lambda: other.append(torch.get_num_threads()))
        thread.start()
        thread.join()
    assert seen == {inside} and other == [1] and torch.get_num_threads() == 1


def test_no_cores_are_refused():
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        Engine(small_policy(), slots=2, max_len=64, threads=0)
