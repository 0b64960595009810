"""A tiny policy of the family of SmolLM2: Llama, tied embeddings, byte-level tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the policy."""
    pytest.importorskip("torch")
    from agl_local.policy.folder import Policy, init_model, save_policy
    from plugins.local.tests.driver_fixtures import tiny_config, tiny_tokenizer

    config = replace(tiny_config(positions=512), arch="llama", qkv_bias=False, tied=True)
    policy = Policy(init_model(config, 0, std=0.05).eval(), tiny_tokenizer(), config)
    return save_policy(policy, tmp_path_factory.mktemp("llama"))
