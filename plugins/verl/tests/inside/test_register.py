"""What verl finds under our names, and the advantages that it gets: exactly what the rows carry."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl has an environment of its own: make test-verl-inside")

import torch
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.workers.rollout.base import get_rollout_class
from verl.workers.rollout.replica import RolloutReplicaRegistry

from agl_verl.inside import register
from agl_verl.inside.learning import gap
from agl_verl.inside.serving.replica import EmbeddedReplica
from agl_verl.inside.serving.weights import EmbeddedWeights

ASK = """
import json, os, warnings
warnings.simplefilter("ignore")
import verl, agl_verl.inside.register as ours
from verl.plugin.platform import get_platform
from verl.workers.engine import EngineRegistry
found = {"failed": ours.FAILED, "platform": type(get_platform()).__name__}
if os.environ.get("VERL_PLATFORM") == "cpu":
    found["engine"] = EngineRegistry.get_engine_cls("language_model", "fsdp2").__name__
    found["critic"] = EngineRegistry.get_engine_cls("value_model", "fsdp2").__name__
print(json.dumps(found))
"""


def asked(environment: Mapping[str, str]) -> dict[str, Any]:
    """What verl has of us in a process of its own: registered is at import, by the environment."""
    import json

    done = subprocess.run(
        [sys.executable, "-c", ASK], env={**os.environ, **environment}, stdout=subprocess.PIPE, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_verl_finds_our_parts_by_their_names() -> None:
    assert register.FAILED == []
    assert get_adv_estimator_fn("agl") is register.carried
    assert RolloutReplicaRegistry.get(register.NAME) is EmbeddedReplica
    assert get_rollout_class(register.NAME, "async") is EmbeddedWeights


def test_on_a_cpu_platform_and_engine_are_ours() -> None:
    found = asked({"VERL_PLATFORM": "cpu"})
    assert found == {"failed": [], "platform": "CpuPlatform", "engine": "CpuFsdp", "critic": "Valued"}


def test_advantages_are_what_the_rows_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[list[str]] = []

    def tell(keys: list[str], step: Any) -> bool:
        told.append(keys)
        return False

    monkeypatch.setattr(gap, "tell", tell)
    carried = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[1, 0, 1, 1, 0, 0, 0], [1] * 7, [0] * 7, [0, 1] * 3 + [0], [1, 1, 0, 0, 0, 1, 1]])
    advantages, returns = get_adv_estimator_fn("agl")(
        token_level_rewards=carried, response_mask=mask, config=None, index=["a"] * 5
    )
    assert torch.equal(advantages, carried * mask) and torch.equal(returns, advantages)
    assert len(told) == 1  # once a step, after verl has computed its own logprobs
