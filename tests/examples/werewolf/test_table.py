"""Seats, rewards, tournaments, replays, tasks and configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import werewolf
from werewolf.engine import Game, Outcome, Role, Side
from werewolf.players.asking import Account, Decision
from werewolf.players.local import UnknownPlayer, local_player
from werewolf.replay import html, local_game, show, story
from werewolf.rewards import Rewards
from werewolf.seating import BadSeating, Table, draw, sit
from werewolf.tasks import EVALUATION, games
from werewolf.tournament import pairing, table
from werewolf.wording import wording

ROOT = Path(werewolf.__file__).parent


# ---------------------------------------------------------------------------------------------------- seats
def test_a_side_is_one_player_or_a_mixture_drawn_by_the_seed() -> None:
    game = Game("zh12", 1)
    assert set(draw({"wolves": "policy"}, game, "1").values()) == {"policy", "scripted"}
    mixed = [draw({"town": {"model": 0.5, "random": 0.5}}, game, str(seed)) for seed in range(20)]
    assert mixed[0] == draw({"town": {"model": 0.5, "random": 0.5}}, game, "0")
    town = [
        kind for kinds in mixed for seat, kind in kinds.items() if game.state.roles[seat].side is Side.TOWN
    ]
    assert 0.3 < town.count("model") / len(town) < 0.7


def test_seats_that_nobody_can_be_found_for() -> None:
    game = Game("mini7", 1)
    at = Table(game, None, {}, None, Account(), wording("zh"), "1")
    for kind, why in (
        ("robot", "is no player"),
        ("llm:judge", "no such endpoint"),
        ("policy", "no model endpoint"),
    ):
        with pytest.raises(BadSeating, match=why):
            sit({1: kind}, at)
    with pytest.raises(BadSeating, match="must be positive"):
        draw({"town": {"random": -1.0}}, game, "1")
    with pytest.raises(UnknownPlayer, match="choose one of random"):
        local_player("clever", game, 1, 1)


# -------------------------------------------------------------------------------------------------- rewards
def test_every_call_is_rewarded_by_its_side_and_validity() -> None:
    rewards = Rewards(
        wolves_win=15, wolves_lose=-10, town_win=10, town_lose=-10, invalid=-5, add_invalid=True
    )
    account = Account(
        [
            Decision(1, "wolf", "wolves", "vote", ("a", "b"), True),
            Decision(2, "seer", "town", "vote", ("c",), True),
            Decision(3, "wolf_king", "wolves", "shoot", ("d",), False),
        ]
    )
    roles = {1: Role.WOLF, 2: Role.SEER, 3: Role.WOLF_KING}
    won = dict(rewards.of_calls(account, Outcome(Side.WOLVES, "victory", 3), roles))
    assert won == {"a": 10, "b": 15, "c": -10, "d": 10}
    nobody = Rewards(draw=2.0, invalid=2.0).of_calls(account, Outcome(None, "max-days", 30), roles)
    assert dict(nobody) == dict.fromkeys("abcd", 2.0)


def test_early_decisions_are_discounted_and_strikes_at_the_own_side_cost() -> None:
    roles = {1: Role.WOLF, 2: Role.SEER, 3: Role.WOLF_KING}
    account = Account(
        [
            Decision(1, "wolf", "wolves", "vote", ("a",), True, 2),
            Decision(2, "seer", "town", "check", ("b",), True, 1),
            Decision(1, "wolf", "wolves", "vote", ("c",), True, 3),
            Decision(1, "wolf", "wolves", "speech", ("d",), True),
        ]
    )
    won = Outcome(Side.WOLVES, "victory", 2)
    early = dict(Rewards(discount=0.5).of_calls(account, won, roles))
    assert early == {"a": 0.25, "b": 0.0, "c": 0.5, "d": 1.0}
    assert dict(Rewards(aim=0.2).of_calls(account, won, roles)) == {"a": 1.2, "b": 0.0, "c": 0.8, "d": 1.0}


def test_unknown_rewards_are_an_error() -> None:
    with pytest.raises(ValueError, match="rewards: unknown wolf_win; known are add_invalid, aim"):
        Rewards.read({"wolf_win": 1})


# ----------------------------------------------------------------------------------------------- tournaments
def test_a_tournament_is_seeded_and_has_intervals() -> None:
    score, again = pairing("mini7", "scripted", "scripted", 40), pairing("mini7", "scripted", "scripted", 40)
    assert score == again and score.games == 40
    low, high = score.ci(Side.WOLVES)
    assert low < score.rate(Side.WOLVES) < high and score.rate(Side.WOLVES) + score.rate(Side.TOWN) == 1.0
    assert set(score.roles()) == {"wolf", "villager", "seer", "witch"}


def test_there_is_something_to_learn_for_wolves() -> None:
    cells = table("mini7", ["random", "scripted"], 200)
    assert cells["random"]["scripted"].rate(Side.WOLVES) < 0.55
    assert cells["scripted"]["scripted"].rate(Side.WOLVES) > 0.8


def test_oracle_town_never_loses_in_mini7() -> None:
    assert pairing("mini7", "scripted", "oracle", 60).rate(Side.TOWN) == 1.0


# -------------------------------------------------------------------------------------------------- replays
def test_a_page_needs_nothing_else_and_marks_private_lines() -> None:
    game = local_game("zh12", 3, "scripted", "scripted", "zh")
    page = html(game)
    assert "http" not in page and "src=" not in page and page.count('class="line private"') > 10
    assert page.count("<table>") == sum(1 for e in game["events"] if e["data"].get("sums"))


def test_what_players_say_is_escaped() -> None:
    game = local_game("mini7", 3, "scripted", "scripted", "en")
    said = next(e for e in game["events"] if e["what"] == "said")
    said["data"]["text"] = "<script>alert(1)</script>[bold]"
    assert "<script>" not in html(game)


def test_the_terminal_view_shows_every_line(capsys: Any) -> None:
    from rich.console import Console

    game = local_game("mini7", 3, "scripted", "random", "en")
    game["decisions"] = [{"seat": 2, "kind": "vote", "calls": 2, "valid": False, "reward": 1.0}]
    show(game, Console(width=200))
    shown = capsys.readouterr().out
    for part in story(game)["parts"]:
        assert all(line["text"] in shown for line in part["lines"])
    assert "invalid 1" in shown


# ----------------------------------------------------------------------------------- tasks and configurations
def test_evaluated_deals_are_not_trained_on() -> None:
    assert not {t["id"] for t in games(4000)} & {t["id"] for t in games(1000, EVALUATION)}
    with pytest.raises(ValueError, match="at least one game"):
        games(0)


@pytest.mark.parametrize("name", ["cpu.yaml", "gpu.yaml"])
def test_the_configurations_are_sound(name: str) -> None:
    from agentlightning.recipes import get
    from agentlightning.train.configured import load_data
    from agentlightning.train.run_file import load_config

    config = load_config(ROOT / name)
    for section in (config.environment.train, config.environment.val):
        for task in load_data(section, config, "environment")[:3]:
            draw(task["sides"], Game(task.get("preset", "mini7"), task["deal"]), "1")
            Rewards.read(task.get("rewards"))
    recipe = get(config.training.algorithm, **config.training.recipe)
    assert (
        recipe.group_by == ["group", "side"]
        and recipe.loss_aggregation == "rollout"
        and recipe.credit == "per_call"
    )


@pytest.mark.plugins
def test_the_free_speech_profile_is_one_that_verl_carries_out(tmp_path: Path) -> None:
    """Without AgentScope: everything between the file and the lines that verl gets."""
    supported = pytest.importorskip("agl_verl.supported_fields")
    options = pytest.importorskip("agl_verl.config.options")
    from agentlightning.cli.options import read
    from agentlightning.credit.checks import check_credit_fields, check_supported_fields
    from agentlightning.plugins.manager import load
    from agentlightning.train.configured import configure
    from werewolf.agent import play_game

    trainer, agent, train, val = configure(read(ROOT / "gpu.yaml", [f"backend.policy={tmp_path}"]))
    assert agent.function is play_game and len(train) == 2_000 and len(val) == 100
    recipe = trainer.recipe
    supported.refuse(recipe)
    check_supported_fields(recipe, "verl", supported.SUPPORTED_FIELDS)
    check_credit_fields(recipe, **load().credit_functions)
    found = options.read_options(trainer.config.backend.options)
    assert (found.ranks, found.device, found.max_len) == (8, "cuda", 16_384)
    assert trainer.config.gateway.reserve < found.max_len <= found.micro_batch_tokens
    lines = options.overrides("model", recipe, 1, found, "scratch")
    assert "actor_rollout_ref.actor.optim.lr=1e-06" in lines
    assert "actor_rollout_ref.actor.clip_ratio_high=0.3" in lines
    assert "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=32768" in lines


def test_roles_know_their_side() -> None:
    assert Role.WOLF_KING.side is Side.WOLVES and Role.WOLF_KING.gun and not Role.WOLF_KING.god
