"""Whatever is answered: no illegal state, an outcome, and private things stay private."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from marks import examples, sampled

from werewolf.engine import PRESETS, Game, Say, Side
from werewolf.engine.victory import winner
from werewolf.players.local import NAMES, local_player
from werewolf.table import play_local


def random_game(name: str, deal: int, chance: int) -> Game:
    """A game of random legal answers, its state checked after each."""
    game, lots = Game(name, deal, chance), random.Random(f"{deal}:{chance}")
    while game.asks:
        game.state.check()
        for ask in game.asks:
            assert ask.options and len(set(ask.options)) == len(ask.options)
            assert ask.seat in game.state.roles
        answers = [lots.choice(ask.options) for ask in game.asks]
        game.answer(
            [
                Say("", answer, lots.random() < 0.5) if ask.spoken else answer  # type: ignore[arg-type]
                for ask, answer in zip(game.asks, answers, strict=True)
            ]
        )
    game.state.check()
    return game


@pytest.mark.parametrize(
    ("name", "games"),
    sampled([(name, games) for games in (100, 1000) for name in sorted(PRESETS)], *range(len(PRESETS))),
)
def test_many_games_without_an_illegal_state(name: str, games: int) -> None:
    won = {side: 0 for side in (*Side, None)}
    for deal in range(games):
        game = random_game(name, deal, deal)
        assert game.outcome is not None and game.outcome.winner == winner(game.state)
        won[game.outcome.winner] += 1
    assert won[Side.WOLVES] and won[Side.TOWN]


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=st.sampled_from(sorted(PRESETS)), deal=st.integers(0, 2**40), chance=st.integers(0, 2**40))
def test_any_seeds(name: str, deal: int, chance: int) -> None:
    game = random_game(name, deal, chance)
    outcome = game.outcome
    assert outcome is not None and 1 <= outcome.days <= game.rules.max_days
    dead = list(game.state.dead)
    for ask, _ in game.answers:
        posthumous = ask.kind in ("last_words", "shoot", "badge") or ask.phase == "election"
        assert posthumous or ask.seat in game.state.alive or ask.seat in dead
    # nobody learns another's role before the end
    for event in game.events[:-1]:
        assert event.audience is not None or "role" not in event.data


@pytest.mark.parametrize("name", sorted(PRESETS))
@pytest.mark.parametrize("player", NAMES)
def test_every_kind_of_player_plays_legally(name: str, player: str) -> None:
    for deal in range(30):
        game = Game(name, deal)
        outcome = play_local(game, {s: local_player(player, game, s, deal) for s in game.state.roles})
        assert outcome is game.outcome
