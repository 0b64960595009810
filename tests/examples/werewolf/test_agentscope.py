"""Whole games of AgentScope agents: the small policy through a training step, talkative models through the
tool.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agentscope", reason="agentscope is not installed")
pytest.importorskip("agl_agentscope", reason="the adapter is not installed")

import agentscope.agent
from openai import DefaultAsyncHttpxClient

from agentlightning.testing.scripted import ScriptedModelServer
from agentlightning.types import LLM
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


async def test_a_whole_game_of_talking_models() -> None:
    game, account, server = await spoken_game(chatter(8, beside=BESIDE))
    assert game.outcome is not None and len(account.decisions) == len(game.answers) == len(server.log)
    assert account.defaults == account.invalid_calls == 0


@pytest.mark.skipif(ONE, reason="AgentScope 1.0 writes arguments anew")
async def test_memories_only_grow_so_that_prompts_extend_one_another() -> None:
    game, account, server = await spoken_game(chatter(8, beside=BESIDE))
    by_call = {exchange.response_id: exchange for exchange in server.log}
    for seat in game.state.roles:
        mine = [by_call[call] for d in account.decisions if d.seat == seat for call in d.calls]
        for before, after in pairwise(mine):
            whole = [*before.prompt_ids, *before.answers[0].ids]
            assert after.prompt_ids[: len(whole)] == whole


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
    from agentlightning.cli.run import read as read_config, trainer_from

    def make(**overrides: Any) -> Any:
        config = Path(werewolf.__file__).parent / "cpu.yaml"
        overrides = {"output": str(tmp_path), "trackers": [], "backend.options.engine": "thread", **overrides}
        return trainer_from(
            read_config(config, [f"{key}={json.dumps(value)}" for key, value in overrides.items()])
        )

    return make


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

    place = str(next(Path(trainer.folder).glob("*/store.sqlite")))
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
