"""Further batches of a step: which tasks they hold, and which numbers of them a recipe takes."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import agl_schedules.plugin
from agentlightning import GRPO, PolicyFolder, Trainer
from agentlightning.algorithms.schedule import schedule_of
from agentlightning.plugins.manager import build
from agentlightning.train.config import from_fields
from agentlightning.types import Batch, Ledger, Rollout, UsageError
from agentlightning.types.base import ConfigError
from agl_schedules.dynamic_sampling import extra_batches, groups_with_spread

PLUGINS = build([agl_schedules.plugin], discover=False)
SPREAD = GRPO(filter_zero_std_groups=True)


@given(
    n=st.integers(1, 40),
    size=st.integers(1, 8),
    seed=st.integers(0, 9),
    step=st.integers(0, 99),
    own=st.integers(0, 50),
)
def test_no_task_twice_before_all_have_been(n: int, size: int, seed: int, step: int, own: int) -> None:
    tasks = list(range(n))
    has = tasks[:own]
    batches = list(islice(extra_batches(tasks, size, seed, step, has), 12))
    assert batches == list(islice(extra_batches(tasks, size, seed, step, has), 12))
    assert all(len(batch) == size for batch in batches)
    drawn = [task for batch in batches for task in batch]
    fresh = n - len(has)
    assert set(drawn[:fresh]).isdisjoint(has) and len(set(drawn[:fresh])) == min(fresh, len(drawn))
    again = drawn[fresh : fresh + n]
    assert len(set(again)) == len(again)


def test_each_step_and_each_seed_draws_its_own() -> None:
    tasks = list(range(1000))
    drawn = [tuple(next(extra_batches(tasks, 8, seed, step))) for seed in (1, 2) for step in (0, 1)]
    assert len(set(drawn)) == 4


def test_a_group_has_a_spread_where_a_call_of_it_is_trained() -> None:
    groups = [[Rollout(rollout_id=f"{g}{s}", input=g) for s in "ab"] for g in "xyz"]
    ledgers = [
        Ledger("xa", made=2, trained=1, left_out={"zero-std": 1}),
        Ledger("xb", made=1, left_out={"zero-std": 1}),
        Ledger("ya", made=1, left_out={"zero-std": 1}),
        Ledger("yb", made=1, left_out={"failed-rollout": 1}),
        Ledger("zb", made=3, trained=3),
    ]
    assert groups_with_spread(Batch(rows=[], ledgers=ledgers), groups) == 2


@pytest.mark.parametrize(
    ("recipe", "options", "said"),
    [
        (
            GRPO(),
            {"async_steps": 1},
            r"async_steps = 1 with recipe.max_staleness = 0: .*max_staleness to 1 .*importance_cap",
        ),
        (GRPO(max_staleness=1), {"async_steps": 2}, r"async_steps = 2 with recipe.max_staleness = 1"),
        (
            GRPO(),
            {"dynamic_sampling": 1},
            r"dynamic_sampling = 1 without recipe.filter_zero_std_groups: .*to true",
        ),
        (
            GRPO(filter_zero_std_groups=True, baseline="none", scale="none"),
            {"dynamic_sampling": 1},
            r"baseline = 'none'",
        ),
    ],
)
def test_what_would_come_to_nothing_is_refused(recipe: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        schedule_of(PLUGINS, recipe, from_fields({"steps": 1, **options}).training)


@pytest.mark.parametrize("name", ["async_steps", "dynamic_sampling"])
@pytest.mark.parametrize("value", [-1, 0.5])
def test_values_that_are_no_number_of_steps_or_batches_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"Trainer: {name}: "):
        Trainer(GRPO(), **{name: value})


def test_what_a_recipe_takes() -> None:
    plain = schedule_of(PLUGINS, GRPO(max_staleness=2), from_fields({"async_steps": 2}).training)
    assert plain.open is None and plain.watch is None
    both = GRPO(max_staleness=1, filter_zero_std_groups=True)
    for recipe, fields in (
        (SPREAD, {"dynamic_sampling": 3}),
        (both, {"async_steps": 1, "dynamic_sampling": 1}),
    ):
        found = schedule_of(PLUGINS, recipe, from_fields(fields).training)
        assert found.open is not None and found.chooses_by == ["dynamic_sampling"]


@pytest.mark.slow
def test_deterministic_mode_excludes_what_depends_on_timing() -> None:
    policy = {"a": "a", "b": PolicyFolder("b", options={"deterministic": True})}
    from_fields({"policy": policy})
    from_fields({"async_steps": 1, "options": {"deterministic": False}})
    with pytest.raises(UsageError, match=r"async_steps = 1: which version answers a call depends on timing"):
        from_fields({"async_steps": 1, "policy": policy})
    with pytest.raises(UsageError, match=r"quorum: which rollouts end first depends on timing"):
        from_fields({"quorum": {"hedge": 1}, "options": {"deterministic": True}})


@pytest.mark.parametrize("given", [{"async_steps": 1}, {"dynamic_sampling": 2}, {"quorum": {"hedge": 1}}])
def test_an_algorithm_of_ones_own_does_not_ignore_them(given: dict[str, Any], tmp_path: Path) -> None:
    async def mine(*, store: Any) -> None: ...

    (name,) = given
    trainer = Trainer(mine, output=tmp_path, trackers=[], **given)
    with pytest.raises(UsageError, match=rf"training\.{name}: only training with a recipe knows it"):
        trainer.fit(lambda task: 1.0, train_dataset=[1])
