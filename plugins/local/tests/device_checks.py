"""What holds on a device that is not the CPU, on the pretend one. ``test_device.py`` runs this file in a
process of its own: a device that is registered stays so.
"""

from __future__ import annotations

import random
from concurrent.futures import Future
from typing import Any

import pytest
import torch

from agentlightning import GRPO
from agl_local.generation.engine import Completion, Engine, Request
from agl_local.network.layout import realise
from agl_local.network.sampling import Sampling
from agl_local.network.steps import Steps
from agl_local.policy.folder import Policy, init_model, state
from agl_local.training import update
from agl_local.training.loss import policy_loss
from agl_local.training.optim import clip_and_step, make_adamw
from agl_local.training.update import Updater
from bench.gpu import pretend
from plugins.local.tests.driver_fixtures import make_row
from plugins.local.tests.engine_fixtures import logprobs_of, small_policy

pretend.register()


def test_it_computes_what_the_cpu_computes_and_counts() -> None:
    x, y = torch.randn(4, 5), torch.randn(5, 3)
    with pretend.counted() as counts:
        found = (x.to("pretend") @ y.to("pretend")).relu().cpu()
    assert torch.equal(found, (x @ y).relu())
    wanted = {"launches": 2, "h2d": 2, "d2h": 1, "waits": 3, "h2d_bytes": 140, "d2h_bytes": 48}
    assert {name: counts[name] for name in wanted} == wanted


def test_operands_of_two_devices_are_refused() -> None:
    there = torch.ones(3, device="pretend")
    with pytest.raises(RuntimeError, match="same device"):
        there + torch.ones(3)
    assert (there + torch.tensor(1.0)).tolist() == [2, 2, 2], "a number may come from the CPU, as on CUDA"


def test_what_makes_the_host_wait_is_counted() -> None:
    values = torch.arange(6, device="pretend")
    for wait in (
        lambda: values.sum().item(),
        lambda: values.tolist(),
        lambda: values[values > 2],
        lambda: values.nonzero(),
        lambda: values.copy_(torch.zeros(6, dtype=torch.long)),
        torch.get_device_module("pretend").synchronize,
    ):
        with pretend.counted() as counts:
            wait()
        assert counts["waits"] == 1
    with pretend.counted() as counts:
        values.copy_(torch.zeros(6, dtype=torch.long).pin_memory(), non_blocking=True)
        values.masked_fill_(values > 2, 0)
    assert counts["waits"] == 0


def test_pinned_memory_is_not_written_to_while_it_is_copied() -> None:
    memory, there = torch.ones(3).pin_memory(), torch.zeros(3, device="pretend")
    there.copy_(memory, non_blocking=True)
    memory.fill_(2)
    with pytest.raises(RuntimeError, match="before its copy had been waited for"):
        there.tolist()
    memory.fill_(1)
    assert there.tolist() == [1, 1, 1]


def test_a_graph_computes_when_it_is_replayed_and_not_before() -> None:
    module = torch.get_device_module("pretend")
    graph, given, total = (
        module.CUDAGraph(),
        torch.ones(3, device="pretend"),
        torch.zeros(3, device="pretend"),
    )
    with module.graph(graph):
        made = torch.cat((given * 2, given + 1))
        total.add_(given)
    assert made.isnan().all() and total.tolist() == [0, 0, 0]
    with pretend.counted() as counts:
        graph.replay()
    assert (counts["launches"], counts["graphs"], counts["nodes"]) == (1, 1, 4)
    assert made.tolist() == [2, 2, 2, 2, 2, 2]
    given.copy_(torch.tensor([1.0, 2, 3]))
    graph.replay()
    assert made.tolist() == [2, 4, 6, 2, 3, 4] and total.tolist() == [2, 3, 4]


@pytest.mark.parametrize("wait", ["item", "copy", "mask"])
def test_a_graph_holds_no_wait(wait: str) -> None:
    module, there = torch.get_device_module("pretend"), torch.ones(3, device="pretend")
    what = {"item": lambda: there.sum().item(), "copy": lambda: there.cpu(), "mask": lambda: there[there > 0]}
    with pytest.raises(RuntimeError, match="while a graph is captured"), module.graph(module.CUDAGraph()):
        what[wait]()


def there(policy: Policy, dtype: torch.dtype = torch.float32) -> Policy:
    """The same policy on the device."""
    return Policy(realise(policy.model, dtype, torch.device("pretend")), policy.tokenizer, policy.config)


@torch.inference_mode()
@pytest.mark.parametrize("slots", [[0, 1, 2], [5, 3], [15], [2, 14, 9, 7]], ids=str)
def test_a_replayed_step_is_a_step(slots: list[int]) -> None:
    """Slots as they lie and single ones, at all lengths; the first step of a kind is not replayed."""
    policy = small_policy(arch="qwen3")
    model = there(policy).model
    ids = torch.randint(3, policy.config.vocab_size, (len(slots), 60))
    want = policy.model(ids)
    cache = model.new_cache(slots=16, max_len=64)
    steps = Steps(model, cache)
    for at in range(60):
        with pretend.counted() as counts:
            got = steps(ids[:, at].tolist(), [at] * len(slots), slots)
        if at % 8 > 0:
            seen = {name: counts[name] for name in ("launches", "graphs", "h2d", "d2h", "waits")}
            assert seen == {"launches": 2, "graphs": 1, "h2d": 1, "d2h": 0, "waits": 0}
        assert torch.allclose(got.cpu(), want[:, at], atol=1e-5, rtol=0)


def test_rows_at_different_lengths_and_slots_that_are_left() -> None:
    policy = small_policy()
    model = there(policy).model
    ids = torch.randint(3, policy.config.vocab_size, (6, 40))
    with torch.inference_mode():
        want, cache = policy.model(ids), model.new_cache(slots=6, max_len=64)
        steps, rng, lengths = Steps(model, cache), random.Random(0), [0] * 6
        while min(lengths) < 40:
            slots = [slot for slot in range(6) if lengths[slot] < 40 and rng.random() < 0.7]
            if not slots:
                continue
            got = steps([int(ids[s, lengths[s]]) for s in slots], [lengths[s] for s in slots], slots).cpu()
            for row, slot in enumerate(slots):
                assert torch.allclose(got[row], want[slot, lengths[slot]], atol=1e-5, rtol=0)
                lengths[slot] += 1


def test_the_engine_waits_once_a_step_whatever_is_asked() -> None:
    """And gives the logprobs of a plain forward pass, before and after new weights."""
    policy, rng = small_policy(), random.Random(1)
    other = Policy(init_model(policy.config, 7, std=0.1).eval(), policy.tokenizer, policy.config)
    asked: list[dict[str, float]] = [{}, {"temperature": 0.7}, {"temperature": 0}, {"top_logprobs": 3}]
    with Engine(there(policy), slots=8, max_len=128) as engine:
        for version, served in enumerate((policy, other)):
            if version:
                engine.load_weights({n: t.to("pretend") for n, t in state(other.model).items()}, version)
            jobs: list[tuple[list[int], float, Future[list[Completion]]]] = []
            for seed, settings in enumerate(asked * 3):
                prompt = [rng.randrange(3, policy.config.vocab_size) for _ in range(20 + seed)]
                request = Request(prompt, Sampling(max_tokens=30, seed=seed, ignore_eos=True, **settings))  # type: ignore[arg-type]
                jobs.append((prompt, settings.get("temperature", 1.0) or 1.0, engine.submit(request)))
            for prompt, temperature, job in jobs:
                done = job.result(60)[0]
                want = logprobs_of(served, prompt, done.token_ids, temperature)
                assert max(abs(a - b) for a, b in zip(done.logprobs, want, strict=True)) < 1e-5
        nucleus = Sampling(max_tokens=40, seed=1, ignore_eos=True, top_p=0.8, top_k=20, top_logprobs=2)
        for _ in range(2):
            before = engine.stats.steps
            with pretend.counted() as counts:
                engine.submit(Request(prompt, nucleus, n=6)).result(60)
        assert counts["waits"] == engine.stats.steps - before


def test_where_no_graph_can_be_captured_steps_are_launched(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.get_device_module("pretend"), "CUDAGraph", broken)
    policy = small_policy()
    with Engine(there(policy), slots=2, max_len=64) as engine:
        done = engine.submit(Request([5, 6, 7], Sampling(max_tokens=20, seed=1, ignore_eos=True))).result(60)[
            0
        ]
    want = logprobs_of(policy, [5, 6, 7], done.token_ids)
    assert max(abs(a - b) for a, b in zip(done.logprobs, want, strict=True)) < 1e-5
    assert caplog.text.count("no graph was captured: operation not permitted") == 1


def test_moments_on_the_host_leave_half_of_the_states_on_the_device() -> None:
    found = {}
    for offload in (False, True):
        torch.manual_seed(0)
        layer = torch.nn.Linear(256, 256, device="cpu").to("pretend")
        optimizer = make_adamw(layer, lr=1e-2, offload=offload)
        with pretend.counted() as counts:
            for step in range(3):
                inputs = torch.full((2, 256), 1.0 + step).to("pretend")
                layer(inputs).square().mean().backward()
                assert clip_and_step(layer, optimizer, 1.0, 0.0).stepped
        assert {m.device.type for s in optimizer.state.values() for k, m in s.items() if k != "step"} == {
            "cpu" if offload else "pretend"
        }
        weights = torch.cat([p.detach().cpu().flatten() for p in layer.parameters()])
        found[offload] = (counts["bytes"], weights)
    (all_there, there), (half, by_host) = found[False], found[True]
    moments = 2 * 4 * (256 * 256 + 256)
    assert moments <= all_there - half < 1.1 * moments
    assert torch.allclose(there, by_host, atol=1e-6)


@pytest.mark.parametrize("coarse", [True, False])
def test_products_of_an_update_are_tf32_where_the_engine_is_coarser(
    coarse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = small_policy()
    row = make_row(policy.model, [3, 5, 7, 9], [(2, 4)])
    updater = Updater(there(policy).model, GRPO(), share=False, tf32=coarse)
    seen: set[str] = set()

    def loss(*args: Any) -> Any:
        seen.add(torch.get_float32_matmul_precision())
        return policy_loss(*args)

    monkeypatch.setattr(update, "policy_loss", loss)
    updater.update([row])
    assert seen == {"high" if coarse else "highest"}
    assert torch.get_float32_matmul_precision() == "highest"
