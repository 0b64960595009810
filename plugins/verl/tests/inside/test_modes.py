"""Modes inside verl: configurations it accepts, buffers that hand a step over, calls that stand still."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("verl", reason="verl has an environment of its own: make test-verl-inside")

import numpy as np
import safetensors.torch
from verl.trainer.ppo.v1 import replay_buffer, trainer_base
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.workers.rollout.replica import RolloutReplica

import agentlightning as agl
from agentlightning.types.tokens import TokenIds
from agl_local.policy.folder import save_policy, state
from agl_verl.config.modes import BUFFERS
from agl_verl.config.options import overrides, read_options
from agl_verl.inside.main import configuration
from agl_verl.inside.serving.replica import EmbeddedServer
from agl_verl.inside.steps import sampler, trajectories
from agl_verl.inside.steps.sampler import StepBuffer
from agl_verl.rows import EMPTY, Columns, Step, TrainRow, pack, unpack
from plugins.local.tests.engine_fixtures import small_policy

pytestmark = pytest.mark.filterwarnings("ignore:Disabled critic")  # verl's, where nobody asked for one


def two_tokens(off_policy: tuple[int, int] = (0, 0)) -> TrainRow:
    """A row of two trained tokens, the first of them stale."""
    columns = ([1, 1], [-1.0, -2.0], [0.5, 0.5], [1.0, 1.0], [0, 0], [1, 0], off_policy)
    return Columns(*map(np.array, columns)).row(TokenIds([1]), TokenIds([2, 3]), (1, 2))


ROW = two_tokens()
APART = {"mode": "separate_async", "device": "cuda", "engine": "vllm", "engine_gpus": 2, "ranks": 2}


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return save_policy(small_policy(), tmp_path / "policy")


def configured(policy: Path, **options: Any) -> Any:
    recipe = agl.GRPO(max_staleness=1, importance_cap=2.0)
    return configuration(overrides(str(policy), recipe, 1, read_options(options), str(policy)))


@pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async"])
def test_verl_accepts_the_configuration(mode: str, policy: Path) -> None:
    config = configured(policy, **(APART if mode == "separate_async" else {"mode": mode}))
    assert config.trainer.v1.trainer_mode == mode and mode in TRAINER_REGISTRY
    assert config.trainer.v1.get(mode, {}).get("num_warmup_batches", 0) == 0


class Reached(Exception):
    """The trainer has checked its configuration and begins."""


def test_verls_trainer_with_engines_apart_begins(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it asserts of its configuration holds; the rest of it needs GPUs."""

    def reached(self: Any, config: Any) -> None:
        raise Reached

    monkeypatch.setattr(trainer_base.PPOTrainer, "__init__", reached)
    with pytest.raises(Reached):
        PPOTrainerSeparateAsync(configured(policy, **APART))


class Queue:
    """verl's queue, in this process: tags and fields by key."""

    def __init__(self) -> None:
        self.tags: dict[str, dict[str, Any]] = {}

    def kv_put(self, key: str, partition_id: str, tag: dict[str, Any], **fields: Any) -> None:
        self.tags.setdefault(key, {}).update(tag)

    def kv_batch_put(
        self, keys: list[str], partition_id: str, tags: list[dict[str, Any]], fields: Any
    ) -> None:
        assert len(fields) == len(keys) == len(tags)
        for key, tag in zip(keys, tags, strict=True):
            self.kv_put(key, partition_id, tag)

    def kv_list(self, partition_id: str | None = None) -> dict[str, dict[str, Any]]:
        return {"train": self.tags} if self.tags else {}

    def kv_clear(self, keys: list[str], partition_id: str) -> None:
        for key in keys:
            del self.tags[key]


class Driver:
    """The other end of the channel."""

    def __init__(self, rows: list[TrainRow], asked: list[int]) -> None:
        self.rows, self.asked = rows or [EMPTY], asked

    def ask(self, what: str, step: int) -> bytes:
        assert what == "collect"
        self.asked.append(step)
        steps = int(self.rows[0].trained_tokens > 0)
        return pack(Step(self.rows, share=len(self.rows), optimizer_steps=steps))


class Trainer:
    """Of verl's trainer what a buffer sees."""

    def __init__(self, policy: Path, mode: str) -> None:
        self.config = configured(policy, mode=mode)
        sampling = self.config.trainer.v1.sampler
        self.buffer = getattr(sampler, BUFFERS[mode])(
            trainer_mode=mode,
            trainer_config=self.config.trainer.v1.get(mode, {}),
            max_off_policy_threshold=sampling.max_off_policy_threshold,
            max_off_policy_strategy=sampling.max_off_policy_strategy,
            sampler_kwargs=sampling.sampler_kwargs,
            refill_fn=self.more,
        )

    def more(self, prompts: int) -> int:
        raise AssertionError("nothing is to be refilled")


@pytest.mark.parametrize("mode", ["sync", "colocate_async"])
@pytest.mark.parametrize("rows", [3, 0])
def test_a_step_is_fetched_when_it_is_sampled(
    mode: str, rows: int, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, asked = Queue(), list[int]()
    for module in (replay_buffer, sampler, trajectories):
        monkeypatch.setattr(module, "tq", queue)
    monkeypatch.setattr(sampler, "Channel", lambda: Driver([ROW] * rows, asked))
    trainer = Trainer(policy, mode)
    for number in (1, 2):
        uid = f"uid{number}"
        queue.kv_put(uid, "train", {"is_prompt": True, "status": "pending", "global_steps": number})
        StepBuffer.asked.append((uid, number))
        batch, _ = trainer.buffer.sample(global_steps=number, partition_id="train", batch_size=1)
        assert asked == list(range(1, number + 1)), "not before it is sampled"
        assert batch.keys == StepBuffer.keys == [f"{uid}_{n}_0" for n in range(rows or 1)]
        assert {tag["min_global_steps"] for tag in batch.tags} == ({1} if rows else {0})
        assert trainer.config.actor_rollout_ref.actor.ppo_mini_batch_size == (rows or 1)
        assert trainer.config.trainer.critic_warmup == (0 if rows else number + 1)
        queue.kv_clear(batch.keys, "train")
    assert not queue.tags and not StepBuffer.asked and StepBuffer.trainer is trainer


def test_the_recipes_own_loss_takes_over_with_the_first_token_that_was_sampled_otherwise(
    policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, asked, losses = Queue(), list[int](), list[Any]()
    for module in (replay_buffer, sampler, trajectories):
        monkeypatch.setattr(module, "tq", queue)
    trainer = Trainer(policy, "sync")
    trainer.actor_rollout_wg = SimpleNamespace(set_loss_fn=losses.append)  # type: ignore[attr-defined]
    recipe = agl.GRPO()
    monkeypatch.setattr(StepBuffer, "recipe", recipe.model_dump())
    monkeypatch.setattr(StepBuffer, "corrects", None)
    marked = two_tokens(off_policy=(0, 1))
    for number, (row, expected) in enumerate([(ROW, 0), (marked, 1), (marked, 1), (ROW, 1)], start=1):
        monkeypatch.setattr(sampler, "Channel", lambda row=row: Driver([row], asked))
        queue.kv_put(f"u{number}", "train", {"is_prompt": True, "status": "pending", "global_steps": number})
        StepBuffer.asked.append((f"u{number}", number))
        batch, _ = trainer.buffer.sample(global_steps=number, partition_id="train", batch_size=1)
        queue.kv_clear(batch.keys, "train")
        assert len(losses) == expected
    assert losses[0].recipe == recipe and not losses[0].corrected and StepBuffer.corrects is False


def test_the_loss_weighs_fresh_tokens_in_the_steps_that_call_for_it(
    policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engine and trainer agree, differ, differ, agree: verl's own loss stays until the first difference."""
    losses = list[Any]()
    trainer = Trainer(policy, "sync")
    trainer.actor_rollout_wg = SimpleNamespace(set_loss_fn=losses.append)  # type: ignore[attr-defined]
    monkeypatch.setattr(StepBuffer, "recipe", agl.GRPO().model_dump())
    monkeypatch.setattr(StepBuffer, "corrects", None)
    for apart, expected in ((False, []), (True, [True]), (True, [True]), (False, [True, False])):
        monkeypatch.setattr("agl_verl.inside.learning.gap.tell", lambda keys, step, found=apart: found)
        sampler.tell_and_correct()
        assert [loss.corrected for loss in losses] == expected


def test_what_a_checkpoint_of_the_queue_brings_back_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue()
    monkeypatch.setattr(trajectories, "tq", queue)
    trajectories.forget()
    trajectories.put("uid1", 1, unpack(pack(Step([ROW, ROW]))).rows)  # with arrays, as the channel gives them
    assert list(queue.tags) == ["uid1_0_0", "uid1_1_0"]
    trajectories.forget()
    assert not queue.tags


@pytest.fixture
def served(policy: Path) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(str(policy), {"threads": 1, "slots": 4, "max_len": 512})
    yield server
    server._engine.close()


def ask(address: str, told: list[dict[str, Any]]) -> None:
    """Many completions in one answer: some are written when the first have been, the rest wait for a slot."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    question = {"model": "policy", "prompt": [5, 6, 7], "max_tokens": 200, "n": 32, "ignore_eos": True,
                "return_token_ids": True}  # fmt: skip
    connection.request("POST", "/v1/completions", json.dumps(question), {"Content-Type": "application/json"})
    told.append(json.loads(connection.getresponse().read()))
    connection.close()


def test_calls_stand_still_while_verl_updates_and_go_on_with_the_new_weights(served: EmbeddedServer) -> None:
    told: list[dict[str, Any]] = []
    asking = threading.Thread(target=ask, args=(served.address, told))
    asking.start()
    while not served._engine.metrics()["generated_tokens"]:
        assert asking.is_alive(), told
    served.abort_all_requests(reject_request=False)  # as verl calls it
    before = served._engine.metrics()
    assert (before["paused"], before["running"]) == ("hold", 4)
    assert served.load(safetensors.torch.save(state(small_policy().model)), 4) == 4
    after = served._engine.metrics()
    assert (after["generated_tokens"], after["version"]) == (before["generated_tokens"], 4)
    served.resume_generation()
    asking.join(300)
    (answer,) = told
    assert {len(choice["token_ids"]) for choice in answer["choices"]} == {200}, "nothing was given up"
    versions = [choice.get("policy_versions", [0] * 200) for choice in answer["choices"]]
    assert all(v == sorted(v) and set(v) <= {0, 4} for v in versions)
    assert sum(len(set(v)) == 2 for v in versions) == 4, "those that were under way"
    assert answer["policy_version"] == 0, "the oldest, for the answer as a whole"
    assert served._engine.metrics()["failed"] == 0


def test_what_verl_calls_at_an_update_is_there() -> None:
    for name in ("abort_all_requests", "resume_generation", "sleep", "wake_up"):
        assert callable(getattr(RolloutReplica, name)) and callable(getattr(EmbeddedServer, name))
    assert SimpleNamespace(**BUFFERS).sync == "SyncSteps"
