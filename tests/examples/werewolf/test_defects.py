"""Sixteen defects of the game that this example follows, each as a test that it is not here."""

from __future__ import annotations

import ast
import inspect
import random
from pathlib import Path
from typing import Any

import pytest

import werewolf
from werewolf.engine import Game, Happening, Kind, Role, Say, State, preset
from werewolf.engine.asks import SKIP, YES
from werewolf.engine.ballots import count
from werewolf.players.asking import Account, Decision
from werewolf.players.base import legal_default
from werewolf.players.local import local_player
from werewolf.rewards import Rewards
from werewolf.table import play_local
from werewolf.wording import wording

ROOT = Path(werewolf.__file__).parent


def elect(driven: Any, seat: int, rivals: tuple[int, ...] = ()) -> Any:
    play = driven("zh12", wolf_vote=SKIP, run=lambda ask: YES if ask.seat in (seat, *rivals) else "no")
    play[Kind.SHERIFF_VOTE] = lambda ask: seat if seat in ask.options else SKIP
    return play


def test_1_a_clear_first_ballot_winner_is_installed(driven: Any) -> None:
    play = elect(driven, 5, (6, 7)).until(Happening.DAWN)
    assert play.game.state.sheriff == 5 and not play.happened(Happening.PK)


def test_1_an_explosion_during_the_pk_leaves_no_list_as_sheriff(driven: Any) -> None:
    play = elect(driven, 1, (2,))
    play[Kind.SHERIFF_VOTE] = lambda ask: {4: 1, 5: 2}.get(ask.seat, SKIP)
    wolf = next(s for s in play.game.state.seats(Role.WOLF) if s > 2)
    play[Kind.EXPLODE, wolf] = lambda ask: YES if play.happened(Happening.PK) else "no"
    play.until(lambda game: game.state.day == 2)
    assert play.happened(Happening.PK) and play.happened(Happening.EXPLODED) and play.game.state.sheriff == 0
    assert play.game.state.standing == (1, 2)


def test_2_the_sheriffs_weight_stays_with_the_sheriff_when_others_abstain(driven: Any) -> None:
    tally = count({1: SKIP, 2: SKIP, 3: 7, 4: 8, 5: 8}, {3: 1.5})
    assert tally.sums == {7: 1.5, 8: 2.0} and tally.ballots[1] == 0
    play = elect(driven, 5)
    play[Kind.VOTE] = lambda ask: {5: 1, 9: 2}.get(ask.seat, SKIP)
    play.until(Happening.EXILED)
    assert play.happened(Happening.EXILED)[0].seat == 1  # 1.5 to 1


def test_3_seats_are_numbers_so_that_1_is_not_part_of_11(driven: Any) -> None:
    play = elect(driven, 11).until(Kind.SHERIFF_VOTE)
    assert 1 in [ask.seat for ask in play.game.asks] and 11 not in [ask.seat for ask in play.game.asks]
    words = wording("zh")
    for seat in (1, 11, 12, 2):
        labels = words.labels(play.game.asks[0])
        assert labels.get(words.seat(seat)) in (seat, None)


def test_4_all_withdrawals_count(driven: Any) -> None:
    play = elect(driven, 5, (1, 2, 3, 4))
    play[Kind.WITHDRAW] = lambda ask: YES if ask.seat in (1, 2, 3) else "no"
    play.until(Kind.SHERIFF_VOTE)
    assert play.game.state.standing == (4, 5) and len(play.happened(Happening.WITHDRAWN)) == 3


def test_5_nothing_of_a_game_outlives_it(driven: Any) -> None:
    def texts() -> list[str]:
        play = driven("zh12", save=YES)
        play[Kind.WOLF_VOTE] = lambda ask: next(
            o for o in ask.options if o in play.game.state.seats(Role.VILLAGER)
        )
        play.until(lambda game: game.state.day == 3)
        return [wording("zh").question(ask) for ask, _ in play.game.answers]

    assert texts() == texts()
    tree = [
        node
        for file in (ROOT / "engine").glob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
    ]
    assert not [node for node in tree if isinstance(node, ast.Global | ast.Nonlocal)]


def test_6_without_a_victim_the_witch_is_not_asked_to_save(driven: Any) -> None:
    play = driven("zh12", wolf_vote=SKIP, save=YES).until(Happening.DAWN)
    assert not play.asked(Kind.SAVE) and play.game.state.antidote and not play.happened(Happening.VICTIM)


def test_7_the_guard_may_not_repeat_and_is_never_told_of_nobody(driven: Any) -> None:
    play = driven("zh12", wolf_vote=SKIP, guard=lambda ask: 1 if 1 in ask.options else SKIP)
    play.until(lambda game: game.state.day == 4)
    asks = play.asked(Kind.GUARD)[:3]
    assert [1 in ask.options for ask in asks] == [True, False, True]  # a night off frees everybody
    assert [e.target for e in play.happened(Happening.GUARDED)[:3]] == [1, 0, 1]
    assert "None" not in "".join(wording("zh").event(e) for e in play.game.events)


def test_8_the_badge_of_a_sheriff_who_explodes_is_handed_on(driven: Any) -> None:
    wolf = driven("zh12").seat(Role.WOLF)
    play = elect(driven, wolf)
    play[Kind.EXPLODE, wolf] = lambda ask: YES if play.happened(Happening.SHERIFF) else "no"
    play[Kind.BADGE] = lambda ask: ask.options[0]
    play.until(lambda game: game.state.day == 2)
    (badge,) = play.happened(Happening.BADGE)
    assert (badge.seat, badge.target) == (
        wolf,
        play.game.state.sheriff,
    ) and badge.target in play.game.state.alive


def test_8_without_a_badge_nothing_is_asked(driven: Any) -> None:
    play = driven("zh12", wolf_vote=SKIP, vote=lambda ask: 1 if 1 in ask.options else SKIP)
    play.until(lambda game: game.state.day == 2)
    assert play.game.state.dead == {1: "exile"} and not play.asked(Kind.BADGE)


@pytest.mark.parametrize("name", ["mini7", "classic9", "zh12"])
def test_9_a_game_is_a_function_of_its_seeds(name: str) -> None:
    def once() -> list[Any]:
        game = Game(name, 3, "chance")
        play_local(game, {s: local_player("random", game, s, 5) for s in game.state.roles})
        return game.events

    state = random.getstate()
    assert once() == once() and random.getstate() == state
    imported = {
        alias.name
        for file in (ROOT / "engine").glob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert imported == {"random"}  # and no clock


def test_10_a_game_that_runs_out_of_days_has_an_outcome(driven: Any) -> None:
    play = driven("zh12", wolf_vote=SKIP).until(limit=100_000)
    outcome = play.game.outcome
    assert outcome is not None and (outcome.winner, outcome.reason, outcome.days) == (None, "max-days", 30)
    assert wording("zh").event(play.game.events[-1]) and Rewards(draw=-3.0).outcome("wolves", outcome) == -3.0


def test_11_night_shots_are_announced(driven: Any) -> None:
    play = driven("zh12")
    hunter = play.seat(Role.HUNTER)
    play.script |= {Kind.WOLF_VOTE: hunter, Kind.SHOOT: lambda ask: ask.options[0]}
    (shot,) = play.until(Happening.SHOT).happened(Happening.SHOT)
    assert shot.audience is None and shot.seat == hunter
    assert wording("zh").event(shot) == f"{hunter}号开枪带走了{shot.target}号。"


def test_12_the_prompt_says_what_the_engine_does() -> None:
    words = wording("zh")
    for name in ("mini7", "classic9", "zh12"):
        rules = preset(name)
        text = words.system(rules)
        powers = {"guard": "守卫", "wolves": "狼人", "witch": "女巫", "seer": "预言家"}
        assert "夜晚行动顺序：" + "、".join(powers[p] for p in rules.night) in text
        assert ("警长" in text.split("常用语")[0]) is rules.sheriff
        assert ("自爆" in text.split("常用语")[0]) is rules.explosion
        assert ("遗言" in text) is rules.last_words
        assert ("屠边" in text) is (rules.victory == "side")
        assert ("可以救自己" in text) is rules.witch_saves_herself


def test_13_and_15_explosion_asks_are_tagged_and_rows_of_a_game_weigh_as_one(driven: Any) -> None:
    from agentlightning.credit.rows import set_weights
    from agentlightning.recipes import GRPO
    from agentlightning.types import Row, Segment

    recipe = GRPO(group_size=8, credit="per_call", group_by=["group", "side"], loss_aggregation="rollout")
    rows = [
        _row(Row, Segment, f"{game}-{i}", game) for game, n in (("short", 2), ("long", 40)) for i in range(n)
    ]
    set_weights(rows, recipe)
    sums = {game: sum(sum(r.weights) for r in rows if r.rollout_id == game) for game in ("short", "long")}
    assert sums["short"] == pytest.approx(sums["long"]) == pytest.approx(0.5)


def _row(row: Any, segment: Any, name: str, rollout: str) -> Any:
    return row(
        row_id=name, rollout_id=rollout, policy="policy", token_ids=[1, 2], mask=[0, 1],
        advantages=[0.0, 1.0], logprobs=[0.0, -1.0], weights=[0.0, 0.0], versions=[-1, 0],
        segments=[segment(call_id=name, start=1, end=2, advantage=1.0)],
    )  # fmt: skip


def test_14_penalties_are_not_blown_up_when_all_games_end_alike() -> None:
    """With the recipe of the free-speech profile, which does not scale by the deviation, a penalty of 5 stays
    5.
    """
    import yaml

    recipe = yaml.safe_load((ROOT / "gpu.yaml").read_text("utf-8"))["training"]["recipe"]
    assert recipe["scale"] == "none"


def test_15_an_invalid_decision_ends_in_a_legal_default_that_is_counted(driven: Any) -> None:
    chance = random.Random(0)
    for name in ("mini7", "classic9", "zh12"):
        play = driven(name, **{k.value: lambda ask: legal_default(ask, chance) for k in Kind})
        assert play.until(limit=100_000).game.outcome is not None
    account = Account([Decision(3, "wolf", "wolves", "vote", ("a", "b", "c"), False)])
    assert (account.defaults, account.invalid_calls) == (1, 3)


def test_16_no_url_and_no_secret_in_the_agent() -> None:
    for file in ROOT.rglob("*.py"):
        text = file.read_text("utf-8")
        assert "http://" not in text and "https://" not in text and "os.environ" not in text, file


def test_the_engine_asks_everything_through_its_flow() -> None:
    """No model, network or clock: the engine imports nothing but itself and the standard library."""
    for file in (ROOT / "engine").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom):
                top = (node.module or "").split(".")
                assert top[0] in {"__future__", "collections", "dataclasses", "enum", "typing"} or top[
                    :2
                ] == [
                    "werewolf",
                    "engine",
                ]
    assert inspect.isclass(State) and Say().text == ""
