"""New weights reach the engine whole: what it answers with is what the trainer's network computes."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("verl", reason="verl has an environment of its own: make test-verl-inside")

import torch

from agl_local.policy.folder import save_policy
from agl_local.training.logprobs import token_logprobs
from agl_local.training.pack import pack
from agl_verl.inside.serving import weights
from agl_verl.inside.serving.replica import EmbeddedServer, place, server_name
from agl_verl.inside.serving.weights import EmbeddedWeights
from plugins.local.tests.engine_fixtures import small_policy


class Here:
    """An actor's handle whose actor is in this process."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._actor, name)
        return type("Method", (), {"remote": staticmethod(method)})


def sender(engines: int = 1) -> EmbeddedWeights:
    """What a training worker has, without verl's worker around it."""
    made = EmbeddedWeights.__new__(EmbeddedWeights)
    made.config = SimpleNamespace(engine_kwargs={"embedded": {"engines": engines}})
    return made


@pytest.fixture
def served(tmp_path: Path) -> Iterator[EmbeddedServer]:
    folder = save_policy(small_policy(), tmp_path / "policy")
    server = EmbeddedServer(str(folder), {"threads": 1, "slots": 4, "max_len": 128})
    yield server
    server._engine.close()


def answer(address: str) -> dict[str, Any]:
    """One completion with its ids and logprobs."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    asked = [{"role": "user", "content": "1 + 1"}]
    question = {"model": "policy", "messages": asked, "max_tokens": 8, "seed": 1, "logprobs": True,
                "return_token_ids": True}  # fmt: skip
    try:
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(question), {"Content-Type": "application/json"}
        )
        found: dict[str, Any] = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return found


async def test_the_engine_serves_the_weights_it_was_sent(
    served: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = small_policy().model
    with torch.no_grad():
        for parameter in trainer.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(weights.ray, "get_actor", {server_name(0): Here(served)}.__getitem__)
    monkeypatch.setattr(weights.ray, "get", lambda found: found)
    await sender().update_weights(iter(trainer.state_dict().items()), global_steps=3)

    said = answer(served.address)
    assert said["policy_version"] == 3
    choice, prompt = said["choices"][0], said["prompt_token_ids"]
    ids = prompt + choice["token_ids"]
    trained = list(range(len(prompt), len(ids)))
    with torch.no_grad():
        wanted = token_logprobs(trainer, pack([ids], [trained]), torch.ones(len(trained))).logprobs
    heard = [token["logprob"] for token in choice["logprobs"]["content"]]
    assert heard == pytest.approx(wanted.tolist(), abs=1e-5) and len(heard) > 0


async def test_other_ranks_take_part_and_send_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(weights.ray, "get_actor", lambda name: pytest.fail("a second rank sent weights"))
    gathered: list[str] = []

    def parameters() -> Iterator[tuple[str, torch.Tensor]]:
        for name in ("a", "b"):
            gathered.append(name)  # making it whole is what all ranks do together
            yield name, torch.ones(2)

    await sender().update_weights(parameters(), global_steps=1)
    assert gathered == ["a", "b"]


async def test_with_several_engines_each_of_the_first_ranks_sends_to_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[tuple[str, int]] = []

    class Load:
        def __init__(self, name: str) -> None:
            self.load = self
            self.name = name

        def remote(self, state: bytes, version: int) -> None:
            sent.append((self.name, version))

    monkeypatch.setattr(weights.ray, "get_actor", Load)
    monkeypatch.setattr(weights.ray, "get", lambda found: found)
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        await sender(engines=2).update_weights(iter({"a": torch.ones(2)}.items()), global_steps=4)
    assert sent == [(server_name(0), 4), (server_name(1), 4)]


def test_engines_share_the_gpus_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [place("cuda", number) for number in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert place("cpu", 1) == "cpu"


async def test_another_form_of_weights_is_refused() -> None:
    with pytest.raises(ValueError, match="whole tensors, not 'sharded'"):
        await sender().update_weights(iter([]), wire_format="sharded")
