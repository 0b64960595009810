"""Whole games of AgentScope agents: the small policy through a training step, talkative models through the
tool.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agentscope", reason="agentscope is not installed")
pytest.importorskip("agl_agentscope", reason="the adapter is not installed")

import agentscope.agent
from agl_testing import Reply
from agl_testing.scripted import ScriptedModelServer
from openai import DefaultAsyncHttpxClient

from agentlightning import open_store, semconv
from agentlightning.hookspecs import hookimpl
from agentlightning.train.config import from_fields
from agentlightning.types import LLM, Batch, Record, StepReport
from werewolf.chatter import chatter
from werewolf.engine import Game, Kind, Role
from werewolf.players.asking import Account
from werewolf.players.decisions import NotLegal, decision, read
from werewolf.seating import Table, draw, sit
from werewolf.table import play
from werewolf.wording import wording

ONE = hasattr(agentscope.agent, "AgentBase")
BESIDE = "好。" if ONE else None
"""AgentScope 1.0 asks once more for text if there is none beside a tool call."""


async def spoken_game(
    script: Any, preset: str = "zh12", deal: int = 1
) -> tuple[Game, Account, ScriptedModelServer]:
    """A game in which every seat is a talking model."""
    async with ScriptedModelServer(script, ids="always") as server, DefaultAsyncHttpxClient() as http:
        game, account = Game(preset, deal), Account()
        llm = LLM(endpoint=server.url, model="scripted", api_key="none")
        at = Table(game, llm, {}, http, account, wording("zh"), "1")
        await play(game, sit(draw({"wolves": "model", "town": "model"}, game, "1"), at))
        return game, account, server


@pytest.mark.slow
async def test_a_whole_game_of_talking_models() -> None:
    game, account, server = await spoken_game(chatter(8, beside=BESIDE))
    assert game.outcome is not None and len(account.decisions) == len(game.answers) == len(server.log)
    assert account.defaults == account.invalid_calls == 0


@pytest.mark.slow
@pytest.mark.skipif(ONE, reason="AgentScope 1.0 writes arguments anew")
async def test_memories_only_grow_so_that_prompts_extend_one_another() -> None:
    game, account, server = await spoken_game(chatter(8, beside=BESIDE))
    by_call = {exchange.response_id: exchange for exchange in server.log}
    for seat in game.state.roles:
        mine = [by_call[call] for d in account.decisions if d.seat == seat for call in d.calls]
        for before, after in pairwise(mine):
            whole = [*before.prompt_ids, *before.answers[0].ids]
            assert after.prompt_ids[: len(whole)] == whole


@pytest.mark.slow
async def test_reasoning_stays_private() -> None:
    def script(body: Any) -> Any:
        message = chatter(4, beside=BESIDE)(body)
        call = message["tool_calls"][0]["function"]
        call["arguments"] = json.dumps(
            {**json.loads(call["arguments"]), "reasoning": "我的秘密"}, ensure_ascii=False
        )
        return message

    game, _, server = await spoken_game(script, "mini7")
    assert not any("秘密" in json.dumps(event.data, ensure_ascii=False) for event in game.events)
    for exchange in server.log:
        heard = [m for m in exchange.body["messages"] if m["role"] in ("user", "system")]
        assert "秘密" not in json.dumps(heard, ensure_ascii=False)


@pytest.mark.slow
async def test_invalid_decisions_are_told_then_a_legal_default_stands_in() -> None:
    game, account, server = await spoken_game(chatter(4, invalid=1.0, beside=BESIDE), "mini7")
    assert game.outcome is not None
    silent = [d for d in account.decisions if d.kind != Kind.SPEECH]
    assert (
        silent
        and all(not d.valid and len(d.calls) == (4 if ONE else 3) for d in silent)
        and account.defaults == len(silent)
    )
    second = next(x for x in server.log if any(m["role"] == "tool" for m in x.body["messages"]))
    assert "is not one of" in json.dumps(second.body["messages"], ensure_ascii=False)


@pytest.mark.slow
async def test_a_model_that_only_talks_does_not_end_the_game() -> None:
    game, account, _ = await spoken_game(lambda body: "我不用工具。", "mini7")
    assert game.outcome is not None and account.defaults == len(account.decisions)


def test_with_the_schema_form_the_living_players_are_an_enum(driven: Any) -> None:
    words = wording("zh")
    play = driven("zh12")
    dead = play.seat(Role.VILLAGER)
    play[Kind.WOLF_VOTE] = dead
    ask = play.until(Kind.VOTE).game.asks[0]
    enum = decision(ask, words, "schema").model_json_schema()["properties"]["choice"]["enum"]
    assert enum == list(words.labels(ask)) and words.seat(dead) not in enum


def test_with_the_question_form_the_tool_never_changes(driven: Any) -> None:
    words = wording("zh")
    asks = [
        driven("zh12").until(kind).game.asks[0] for kind in (Kind.GUARD, Kind.CHECK, Kind.VOTE, Kind.SPEECH)
    ]
    schemas = [decision(ask, words, "question").model_json_schema() for ask in asks]
    assert all(schema == schemas[0] for schema in schemas)


def test_a_decision_is_read_or_refused_with_the_reason(driven: Any) -> None:
    words = wording("zh")
    vote = driven("zh12").until(Kind.VOTE).game.asks[0]
    assert read(vote, words, {"choice": " 12号 "}) == 12 and read(vote, words, {"choice": "弃票"}) == "skip"
    with pytest.raises(NotLegal, match="13号' is not one of"):
        read(vote, words, {"choice": "13号"})
    speech = driven("zh12").until(Kind.SPEECH).game.asks[0]
    said: Any = read(speech, words, {"speech": "我验了", "claim": "wolf", "about": "12号"})
    assert said.statement.seat == 12
    with pytest.raises(NotLegal, match="speech: must not be empty"):
        read(speech, words, {"speech": " "})
    with pytest.raises(NotLegal, match="or let claim be 'pass'"):
        read(speech, words, {"speech": "我验了", "claim": "wolf", "about": "99号"})


# ------------------------------------------------------------------------------------------------- training
@pytest.fixture
def trainer_of(tmp_path: Path) -> Any:
    pytest.importorskip("torch")
    import werewolf
    from agentlightning.cli.options import read as read_config
    from agentlightning.train.configured import configure

    def make(**overrides: Any) -> Any:
        config = Path(werewolf.__file__).parent / "cpu.yaml"
        overrides = {"output": str(tmp_path), "trackers": [], "backend.options.engine": "thread", **overrides}
        return configure(
            read_config(config, [f"{key}={json.dumps(value)}" for key, value in overrides.items()])
        )

    return make


@pytest.mark.slow
@pytest.mark.plugins
@pytest.mark.skipif(ONE, reason="in this environment the local driver is not installed")
async def test_a_training_step_through_gateway_store_and_driver(trainer_of: Any) -> None:
    sides = {"wolves": "policy", "town": "scripted"}
    trainer, agent, train, _ = trainer_of(
        **{
            "training.steps": 1,
            "training.batch_size": 2,
            "training.recipe.group_size": 4,
            "environment.train.args": {"n": 2, "trained": "wolves", "sides": sides, "record": True},
        }
    )
    summary = await trainer.afit(agent, train, ())
    totals = summary["totals"]
    assert totals["rollouts"] == 8 and totals["rollouts_failed"] == 0
    assert totals["calls"] == totals["calls_exact"] > 40 and totals["logprob_gap_max"] < 1e-4

    from agentlightning import open_store
    from werewolf.replay import recorded_game

    place = str(next(Path(trainer.config.output).glob("*/store.sqlite")))
    store = open_store(place)
    rollouts = await store.query_rollouts()
    records = await store.records([r.rollout_id for r in rollouts])
    await store.close()
    for record in records:
        assert len(record.rewards) == len(record.calls) + 1
        for call in record.calls:
            assert set(call.tags) >= {"agent", "seat", "role", "side", "phase", "kind", "day", "turn"}
            assert call.tags["side"] == "wolves" and call.selected and call.masked is None
            assert (
                call.allowed
                and call.response_ids
                and call.response_ids[:-1] in [list(o) for o in call.allowed]
            )
    game = await recorded_game(place, records[0].rollout.rollout_id)
    assert game["decisions"] and sum(d["calls"] for d in game["decisions"]) == len(records[0].calls)


@pytest.mark.plugins
@pytest.mark.skipif(ONE, reason="in this environment the local driver is not installed")
async def test_games_of_a_group_share_the_deal_and_differ_in_the_rest(trainer_of: Any) -> None:
    from agentlightning.types import Rollout
    from werewolf.agent import play_game

    sides = {"wolves": "random", "town": "random"}
    none = LLM(endpoint="", model="")
    task = {"deal": 3, "sides": sides}
    played = [
        await play_game(task, none, Rollout(rollout_id=str(s), mode="val", sample=s, seed=s))
        for s in range(12)
    ]
    assert set(played) == {0.0, 1.0}
    again = await play_game(task, none, Rollout(rollout_id="again", mode="val", sample=0, seed=99))
    assert again == played[0]


async def test_a_game_that_was_played_through_ends_with_who_has_won() -> None:
    from agentlightning.types import Rollout
    from werewolf.agent import play_through

    sides, none = {"wolves": "random", "town": "random"}, LLM(endpoint="", model="")
    task = {"preset": "mini5", "deal": 3, "sides": sides, "language": "en"}
    ends = set()
    for sample in range(12):
        rollout = Rollout(rollout_id=str(sample), mode="val", sample=sample, seed=0)
        game = await play_through(task, none, rollout, {})
        ends.add((game.outcome, game.ending))
    assert ends == {(1.0, "The game is over. The wolves win."), (0.0, "The game is over. The town wins.")}


class Reports:
    """What each update reported."""

    def __init__(self) -> None:
        self.steps: list[StepReport] = []
        self.out: Counter[str] = Counter()
        """Reason → calls that were not trained."""
        self.judge: Counter[str] = Counter()
        """What the games say of their judge."""

    @hookimpl
    def agl_policy_updated(self, report: StepReport) -> None:
        self.steps.append(report)

    @hookimpl
    def agl_rows_built(self, batch: Batch) -> None:
        for ledger in batch.ledgers:
            assert ledger.sums
            self.out.update(ledger.left_out)


FEW = {"training.steps": 1, "training.batch_size": 1, "training.recipe.group_size": 2}


def tasks_of(**task: Any) -> dict[str, Any]:
    """One deal, again and again."""
    return {**FEW, "environment.train.args": {"n": 1, "trained": "wolves", **task}}


async def trained(trainer_of: Any, **overrides: Any) -> tuple[dict[str, Any], list[Record], Reports]:
    """A run's summary, what its store holds of each rollout, and its reports."""
    trainer, agent, train, _ = trainer_of(**overrides)
    trainer.config = from_fields({"run": "r"}, trainer.config)  # the names of rollouts are functions of it
    reports = Reports()
    trainer.plugins = trainer.plugins.with_listeners([reports])
    summary = await trainer.afit(agent, train, ())
    store = open_store(str(next(Path(trainer.config.output).glob("*/store.sqlite"))))
    try:
        rollouts = await store.query_rollouts()
        for rollout in rollouts:
            for span in await store.query_spans(rollout.rollout_id):
                judge = {k[6:]: v for k, v in span.attributes.items() if k.startswith("judge.")}
                reports.judge.update(judge)
        return summary, await store.records([r.rollout_id for r in rollouts]), reports
    finally:
        await store.close()


@pytest.mark.slow
@pytest.mark.plugins
@pytest.mark.skipif(ONE, reason="in this environment the local driver is not installed")
async def test_supplied_triplets_make_the_same_rows_as_emitted_rewards(
    trainer_of: Any, tmp_path: Path
) -> None:
    sides, rewards = {"wolves": "policy", "town": "policy"}, {"discount": 0.9, "aim": 0.2}
    found = {}
    for name in ("play_game", "play_game_supplied"):
        summary, records, reports = await trained(
            trainer_of,
            **tasks_of(sides=sides, rewards=rewards),
            **{
                "agent.target": f"werewolf.agent:{name}",
                # by name, so that calls that are not selected have seeds too
                "backend.policy": absolute({"both": {}}),
                "backend.options.deterministic": True,
                "output": str(tmp_path / name),
            },
        )
        (report,) = reports.steps
        assert report.rows_digest and report.params_digest and report.metrics["rows"] > 0
        found[name] = report.rows_digest, report.params_digest, report.metrics["reward_mean"]
        named = [set(r.attempt.metadata.get(semconv.SUPPLIED, ())) for r in records if r.attempt]
        assert summary["totals"]["rollouts_failed"] == 0
        for record, own in zip(records, named, strict=True):
            mine = {call.call_id for call in record.calls if call.tags["side"] == "wolves"}
            assert own == (mine if name == "play_game_supplied" else set()) and mine
    assert found["play_game"] == found["play_game_supplied"]


SNAPSHOT = {"wolves": {"path": "policy"}, "old": {"path": "policy", "train": False}}


@pytest.mark.slow
@pytest.mark.plugins
@pytest.mark.skipif(ONE, reason="in this environment the local driver is not installed")
async def test_a_frozen_snapshot_plays_the_other_side(trainer_of: Any) -> None:
    summary, records, reports = await trained(
        trainer_of,
        **tasks_of(sides={"wolves": "policy", "town": "policy:old"}),
        **{"agent.select": None, "agent.policies": {"town": "old"}, "backend.policy": absolute(SNAPSHOT)},
    )
    assert summary["totals"]["rollouts_failed"] == 0
    for record in records:
        of_side = {(call.tags["side"], call.policy) for call in record.calls}
        assert of_side == {("wolves", "wolves"), ("town", "old")}
    town = sum(call.policy == "old" for record in records for call in record.calls)
    assert reports.out == {"frozen-policy": town} and town > 0


@pytest.mark.slow
@pytest.mark.plugins
@pytest.mark.skipif(ONE, reason="in this environment the local driver is not installed")
async def test_an_endpoint_plays_the_other_side_with_free_speech(trainer_of: Any) -> None:
    with ScriptedModelServer(chatter(4), ids="always") as server:
        summary, records, reports = await trained(
            trainer_of,
            **tasks_of(sides={"wolves": "policy", "town": "llm:talker"}),
            **{
                "agent.select": None,
                "agent.policies": {"town": "talker"},
                "backend.policy": beside(talker=server),
            },
        )
        asked = len(server.log)
    assert summary["totals"]["rollouts_failed"] == 0 and reports.out == {"frozen-policy": asked}
    for record in records:
        of_side = {(call.tags["side"], call.policy) for call in record.calls}
        assert of_side == {("wolves", "wolves"), ("town", "talker")}


@pytest.mark.slow
@pytest.mark.plugins
@pytest.mark.skipif(ONE, reason="in this environment the local driver is not installed")
async def test_a_judge_scores_the_speeches_of_models_and_is_never_trained(trainer_of: Any) -> None:
    answers = cycle(["1.0", Reply(status=500, message="broken")])
    with ScriptedModelServer(chatter(4)) as talker, ScriptedModelServer(lambda body: next(answers)) as critic:
        summary, records, reports = await trained(
            trainer_of,
            **tasks_of(
                sides={"wolves": "policy", "town": "model:talker"},
                judge="llm:critic",
                rewards={"judge": 0.5, "town_win": 1.0, "town_lose": 0.0},
            ),
            **{
                "agent.select": None,
                "agent.policies": {"town": "talker", "critic": "critic"},
                "backend.policy": beside(talker=talker, critic=critic),
            },
        )
        answered = [x.status for x in critic.log]
    assert summary["totals"]["rollouts_failed"] == 0 and 200 in answered and 500 in answered
    scored = 0
    for record in records:
        judging = [call for call in record.calls if call.tags.get("role") == "judge"]
        assert judging and all(call.policy == "critic" for call in judging)
        spans = {call.span_id: call for call in record.calls}
        named = {reward.span_id: reward for reward in record.rewards if reward.name == "judge"}
        for span_id in named:
            assert spans[span_id].tags["kind"] in ("speech", "pk_speech")
        for reward in record.rewards:
            if reward.name == "reward" and reward.span_id in spans:
                bonus = reward.value % 1.0
                assert bonus == (0.25 if reward.span_id in named else 0.0)
        scored += len(named)
    assert scored == answered.count(200) + reports.judge["cached"]
    assert reports.judge["asked"] == len(answered)
    assert reports.judge["failed:InternalServerError"] == answered.count(500)
    others = sum(call.policy != "wolves" for record in records for call in record.calls)
    assert reports.out.keys() <= {"frozen-policy", "error"} and reports.out.total() == others


def absolute(policies: dict[str, Any]) -> dict[str, Any]:
    """With the folder of the example's policy."""
    import werewolf

    folder = str(Path(werewolf.__file__).parent / "policy")
    return {name: {**policy, "path": folder} for name, policy in policies.items()}


def beside(**servers: ScriptedModelServer) -> dict[str, Any]:
    """The wolves' policy, and endpoints."""
    endpoints = {name: {"endpoint": server.url, "model": server.model} for name, server in servers.items()}
    return {**absolute({"wolves": {}}), **endpoints}
