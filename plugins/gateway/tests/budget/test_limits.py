"""Limits, accounts and prices, without a gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agl_gateway.budget.limits import Account, Budget, Spent
from agl_gateway.budget.prices import TABLE, Price, Pricing, read_prices, read_table, shipped_prices
from agl_gateway.budget.section import BudgetSection

from agentlightning.types import Call, UsageError


def call(**fields: Any) -> Call:
    given = {"call_id": "c", "rollout_id": "r", "attempt_id": "a", "sequence": 0, "policy": "writer"}
    return Call(**{**given, "model": "m", "prompt_tokens": 1000, "completion_tokens": 500, **fields})


def test_a_call_costs_its_tokens_by_the_price_of_its_model() -> None:
    pricing = Pricing({"gpt": Price(2.0, 8.0)}, {"writer": "gpt"}, served={"policy"})
    cost = pricing.cost([call(), call(choice=1), call(policy="policy"), call(masked="budget")])
    # two calls; the second choice has no prompt of its own; the run's own policy is free; a refusal is none
    assert (cost.calls, cost.prompt_tokens, cost.completion_tokens) == (2, 2000, 1500)
    assert cost.money == pytest.approx((1000 * 2 + 1000 * 8) / 1e6)
    assert not pricing.unpriced
    assert pricing.cost([call(policy="other", model="unknown")]).money == 0 and pricing.unpriced == {
        "other": 1
    }


def test_training_costs_what_its_service_was_sent() -> None:
    pricing = Pricing({"mine": Price(2.0, 8.0, 3.0)}, served={"free"})
    sent = {"service/forward_tokens": 1000.0, "service/trained_tokens": 700.0}
    assert pricing.training("mine", sent) == pytest.approx((1000 * 2 + 700 * 3) / 1e6)
    assert pricing.training("mine", {"loss": 1.0}) == 0  # of a driver that trains here
    assert pricing.training("free", sent) == pricing.training("unknown", sent) == 0
    # its calls are not free either
    assert pricing.cost([call(policy="mine")]).money == pytest.approx((1000 * 2 + 500 * 8) / 1e6)


def test_the_shipped_prices_have_a_date_and_a_source() -> None:
    about = json.loads(TABLE.read_text())
    assert about["date"] and about["source"] and shipped_prices()["gpt-4.1-mini"] == Price(0.4, 1.6)
    section = BudgetSection(money=1.0, prices={"gpt-4.1-mini": {"prompt": 9, "completion": 9}})
    assert section.table()["gpt-4.1-mini"] == Price(9, 9) and section.table()["gpt-4.1"] == Price(2.0, 8.0)


def test_a_file_of_prices_is_read_from_the_folder_of_the_description(tmp_path: Path) -> None:
    tmp_path.joinpath("mine.json").write_text('{"prices": {"m": {"prompt": 1, "completion": 2}}}')
    assert BudgetSection(prices="mine.json").table(tmp_path)["m"] == Price(1, 2)
    for content, said in (
        ("{", "cannot be read"),
        ("[]", "must hold"),
        ('{"prices": {"m": {"in": 1}}}', "prices.m"),
    ):
        tmp_path.joinpath("bad.json").write_text(content)
        with pytest.raises(UsageError, match=said):
            read_table(tmp_path / "bad.json")


@pytest.mark.parametrize("price", [{"prompt": -1}, {"prompt": float("nan")}, {"completion": "x"}, 3])
def test_a_price_that_is_none_is_refused(price: Any) -> None:
    with pytest.raises(UsageError, match=r"prices\.m"):
        read_prices({"m": price})


@pytest.mark.parametrize("name", ["calls", "tokens", "money", "seconds"])
@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan"), True, "3"])
def test_a_limit_that_is_none_is_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"budget.{name}"):
        Budget(**{name: value})


def test_a_place_is_free_while_those_under_way_may_fit() -> None:
    account = Account(Budget(tokens=1000))
    assert account.has_room()
    account.under_way = 1
    assert not account.has_room()  # nobody knows yet what a call costs
    account.settle(Spent(1, 80, 20))
    assert account.has_room()  # 100 + 2 * 100
    account.under_way = 8
    assert account.has_room()  # 100 + 9 * 100
    account.under_way = 9
    assert not account.has_room()
    account.under_way = 0
    account.settle(Spent(1, 850, 20))  # 970 used: one more call may begin, alone
    assert account.has_room() and account.why_spent(0) is None
    account.under_way = 1
    assert not account.has_room()
    account.settle(Spent(1, 50, 0))
    assert account.why_spent(0) == "tokens: 1020 of 1000 are used"


def test_what_is_kept_back_is_not_spent() -> None:
    account = Account(Budget(calls=100, seconds=50))
    account.reserve(Spent(calls=20, seconds=10))
    account.spent.calls = 77
    assert account.why_spent(0) is None and account.has_room()
    account.spent.calls = 78
    assert account.why_spent(0) == "calls: 78 of 100 are used; 22 are kept for the evaluation at the end"
    assert not account.has_room()
    account.spent.calls = 0
    assert "seconds: 39 of 50" in (account.why_spent(39) or "")
