"""Weights in memory that a trainer and its engines share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import torch
from marks import sampled

from agl_local.generation.engine import Engine
from agl_local.http.engines import Engines
from agl_local.http.thread import EngineThread
from agl_local.policy import shared
from agl_local.policy.folder import state
from agl_local.policy.shared import Handover, MappedWeights, NoRoom, SharedWeights
from agl_local.policy.weights import StateError
from plugins.local.tests.engine_fixtures import ask, logprobs_of, small_policy
from plugins.local.tests.test_process import is_running

PROMPT = [5, 6, 7, 8]
TRAINER = """
import sys
from plugins.local.tests.engine_fixtures import small_policy
from agl_local.http.process import EngineProcess
from agl_local.policy.folder import state
child = EngineProcess(sys.argv[1], threads=1, slots=2, max_len=64)
child.start()
with child.weights.publish(state(small_policy(seed=1).model)) as handover:
    assert child.update(handover, 1) == 1
    print(child.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def weights():
    found = SharedWeights()
    yield found
    found.close()


def sizes(weights: SharedWeights) -> list[int]:
    return [os.fstat(file).st_size for file in weights.files]


def test_engines_compute_with_the_trainers_memory(weights):
    policies = [small_policy(seed=seed) for seed in range(4)]
    engines = Engines(
        [EngineThread(policies[0], slots=4, max_len=64, weights=weights) for _ in "ab"], weights
    )
    served = [thread.engine for thread in engines.each]
    for version, policy in enumerate(policies[1:], 1):
        assert engines.update(state(policy.model), version) == version
        assert sorted(sizes(weights))[:2] == [0, 0], "one copy, whatever the number of engines"
        for engine in served:
            done = ask(engine, PROMPT, max_tokens=8, seed=1)[0]
            assert set(done.versions) == {version}
            assert done.logprobs == pytest.approx(logprobs_of(policy, PROMPT, done.token_ids), abs=1e-5)
    engines.close()


def test_constant_weights_are_written_once_and_stay_mapped(weights):
    policies = [small_policy(seed=seed) for seed in range(4)]
    names = [name for name in state(policies[0].model) if "layers.0" in name or "embed" in name]
    for policy in policies[1:]:
        for name, tensor in state(policies[1].model).items():
            if name in names:
                state(policy.model)[name].copy_(tensor)
    engines = Engines([EngineThread(policies[0], slots=4, max_len=64, weights=weights)], weights)
    (engine,) = (thread.engine for thread in engines.each)
    written, addresses = [], set()
    for version, policy in enumerate(policies[1:], 1):
        assert engines.update(state(policy.model), version, constant=names) == version
        written.append(sum(sizes(weights)[:2]))
        addresses.add(engine._model.model.embed_tokens.weight.data_ptr())
        done = ask(engine, PROMPT, max_tokens=8, seed=1)[0]
        assert done.logprobs == pytest.approx(logprobs_of(policy, PROMPT, done.token_ids), abs=1e-5)
    assert len(addresses) == 1, "the mapping of the first time is used again"
    whole = sum(tensor.nbytes for tensor in state(policies[0].model).values())
    assert max(written) + sizes(weights)[2] < whole + 20_000, "each tensor once, and two headers"
    with pytest.raises(StateError, match="other weights are constant than at first"):
        engines.update(state(policies[3].model), 4, constant=names[1:])
    engines.close()


def test_what_the_trainer_changes_is_not_served_before_it_is_published(weights):
    policy = small_policy(seed=1)
    with Engine(small_policy(), slots=4, max_len=64) as engine:
        with weights.publish(state(policy.model)) as handover:
            mapped = MappedWeights(weights.files).take(handover)
            assert engine.submit_shared(mapped, 1).result(60) == 1
        before = ask(engine, PROMPT, max_tokens=8, seed=1)[0]
        with torch.no_grad():
            policy.model.model.norm.weight.mul_(2)
        mapped["model.norm.weight"].mul_(3)  # a private mapping: others do not see this
        assert torch.equal(MappedWeights(weights.files).take(handover)["model.norm.weight"], torch.ones(32))
        mapped["model.norm.weight"].div_(3)
        with weights.publish(state(policy.model)):
            assert ask(engine, PROMPT, max_tokens=8, seed=1)[0].logprobs == before.logprobs


def test_an_engine_of_another_type_gets_its_own_copy():
    policy, weights = small_policy(), SharedWeights("bfloat16")
    policy.model.to(torch.bfloat16)
    with (
        Engine(policy, slots=4, max_len=64) as engine,
        weights.publish(state(small_policy(seed=1).model)) as it,
    ):
        mapped = MappedWeights(weights.files).take(it)
        assert {tensor.dtype for tensor in mapped.values()} == {torch.bfloat16}
        engine.submit_shared(mapped, 1).result(60)
        assert engine._model.lm_head.weight.data_ptr() == mapped["lm_head.weight"].data_ptr()
        engine.submit_shared({name: t.float() for name, t in mapped.items()}, 2).result(60)
        assert engine._model.lm_head.weight.dtype == torch.bfloat16
        assert torch.equal(engine._model.lm_head.weight, mapped["lm_head.weight"])
    weights.close()


def test_a_file_that_is_not_the_one_described_is_refused(weights):
    with weights.publish(state(small_policy().model)) as good:
        for wrong, why in (
            (Handover(3, good.size, good.words), "no file 3"),
            (Handover(2, good.size, good.words), "has 0 bytes"),
            (Handover(-1, good.size, good.words), "no file -1"),
            (Handover(1, good.size, good.words), "has 0 bytes"),
            (Handover(0, good.size - 1, good.words), f"has {good.size} bytes"),
            (Handover(0, good.size, good.words + 1), "add up to"),
        ):
            with pytest.raises(StateError, match=why):
                MappedWeights(weights.files).take(wrong)
    with (
        weights.publish({"a": torch.zeros(3)}) as strange,
        Engine(small_policy(), slots=1, max_len=32) as engine,
    ):
        with pytest.raises(StateError, match=r"missing .* and \d+ more"):
            engine.submit_shared(MappedWeights(weights.files).take(strange), 1)
        os.pwrite(weights.files[strange.file], b"\xff" * 8, 0)
        words = shared._words(
            torch.frombuffer(bytearray(os.pread(weights.files[1], 10**6, 0)), dtype=torch.uint8)
        )
        with pytest.raises(StateError, match="not safetensors"):
            MappedWeights(weights.files).take(Handover(1, strange.size, words))


def test_after_a_failure_neither_file_is_written(weights):
    with pytest.raises(KeyError), weights.publish(state(small_policy().model)):
        raise KeyError("an engine has failed")
    before = sizes(weights)
    with pytest.raises(StateError, match="start the engines anew"), weights.publish({}):
        pass
    assert sizes(weights) == before


def test_no_room_is_said_and_changes_nothing(weights, monkeypatch):
    def full(file: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(NoRoom, match=r"no room for .* MiB .* No space left"):
        patch.setattr(os, "ftruncate", full)
        with weights.publish(state(small_policy().model)):
            pass
    with weights.publish(state(small_policy().model)) as handover:
        assert MappedWeights(weights.files).take(handover)


def test_closing_while_weights_are_written_waits_for_them(weights, monkeypatch):
    writing, go = threading.Event(), threading.Event()
    parts = shared.Layout.parts

    def slow(*args: object) -> object:
        writing.set()
        assert go.wait(300)
        return parts(*args)

    monkeypatch.setattr(shared.Layout, "parts", slow)
    failed: list[Exception] = []

    def publish() -> None:
        try:
            with weights.publish(state(small_policy().model)):
                pass
        except StateError as error:
            failed.append(error)

    trainer = threading.Thread(target=publish)
    trainer.start()
    assert writing.wait(300)
    closing = threading.Thread(target=weights.close)
    closing.start()
    go.set()
    closing.join(300)
    trainer.join(300)
    with pytest.raises(StateError, match="closed"):
        _ = weights.files


def test_without_memfd_a_deleted_file_does(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    weights = SharedWeights()
    with weights.publish(state(small_policy().model)) as handover:
        assert MappedWeights(weights.files).take(handover).keys() == state(small_policy().model).keys()
    assert not list(tmp_path.iterdir())
    weights.close()


@pytest.mark.slow
@pytest.mark.parametrize("victim", sampled(["trainer", "engine"], 0))
def test_a_kill_leaves_nothing_behind(victim, policy_dir, tmp_path):
    places = [Path("/dev/shm"), tmp_path]
    before = [set(place.glob("*agl*")) for place in places]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, str(policy_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    engine = int(trainer.stdout.readline())
    os.kill(engine if victim == "engine" else trainer.pid, signal.SIGKILL)
    trainer.stdin.close()
    trainer.stdout.close()
    trainer.wait(300)
    while is_running(engine):
        pass
    assert [set(place.glob("*agl*")) for place in places] == before
    # torch may make an empty cache of its compiler there
    assert not [left for left in tmp_path.iterdir() if not left.name.startswith("torchinductor_")]
