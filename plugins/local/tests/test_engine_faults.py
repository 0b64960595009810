"""Pauses, updates under way, cancellation, bad requests and failures: nobody is left waiting."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError, wait

import pytest
import torch

from agl_local.generation.engine import Engine, EngineError, PromptTooLong, Request
from agl_local.network.sampling import Sampling
from agl_local.policy.folder import state
from agl_local.policy.weights import StateError
from plugins.local.tests.engine_fixtures import ask, logprobs_of, small_policy

PROMPT = list(range(3, 33))


class Gate:
    """A token callback that tells when tokens have come, and holds the engine's thread until released."""

    def __init__(self, after: int = 1) -> None:
        self.after = after
        self.seen = 0
        self.reached = threading.Event()
        self.go = threading.Event()

    def __call__(self, event) -> None:
        self.seen += 1
        if self.seen == self.after:
            self.reached.set()
            assert self.go.wait(300)


def running_request(engine: Engine, max_tokens: int = 12, after: int = 3, seed: int = 1):
    gate = Gate(after)
    sampling = Sampling(max_tokens=max_tokens, seed=seed, ignore_eos=True)
    future = engine.submit(Request(PROMPT, sampling, on_token=gate))
    assert gate.reached.wait(300)
    return future, gate


def test_drain_lets_running_requests_finish_and_holds_new_ones(engine, policy):
    other = small_policy(seed=1)
    old, gate = running_request(engine)
    update = engine.submit_weights(state(other.model), 1, "drain")
    new = engine.submit(Request(PROMPT, Sampling(max_tokens=12, seed=1, ignore_eos=True)))
    gate.go.set()
    assert update.result(60) == 1
    a, b = old.result(60)[0], new.result(60)[0]
    assert set(a.versions) == {0} and set(b.versions) == {1}
    assert a.logprobs == pytest.approx(logprobs_of(policy, PROMPT, a.token_ids), abs=1e-5)
    assert b.logprobs == pytest.approx(logprobs_of(other, PROMPT, b.token_ids), abs=1e-5)


def test_hold_goes_on_with_the_new_weights_and_says_so(engine, policy):
    other = small_policy(seed=1)
    future, gate = running_request(engine, after=5)
    update = engine.submit_weights(state(other.model), 3, "hold")
    gate.go.set()
    assert update.result(60) == 3
    got = future.result(60)[0]
    assert got.versions == [0] * 5 + [3] * 7
    before = logprobs_of(policy, PROMPT, got.token_ids)
    after = logprobs_of(other, PROMPT, got.token_ids)
    assert got.logprobs == pytest.approx(before[:5] + after[5:], abs=1e-5)


def test_pause_and_resume(engine):
    future, gate = running_request(engine)
    paused = engine.pause("drain")
    waiting = engine.submit(Request(PROMPT, Sampling(max_tokens=2)))
    gate.go.set()
    paused.result(60)
    assert future.done() and not waiting.done() and engine.status()["waiting"] == 1
    engine.load_weights(state(small_policy(seed=2).model), 5, timeout=300)
    assert not waiting.done() and engine.status()["paused"] == "drain"
    engine.resume()
    assert set(waiting.result(60)[0].versions) == {5}


def test_a_hold_pause_stops_between_two_steps(engine):
    future, gate = running_request(engine)
    paused = engine.pause("hold")
    gate.go.set()
    paused.result(60)
    steps = engine.stats.steps
    # An update during the pause cannot wait for what stands still: it is applied as hold.
    engine.load_weights(state(small_policy(seed=2).model), 1, "drain", timeout=300)
    assert not future.done() and engine.stats.steps == steps
    engine.resume()
    assert set(future.result(60)[0].versions) == {0, 1}


def test_weights_that_do_not_fit_change_nothing(engine):
    before = ask(engine, PROMPT, max_tokens=5, seed=1)[0]
    with pytest.raises(StateError, match="missing"):
        engine.load_weights({}, 1, timeout=300)
    engine.load_weights(state(small_policy().model), 4, timeout=300)
    with pytest.raises(ValueError, match="version 3 is below the present version 4"):
        engine.load_weights(state(small_policy(seed=1).model), 3, timeout=300)
    with pytest.raises(ValueError, match="'drain' or 'hold'"):
        engine.load_weights({}, 5, "now", timeout=300)
    assert ask(engine, PROMPT, max_tokens=5, seed=1)[0].logprobs == before.logprobs


def test_a_cancelled_request_frees_its_slot(policy):
    with Engine(policy, slots=1, max_len=128) as engine:
        future, gate = running_request(engine, max_tokens=90)
        next_one = engine.submit(Request(PROMPT, Sampling(max_tokens=2)))
        waiting = engine.submit(Request(PROMPT, Sampling(max_tokens=2)))
        assert waiting.cancel() and future.cancel()
        gate.go.set()
        assert len(next_one.result(60)[0].token_ids) <= 2
        assert gate.seen < 90 and engine.status()["cancelled"] == 2
        for cancelled in (future, waiting):
            with pytest.raises(CancelledError):
                cancelled.result(0)


async def test_a_cancelled_task_cancels_its_request(policy):
    with Engine(policy, slots=1, max_len=128) as engine:
        gate = Gate()
        request = Request(PROMPT, Sampling(max_tokens=90, ignore_eos=True), on_token=gate)
        task = asyncio.ensure_future(engine.generate(request))
        assert await asyncio.to_thread(gate.reached.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.go.set()
        await engine.generate(Request(PROMPT, Sampling(max_tokens=1)))
        assert gate.seen < 90


def test_a_prompt_too_long_is_refused_with_numbers(engine):
    with pytest.raises(PromptTooLong, match=r"has 128 tokens; this engine holds 128 .* at most 127"):
        engine.submit(Request([1] * 128, Sampling()))
    assert len(ask(engine, [1] * 127, max_tokens=9)[0].token_ids) == 1


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (Request([], Sampling()), "empty"),
        (Request([10**6], Sampling()), r"token ids must be in 0\.\.321"),
        (Request([-1], Sampling()), "token ids"),
        (Request([1], Sampling(guided_choice=((999,),))), "token ids"),
        (Request([1], Sampling(logit_bias={999: 1.0})), "token ids"),
        (Request([1], Sampling(), n=0), "n must be"),
        (Request([1], Sampling(), n=257), "n must be"),
    ],
)
def test_bad_requests_are_refused_at_once(engine, request_, why):
    with pytest.raises(ValueError, match=why):
        engine.submit(request_)


def test_a_failing_step_fails_what_ran_and_no_more(engine, monkeypatch):
    future, gate = running_request(engine)
    waiting = engine.submit(Request(PROMPT, Sampling(max_tokens=5, seed=3)))
    real = engine._model.step
    broken = threading.Event()

    def step(*args, **kwargs):
        if not broken.is_set():
            broken.set()
            raise MemoryError("no room for scores")
        return real(*args, **kwargs)

    monkeypatch.setattr(engine._model, "step", step)
    gate.go.set()
    with pytest.raises(EngineError, match="no room for scores"):
        future.result(60)
    wait([waiting], 60)
    assert isinstance(waiting.exception(), EngineError)  # it was being admitted in the step that failed
    got = ask(engine, PROMPT, max_tokens=5, seed=3)[0]
    assert len(got.token_ids) <= 5 and engine.status()["failed"] == 2


def test_a_failing_callback_fails_its_request_only(engine):
    def bad(event):
        raise KeyError("mine")

    held = engine.pause()
    held.result(10)
    failing = engine.submit(Request(PROMPT, Sampling(max_tokens=5), n=3, on_token=bad))
    fine = engine.submit(Request(PROMPT, Sampling(max_tokens=5, seed=3)))
    engine.resume()
    with pytest.raises(EngineError, match="callback failed: KeyError"):
        failing.result(60)
    assert fine.result(60)


def test_numbers_that_are_not_finite_fail_loudly_and_leave_no_trace(engine, policy):
    before = ask(engine, PROMPT, max_tokens=5, seed=3)[0]
    weights = {name: torch.full_like(t, torch.nan) for name, t in state(policy.model).items()}
    engine.load_weights(weights, 1, timeout=300)
    with pytest.raises(EngineError, match=r"no finite logits .* version 1\): `agl policy check FOLDER`"):
        ask(engine, PROMPT, n=3, max_tokens=5)
    engine.load_weights(state(policy.model), 2, timeout=300)
    assert ask(engine, PROMPT, max_tokens=5, seed=3)[0].logprobs == before.logprobs


def test_a_dead_thread_fails_everyone(policy, monkeypatch):
    seen = []
    monkeypatch.setattr(threading, "excepthook", lambda args: seen.append(args.exc_type))
    engine = Engine(policy, slots=2, max_len=64)
    thread = engine._loop.thread
    assert thread is not None
    monkeypatch.setattr(engine, "_sweep", lambda: (_ for _ in ()).throw(SystemError("broken")))
    future = engine.submit(Request(PROMPT, Sampling()))
    with pytest.raises(EngineError, match="its thread failed: SystemError"):
        future.result(60)
    thread.join(300)
    with pytest.raises(EngineError, match="does not run"):
        engine.submit(Request(PROMPT, Sampling()))
    with pytest.raises(EngineError, match="does not run"):
        engine.load_weights({}, 1)
    assert seen == [SystemError]


def test_close_fails_what_has_not_finished(policy):
    engine = Engine(policy, slots=1, max_len=128)
    future, gate = running_request(engine, max_tokens=90)
    waiting = engine.submit(Request(PROMPT, Sampling()))
    order = engine.pause("drain")
    closer = threading.Thread(target=engine.close)
    closer.start()
    gate.go.set()
    closer.join(300)
    for pending in (future, waiting, order):
        with pytest.raises(EngineError, match="closed"):
            pending.result(60)
    engine.close()


def test_a_callback_cannot_wait_for_its_own_engine(engine):
    errors = []

    def callback(event):
        try:
            engine.load_weights({}, 1)
        except EngineError as error:
            errors.append(str(error))

    engine.submit(Request(PROMPT, Sampling(max_tokens=1), on_token=callback)).result(60)
    assert "wait for itself" in errors[0]


def test_many_threads_submit_and_cancel_under_updates(policy):
    """Whatever happens at once, each request ends and each answer belongs to the version it names."""
    other = small_policy(seed=1)
    policies = [policy, other]
    futures = []
    lock = threading.Lock()

    def client(k: int) -> None:
        for i in range(6):
            prompt = PROMPT[: 10 + (k + i) % 5]
            future = engine.submit(
                Request(prompt, Sampling(max_tokens=6, seed=i, ignore_eos=True), n=1 + k % 2)
            )
            with lock:
                futures.append((prompt, future))
            if (k + i) % 4 == 0:
                future.cancel()

    with Engine(policy, slots=5, max_len=64) as engine:
        threads = [threading.Thread(target=client, args=(k,)) for k in range(6)]
        for thread in threads:
            thread.start()
        for version in range(1, 5):
            engine.load_weights(state(policies[version % 2].model), version, timeout=300)
        for thread in threads:
            thread.join(300)
        done, pending = wait([future for _, future in futures], 60)
        assert not pending and len(done) == 36
    for prompt, future in futures:
        for c in [] if future.cancelled() else future.result():
            assert len(set(c.versions)) == 1
            want = logprobs_of(policies[c.versions[0] % 2], prompt, c.token_ids)
            assert c.logprobs == pytest.approx(want, abs=1e-5)
