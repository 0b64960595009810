"""Further batches of a step: which tasks they hold, and which numbers of them a recipe takes."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from agentlightning import GRPO, Trainer
from agentlightning.algorithms.recipe_checks import RecipeRefused, check_deterministic
from agentlightning.algorithms.rl import RL
from agentlightning.algorithms.rollouts.dynamic_sampling import extra_batches, groups_with_spread
from agentlightning.algorithms.rollouts.quorum import QuorumResult
from agentlightning.types import Batch, Ledger, Rollout, UsageError

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
        Ledger("xa", made=2, trained=1, left_out={"zero-spread": 1}),
        Ledger("xb", made=1, left_out={"zero-spread": 1}),
        Ledger("ya", made=1, left_out={"zero-spread": 1}),
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
        (GRPO(), {"async_steps": -1}, r"async_steps = -1: a whole number, 0 or more"),
        (GRPO(), {"async_steps": 0.5}, r"async_steps = 0.5: a whole number"),
        (GRPO(), {"async_steps": True}, r"async_steps = True: a whole number"),
        (SPREAD, {"dynamic_sampling": -2}, r"dynamic_sampling = -2: a whole number, 0 or more"),
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
    with pytest.raises(RecipeRefused, match=said):
        RL(recipe, steps=1, **options)


def test_what_a_recipe_takes() -> None:
    assert RL(GRPO(max_staleness=2), steps=1, async_steps=2).async_steps == 2
    assert RL(SPREAD, steps=1, dynamic_sampling=3).dynamic_sampling == 3
    RL(GRPO(max_staleness=1, filter_zero_std_groups=True), steps=1, async_steps=1, dynamic_sampling=1)


def test_deterministic_mode_excludes_what_depends_on_timing() -> None:
    check_deterministic(None, 0, [{"deterministic": True}])
    check_deterministic(None, 1, [{}, {"deterministic": False}])
    with pytest.raises(UsageError, match=r"async_steps = 1: which version answers a call depends on timing"):
        check_deterministic(None, 1, [{}, {"deterministic": True}])


def test_what_was_gathered_adds_up() -> None:
    one = QuorumResult(counted=["a"], left_out=["b"], stragglers=1, cancelled=1, waited_seconds=1.0)
    one.add(QuorumResult(counted=["c"], hedged=2, short_groups=1, waited_seconds=0.5))
    assert one == QuorumResult(
        counted=["a", "c"],
        left_out=["b"],
        stragglers=1,
        hedged=2,
        cancelled=1,
        short_groups=1,
        waited_seconds=1.5,
    )


@pytest.mark.parametrize("given", [{"async_steps": 1}, {"dynamic_sampling": 2}, {"quorum": {"hedge": 1}}])
def test_an_algorithm_of_ones_own_does_not_ignore_them(given: dict[str, Any], tmp_path: Path) -> None:
    async def mine(*, store: Any) -> None: ...

    (name,) = given
    trainer = Trainer(mine, output=tmp_path, trackers=[], **given)
    with pytest.raises(UsageError, match=rf"training\.{name}: only training with a recipe knows it"):
        trainer.fit(lambda task: 1.0, train_dataset=[1])
