"""A run that its budget stops keeps what it has, says so, and goes on with a larger budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from e2e.test_line import THREAD, Watch, trainer

from agentlightning.types import LLM, StepReport
from agentlightning.types.base import ConfigError
from agl_audit.locations import stores
from agl_audit.run_list import list_runs
from agl_local.driver import LocalDriver
from calc_x.agent import solve
from calc_x.datasets import load

TRAIN, HELD_OUT = load("generated:train", limit=50), load("generated:heldout", limit=3)


def made(folder: Path, watch: Watch, **fields: Any) -> Any:
    given = {"steps": 8, "batch_size": 2, "evaluate_sampled": False, "run": "r"}
    return trainer(folder, watch, **{"options": {**THREAD, "save_every": 1}, **given, **fields})


@pytest.mark.slow
async def test_a_run_stops_at_its_budget_and_goes_on_with_a_larger_one(tmp_path: Path) -> None:
    watch = Watch()
    summary = await made(tmp_path, watch, budget={"calls": 50}).afit(solve, TRAIN, HELD_OUT)
    assert summary["ended"].startswith("stopped by budget: calls") and 1 <= summary["steps"] < 8
    # the checkpoint and the evaluation are there, and the budget was never exceeded
    assert summary["reward_after"] is not None and summary["eval_failed"] == [0, 0]
    assert (tmp_path / "r" / "checkpoints" / f"step-{summary['steps']:06d}").is_dir()
    budget = summary["budget"]
    assert budget["limits"] == {"calls": 50} and 30 < budget["spent"]["calls"] <= 50
    assert watch.calls == budget["spent"]["calls"] + budget["refused"]
    assert watch.reports[-1].metrics["budget/calls"] <= 50
    (line,) = await list_runs(stores(str(tmp_path)))
    assert line.status == "stopped by budget" and line.spent["calls"] == budget["spent"]["calls"]

    again = Watch()
    more = await made(tmp_path, again, budget={"calls": 80}, resume=True).afit(solve, TRAIN, HELD_OUT)
    assert more["steps"] > summary["steps"] and more["ended"].startswith("stopped by budget")
    spent = more["budget"]["spent"]["calls"]
    assert budget["spent"]["calls"] < spent <= 80
    assert watch.calls + again.calls == spent + more["budget"]["refused"]


@pytest.mark.slow
async def test_a_budget_of_a_rollout_fails_that_rollout_with_its_kind(tmp_path: Path) -> None:
    watch = Watch()
    one = made(tmp_path, watch, steps=1, budget={"per_rollout": {"calls": 1}})
    summary = await one.afit(solve, TRAIN)
    ledgers = [ledger for batch in watch.batches for ledger in batch.ledgers]
    assert all(ledger.sums for ledger in ledgers) and summary["budget"]["refused"] == 8
    assert [batch.metrics["failed/budget"] for batch in watch.batches] == [8.0]
    assert "ended" not in summary and summary["budget"]["per_rollout"] == {"calls": 1}


@pytest.mark.slow
async def test_what_a_service_trains_is_in_the_runs_money(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's budget hears each report, and the record has the last one's cost."""
    report = LocalDriver._report

    def billed(self: LocalDriver, job: Any, step: int, *more: Any) -> StepReport:
        made = report(self, job, step, *more)
        sums = {"service/forward_tokens": 0.0, "service/trained_tokens": 1e6 * (step + 1)}
        return msgspec.structs.replace(made, metrics={**made.metrics, **sums})

    monkeypatch.setattr(LocalDriver, "_report", billed)
    one = made(tmp_path, Watch(), steps=2, budget={"prices": {"policy": {"train": 3.0}}})
    budget = (await one.afit(solve, TRAIN))["budget"]
    assert budget["training"] == budget["spent"]["money"] == 6.0


@pytest.mark.slow
def test_money_needs_prices_for_the_models_of_endpoints(tmp_path: Path) -> None:
    from agl_gateway.budget.guard import budget_of

    critic = LLM(endpoint="http://127.0.0.1:9/v1", model="unheard-of")
    policy, prices = (
        {"solver": "folder", "critic": critic},
        {"unheard-of": {"prompt": 1.0, "completion": 2.0}},
    )
    one = made(tmp_path, Watch(), policy=policy, budget={"money": 1.0})
    with pytest.raises(ConfigError, match=r"unheard-of.*has no price"):
        budget_of(one.config, one.plugins)
    one = made(tmp_path, Watch(), policy=policy, budget={"money": 1.0, "prices": prices})
    spending = budget_of(one.config, one.plugins)
    assert spending is not None and spending.pricing.models == {"critic": "unheard-of"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ({"calls": 0}, "calls"),
        ({"tokens": 1.5}, "tokens"),
        ({"cents": 3}, "cents"),
        ({"per_rollout": {"money": -1}}, "money"),
    ],
)
def test_a_bad_budget_names_its_key(tmp_path: Path, budget: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"budget.*{said}"):
        made(tmp_path, Watch(), budget=budget)
