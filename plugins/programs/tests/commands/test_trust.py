"""What a program may say of itself: real programs forge rewards and evidence with their attempt's key."""

from __future__ import annotations

from typing import Any

import pytest
from agl_programs.commands.result import CommandResult

import agentlightning as agl
from agentlightning.credit import assign, resolve
from agentlightning.credit.verdicts import SAYS_OTHERWISE, verdicts
from agentlightning.recipes import GRPO
from agentlightning.semconv import JUDGED
from agentlightning.types import Batch
from agl_audit.explanation.explain import rewards
from plugins.programs.tests.commands.running import ASK, Bench, Ran, python

FORGE = (
    ASK
    + """
import agentlightning as agl
ask()
agl.emit_reward(1.0)
agl.emit_reward(1.0, name="bonus")
agl.emit_reward(1.0, agent="solver")
from agentlightning.capture.context import current_attempt
agl.emit_reward(1.0, agent=current_attempt().tags["agent"])
"""
)
"""A program that calls the model once and rewards itself."""
HIDE = """
import json, os, urllib.request
url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
def ask(**headers):
    body = {"model": "any", "messages": [{"role": "user", "content": "hi"}]}
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + key, **headers}
    request = urllib.request.Request(url + "/chat/completions", json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))
from agentlightning.capture.context import current_attempt
from agentlightning.capture.delivery import deliver, new_span
answer, context = ask(), current_attempt()
lie = {"agl.layer": "wire", "gen_ai.response.id": answer["id"], "agl.tokens_digest": "0"}
deliver(context, new_span(context, "openai.chat.completion", ("0" * 31 + "1", None), lie))
ask(**{"x-agl-selected": "0"})
trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
ask(**{"traceparent": trace})
ask(**{"traceparent": trace, "x-stainless-retry-count": "1"})
"""
"""A program that makes four calls, and wants to take three of them back."""


def nothing(result: CommandResult) -> None:
    """A judge that gives no reward."""


def zero(result: CommandResult) -> float:
    return 0.0


def by_agent(result: CommandResult) -> float:
    agl.emit_reward(0.25, agent="writer")
    return 0.5


def credited(ran: Ran, rule: str) -> Batch:
    return assign([ran.record], GRPO(credit=rule, filter_zero_std_groups=False))


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["broadcast", "last", "per_call", "discounted", "per_agent"])
async def test_forged_rewards_are_kept_counted_and_never_trained_beside_a_judge(
    here: Bench, rule: str
) -> None:
    ran = await here.run(python(FORGE), reward=zero)
    assert ran.rollout.status == "succeeded" and len(ran.rewards) == 5
    found = resolve(ran.record)
    assert (found.final, found.targeted, found.by_name) == (0.0, [], {"reward": 0.0})
    batch = credited(ran, rule)
    assert batch.metrics["reward_mean"] == 0.0 and batch.metrics["reward_unused/by-agent"] == 4
    values = [account["credit"] for row in batch.rows for account in row.metadata["calls"].values()]
    assert set(values) <= {0.0}
    counts = await here.store.counts(ran.rollout.rollout_id)
    assert counts["refused"]["reward-beside-the-returned"] == 4
    unused = [one["unused"] for one in rewards(ran.record)]
    assert sum("is not trusted" in why for why in unused) == 4 and unused[-1] == ""


async def test_a_judge_that_gives_none_leaves_the_rollout_without_a_reward(here: Bench) -> None:
    ran = await here.run(python(FORGE), reward=nothing)
    assert ran.attempt.metadata[JUDGED] is True
    assert (resolve(ran.record).outcome, resolve(ran.record).missing) == (None, {"by-agent": 4})
    assert credited(ran, "per_agent").metrics["rollouts_no_reward"] == 1


async def test_without_a_judge_the_programs_own_rewards_count(here: Bench) -> None:
    ran = await here.run(python(FORGE))
    assert (resolve(ran.record).final, resolve(ran.record).missing) == (1.0, {})


@pytest.mark.slow
async def test_rewards_that_the_judge_emits_are_the_judges(here: Bench) -> None:
    found = resolve((await here.run(python(FORGE), reward=by_agent)).record)
    assert (found.final, found.agents, found.missing) == (0.5, {"writer": 0.25}, {"by-agent": 4})


async def test_a_program_cannot_take_its_calls_out_of_training(here: Bench) -> None:
    ran = await here.run(python(HIDE), reward=zero)
    assert ran.rollout.status == "succeeded", ran.rollout.reason
    batch = credited(ran, "broadcast")
    (ledger,) = batch.ledgers
    assert (ledger.trained, ledger.left_out, ledger.disputed) == (4, {}, 2)
    said: list[Any] = [one.reason for one in verdicts(ran.record).values() if one.by_agent]
    assert len(said) == 1 and said[0].startswith(SAYS_OTHERWISE)
    assert [call.selected for call in ran.record.calls] == [True] * 4
    assert ran.record.calls[1].asked == {"selected": False}
