"""Plans worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from agentlightning.plan.costs import Cost, Costs, CostSource, committed
from agentlightning.plan.engine import mean_context, plan_engines, rollout_times
from agentlightning.plan.estimate import plan
from agentlightning.plan.inputs import Assumptions, PlannedRun
from agentlightning.plan.memory import cached_numbers, forward_flops, parameter_count, update_bytes
from agentlightning.plan.needs import needs
from agentlightning.plan.shape import MODELS, NetworkShape
from agentlightning.types.base import ConfigError

TOY = NetworkShape(2, 4, 1, 1, 1, 2, 10, tied=True)
"""Matrices 2·2·4 + 3·2·4 = 40; parameters 40 + norms 4 + 2 + 20 = 66; cache 4 numbers a token."""
RUN = PlannedRun(gpus=2, model="toy", shape=TOY, turns=4, tokens=800, rollouts=8, group=4)


def cost(value: float) -> Cost:
    return Cost("a cost", "", [(100.0, value)], [CostSource("c", "m", "d")])


COSTS = Costs(
    gateway_ms=cost(10), chunk_ms=cost(1), gateway_mb=cost(100), store_calls_per_s=cost(50),
    stored_bytes=cost(5), step_behind_s=cost(2), step_credit_s=cost(6), step_mb=cost(3000),
    shipped_mb=cost(500),
)  # fmt: skip
TINY = 1e-9
GIVEN = Assumptions(
    gpu_memory_gb=24_000 * TINY, gpu_tflops=1e-6, gpu_gb_per_s=1e5 * TINY, decode_share=0.5,
    prefill_share=0.5,
    update_share=0.5, update_passes=5, engine_memory=0.5, answered=0.25, tool_seconds=1, longest=1.5, peak=2,
    streamed=0, cpu_share=0.5, sync_gb_per_s=132 * TINY, network_gb_per_s=0.5, host_cores=8, host_memory_gb=8,
    disk_gb=1, days=7, waiting=0.1,
)  # fmt: skip
"""GPUs of 24 kB, a million operations and 100 kB a second."""


def test_formulas_of_the_toy() -> None:
    assert (parameter_count(TOY), cached_numbers(TOY)) == (66, 4)
    assert forward_flops(TOY, 800) == 2 * (40 + 20) * 800 + 2 * 2 * 800**2 == 2_656_000
    # checkpointed: one layer's share 4·2 + 2·2·2 + 1 + 3·4 = 29, and an input of 2; logits 3·4·10
    assert update_bytes(TOY, 2, True, 100, 25) == 2 * 100 * 31 + 3 * 4 * 25 * 10


def test_a_call_has_half_of_the_conversation_and_a_bit() -> None:
    assert mean_context(RUN) == (200 + 400 + 600 + 800) / 4 == 500


def test_a_replica_has_the_fewest_gpus_that_leave_room() -> None:
    found = plan_engines(RUN, GIVEN)
    assert (found.gpus, found.replicas, found.weights_bytes) == (1, 2, 132)
    assert found.cache_bytes == 12_000 - 132  # half of 24 kB, less the weights
    assert found.held == (12_000 - 132) / (8 * 500)  # eight bytes a token
    small = replace(GIVEN, gpu_memory_gb=520 * TINY, engine_memory=0.5)  # 260 a GPU, weights 132: not half
    with pytest.raises(ConfigError, match=r"needs 0 GB.*2 GPUs give it.*more GPUs"):
        plan_engines(RUN, small)
    short = replace(RUN, tokens=30, turns=2)
    assert plan_engines(short, small).gpus == 2


def test_rollouts_alone_in_their_replicas_take_what_decoding_and_prefill_take() -> None:
    run = replace(RUN, concurrency=2)
    times = rollout_times(run, GIVEN, plan_engines(run, GIVEN), None)
    # 200 answer tokens × (132 + 8·500 bytes) / 50 kB/s; prefill 0.75 · 2,656,000 / 0.5 million
    alone, shared = 200 * 132 / 50_000, 200 * 4_000 / 50_000 + 0.75 * 2_656_000 / 500_000
    assert times.mean == pytest.approx(alone + shared + 3)
    assert times.phase == pytest.approx(4 * times.mean + 0.5 * times.mean)  # 8 rollouts, 2 at a time
    assert times.tail == pytest.approx(0.5 * times.mean)
    assert times.tokens_per_s_per_gpu == pytest.approx(8 * 200 / times.phase / 2)


def test_many_rollouts_share_a_replica() -> None:
    run = replace(RUN, concurrency=4)
    engines = plan_engines(run, GIVEN)
    inside = rollout_times(run, GIVEN, engines, None).mean - 3
    alone, shared = 200 * 132 / 50_000, 200 * 4_000 / 50_000 + 0.75 * 2_656_000 / 500_000
    under_way = 2 * inside / (inside + 3)
    assert inside == pytest.approx(alone + shared * under_way)
    assert rollout_times(run, GIVEN, engines, 10.0).mean == pytest.approx(
        2 * 200 / 10
    )  # 40 − 3 in it, 3 outside


def test_the_cache_bounds_what_is_under_way() -> None:
    times = rollout_times(RUN, GIVEN, plan_engines(RUN, GIVEN), None)
    assert times.under_way == pytest.approx(2 * (12_000 - 132) / 4_000)  # 5.9 of 8
    assert times.phase == pytest.approx(times.mean * (8 / times.under_way + 0.5))


def test_a_step_by_hand() -> None:
    found = needs(RUN, GIVEN, COSTS)
    assert found.step_tokens == 6_400 and found.context == 500
    assert found.update == pytest.approx(8 * 2_656_000 * 5 / (2 * 500_000))
    assert (found.behind, found.ship, found.sync) == (2, 1, pytest.approx(1))
    assert found.step == pytest.approx(found.times.phase + 2 + 1 + found.update + 1)
    assert found.waiting == pytest.approx(3 / found.step)
    assert found.idle == pytest.approx((3 + found.times.tail) / found.step)
    assert found.calls_mean == pytest.approx(32 / found.times.phase)
    assert found.calls_peak == pytest.approx(64 / found.times.phase)
    assert found.gateways == math.ceil(found.calls_peak * 0.01 / 0.5) == 1
    assert found.disk_step_gb == pytest.approx(6_400 * 5 / 1e9)
    assert found.disk_day_gb == pytest.approx(found.disk_step_gb * 86_400 / found.step)
    assert found.checkpoint_gb == pytest.approx(66 * 12 / 1e9)
    assert found.weights_gb == pytest.approx(2 * 132 / 1e9)
    assert found.states_gb == pytest.approx(66 * 16 / 2 / 1e9)
    assert found.activations_gb * 1e9 == pytest.approx(2 * 16_384 * 31 + 12 * 10 * 4_096)
    assert (found.trainer_gb, found.host_gb) == (3.0, pytest.approx(3.1))
    assert found.cores == pytest.approx(1 + found.calls_peak / 50 + 1)


def test_streams_cost_the_gateway_a_chunk_a_token() -> None:
    streamed = needs(RUN, replace(GIVEN, streamed=0.5), COSTS)
    assert streamed.call_ms == pytest.approx(10 + 0.5 * 50 * 1)  # 200 answer tokens in 4 calls


def test_more_calls_need_more_gateways() -> None:
    slow = msgspec_replace(COSTS, gateway_ms=cost(60_000))
    found = needs(RUN, GIVEN, slow)
    assert found.gateways == math.ceil(found.calls_peak * 60 / 0.5) > 5


def msgspec_replace(costs: Costs, **changes: Cost) -> Costs:
    return Costs(**{**costs.all(), **changes})


def test_long_rows_are_divided_by_the_ranks_that_share_them() -> None:
    run = replace(RUN, tokens=40_000, sequence_parallel=2)
    given = replace(GIVEN, gpu_memory_gb=1.0)
    assert needs(run, given, COSTS).activations_gb * 1e9 == pytest.approx(2 * 20_000 * 31 + 120 * 5_000)


def test_the_tightest_limit_binds_first() -> None:
    found = plan(RUN, GIVEN, COSTS)
    used = [limit.used for limit in found.limits]
    assert used == sorted(used, reverse=True) and found.binds_first is found.limits[0]
    # The update keeps 1.5 MB, and a GPU has 24 kB.
    assert found.binds_first.name == "GPU memory of the update"
    cache = next(limit for limit in found.limits if limit.name == "KV cache")
    assert (
        cache.used == pytest.approx(8 / 2 / ((12_000 - 132) / 4_000)) and cache.has == "5 of mean length fit"
    )
    disk = next(limit for limit in found.limits if limit.name == "disk")
    assert disk.used == pytest.approx(7 * found.value("disk a day") / 1)
    wait = next(limit for limit in found.limits if limit.name == "GPUs wait for Python")
    assert wait.used == pytest.approx(3 / found.value("step") / 0.1)


def test_no_time_is_called_measured_that_rests_on_an_assumption() -> None:
    found = plan(RUN, GIVEN, COSTS)
    basis = {one.name: one.basis for one in found.figures}
    assert basis["step"] == ("measured", "formula", "assumption")
    for name in ("rollouts", "update", "generated tokens/s a GPU", "model calls"):
        assert "assumption" in basis[name] and "measured" not in basis[name]
    assert basis["engine replicas"] == ("formula",) and basis["trainer's memory"] == ("measured",)
    assert len({one.name for one in found.figures}) == len(found.figures)


def test_costs_beyond_what_was_measured_are_noted() -> None:
    run = PlannedRun(64, "7b", MODELS["Qwen2.5-7B"], 20, 16_000)
    assert plan(run, Assumptions(), committed()).notes == []
    large = replace(run, rollouts=8_192)
    assert any(
        "beyond the largest size measured" in note for note in plan(large, Assumptions(), committed()).notes
    )


def test_more_gpus_are_never_slower() -> None:
    steps = []
    for gpus in (8, 16, 32, 64, 128):
        steps.append(
            needs(PlannedRun(gpus, "7b", MODELS["Qwen2.5-7B"], 20, 16_000), Assumptions(), committed()).step
        )
    assert steps == sorted(steps, reverse=True)
