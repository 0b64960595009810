"""The rules of the day."""

from __future__ import annotations

from typing import Any

import pytest

from werewolf.engine import Happening, Kind, Role, Say
from werewolf.engine.asks import LEFT, RIGHT, SKIP, TEAR, YES
from werewolf.engine.speech import round_from


def first_day(driven: Any, **script: Any) -> Any:
    return driven("zh12", **{"wolf_vote": SKIP, **script})


def elect(play: Any, seat: int, others: int = 0) -> Any:
    """Seat runs (with ``others`` more), and everybody votes for it."""
    rivals = [s for s in play.game.state.roles if s != seat][:others]
    play[Kind.RUN] = lambda ask: YES if ask.seat in (seat, *rivals) else "no"
    play[Kind.SHERIFF_VOTE] = lambda ask: seat if seat in ask.options else SKIP
    return play


def test_the_election_comes_before_the_deaths_are_announced(driven: Any) -> None:
    play = driven("zh12")
    dead = play.seat(Role.VILLAGER)
    play[Kind.WOLF_VOTE] = dead
    play.until(Kind.RUN)
    assert not play.happened(Happening.DAWN) and dead not in play.game.state.alive
    assert dead in [ask.seat for ask in play.game.asks]  # the dead of the night take part, still a secret


@pytest.mark.parametrize("who", ["nobody", "all"])
def test_nobody_or_all_standing_elects_nobody(driven: Any, who: str) -> None:
    play = first_day(driven, run=YES if who == "all" else "no").until(Happening.DAWN)
    assert play.game.state.sheriff == 0 and play.happened(Happening.NO_SHERIFF)
    assert not play.asked(Kind.SHERIFF_VOTE)


def test_all_abstaining_elects_nobody(driven: Any) -> None:
    play = elect(first_day(driven), 3, others=1)
    play[Kind.SHERIFF_VOTE] = SKIP
    assert play.until(Happening.DAWN).game.state.sheriff == 0


def test_candidates_do_not_vote(driven: Any) -> None:
    play = elect(first_day(driven), 3, others=2).until(Kind.SHERIFF_VOTE)
    assert {ask.seat for ask in play.game.asks} == set(range(1, 13)) - {1, 2, 3}
    assert all(SKIP in ask.options for ask in play.game.asks)


def test_who_withdraws_neither_stands_nor_votes(driven: Any) -> None:
    play = elect(first_day(driven), 3, others=2)
    play[Kind.WITHDRAW, 1] = YES
    play.until(Kind.SHERIFF_VOTE)
    assert all(set(ask.options) == {2, 3, SKIP} and ask.seat != 1 for ask in play.game.asks)


def test_a_tie_of_the_election_leads_to_pk_speeches_and_a_vote_of_all_others(driven: Any) -> None:
    play = elect(first_day(driven), 1, others=2)
    first, second = {4: 1, 5: 2}, {3: 2, 4: 2, 5: 1}
    play[Kind.SHERIFF_VOTE] = lambda ask: (second if play.happened(Happening.PK) else first).get(
        ask.seat, SKIP
    )
    play.until(Happening.SHERIFF)
    assert [ask.seat for ask in play.asked(Kind.PK_SPEECH)] == [1, 2]
    assert play.game.state.sheriff == 2 and 3 in [a.seat for a in play.asked(Kind.SHERIFF_VOTE)]


def test_a_second_tie_elects_nobody(driven: Any) -> None:
    play = elect(first_day(driven), 1, others=1)
    play[Kind.SHERIFF_VOTE] = lambda ask: {4: 1, 5: 2}.get(ask.seat, SKIP)
    assert play.until(Happening.DAWN).game.state.sheriff == 0


@pytest.mark.parametrize("side", [LEFT, RIGHT])
def test_the_sheriff_picks_the_side_and_speaks_last(driven: Any, side: str) -> None:
    play = elect(first_day(driven, direction=side), 5).until(Kind.VOTE)
    (order,) = play.happened(Happening.ORDER)
    assert order.data["seats"][-1] == 5 and order.data["seats"][0] == (6 if side == RIGHT else 4)
    assert [ask.seat for ask in play.asked(Kind.SUMMARY)] == [5]
    assert len(play.asked(Kind.SPEECH)) == 11  # one speech of each living seat


def test_without_a_sheriff_the_speeches_begin_beside_the_dead(driven: Any) -> None:
    for chance in range(6):
        play = driven("zh12", chance=chance)
        dead = play.seat(Role.VILLAGER)
        play[Kind.WOLF_VOTE] = dead
        (order,) = play.until(Happening.ORDER).happened(Happening.ORDER)
        assert order.data["seats"][0] in (dead % 12 + 1, (dead - 2) % 12 + 1)


def test_round_from_goes_around_the_table() -> None:
    assert round_from((1, 3, 4, 6), 3, 1) == (3, 4, 6, 1)
    assert round_from((1, 3, 4, 6), 5, 1) == (6, 1, 3, 4)
    assert round_from((1, 3, 4, 6), 5, -1) == (4, 3, 1, 6)


def test_the_exile_vote_is_hidden_and_only_the_tally_is_told(driven: Any) -> None:
    play = first_day(driven).until(Kind.VOTE)
    assert len(play.game.asks) == 12  # all at once: nobody sees another's vote
    play.step()
    (tally,) = play.happened(Happening.TALLY)
    assert tally.audience is None and set(tally.data) == {"ballots", "sums"}


def test_all_abstaining_exiles_nobody(driven: Any) -> None:
    play = first_day(driven).until(Happening.NO_EXILE)
    assert len(play.game.state.alive) == 12


def test_a_tied_exile_leads_to_pk_and_the_others_vote_at_weight_one(driven: Any) -> None:
    play = elect(first_day(driven), 5)
    second = {5: 2, 3: 1, 4: 1}
    play[Kind.VOTE] = lambda ask: (
        second.get(ask.seat, SKIP) if play.happened(Happening.PK) else {3: 1, 4: 2}.get(ask.seat, SKIP)
    )
    play.until(Happening.EXILED)
    assert play.happened(Happening.TALLY)[1].data["sums"] == {1: 2.0, 2: 1.0}  # the sheriff's counts as one
    assert play.happened(Happening.EXILED)[0].seat == 1
    assert not {1, 2} & {a.seat for a in play.asked(Kind.VOTE)[12:]}


def test_a_second_tie_of_the_day_exiles_nobody(driven: Any) -> None:
    play = first_day(driven, vote=lambda ask: {3: 1, 4: 2}.get(ask.seat, SKIP)).until(Happening.NO_EXILE)
    assert len(play.asked(Kind.PK_SPEECH)) == 2 and len(play.game.state.alive) == 12


def test_in_mini7_a_tie_exiles_nobody_at_once(driven: Any) -> None:
    play = driven(
        "mini7",
        save=YES,
        vote=lambda ask: 1 if ask.seat != 1 and ask.seat <= 4 else 2 if ask.seat != 2 else 1,
    )
    play.until(lambda game: any(e.what in (Happening.NO_EXILE, Happening.EXILED) for e in game.events))
    assert not play.asked(Kind.PK_SPEECH)


def test_last_words_of_the_first_night_only(driven: Any) -> None:
    play = driven("zh12", wolf_vote=lambda ask: next(o for o in ask.options if o in villagers()))

    def villagers() -> list[int]:
        return [s for s in play.game.state.seats(Role.VILLAGER) if s in play.game.state.alive]

    play.until(lambda game: game.state.day == 3)
    assert [ask.day for ask in play.asked(Kind.LAST_WORDS)] == [1]
    assert len(play.happened(Happening.DAWN)) == 2


def test_last_words_of_the_exiled_and_the_shot_every_day(driven: Any) -> None:
    play = first_day(driven)
    hunter, other = play.seat(Role.HUNTER), play.seat(Role.VILLAGER)
    play.script |= {Kind.VOTE: lambda ask: hunter if hunter in ask.options else SKIP, Kind.SHOOT: other}
    play.until(lambda game: game.state.day == 2)
    assert [ask.seat for ask in play.asked(Kind.LAST_WORDS)] == [hunter, other]


def test_an_exiled_wolf_king_may_shoot(driven: Any) -> None:
    play = first_day(driven)
    king = play.seat(Role.WOLF_KING)
    play[Kind.VOTE] = lambda ask: king if king in ask.options else SKIP
    assert play.until(Kind.SHOOT).game.asks[0].seat == king


def test_a_shot_gun_holder_shoots_in_turn_and_the_chain_ends_at_two(driven: Any) -> None:
    play = first_day(driven)
    hunter, king, villager = play.seat(Role.HUNTER), play.seat(Role.WOLF_KING), play.seat(Role.VILLAGER)
    play.script |= {
        Kind.VOTE: lambda ask: hunter if hunter in ask.options else SKIP,
        (Kind.SHOOT, hunter): king,
        (Kind.SHOOT, king): villager,
    }
    play.until(lambda game: game.state.day == 2)
    assert [(e.seat, e.target) for e in play.happened(Happening.SHOT)] == [(hunter, king), (king, villager)]


def test_a_poisoned_hunter_does_not_shoot(driven: Any) -> None:
    play = first_day(driven)
    play[Kind.POISON] = play.seat(Role.HUNTER)
    play.until(Kind.VOTE)
    assert not play.asked(Kind.SHOOT)


def test_a_dead_sheriff_hands_the_badge_on_or_tears_it(driven: Any) -> None:
    for heir in (7, TEAR):
        play = elect(first_day(driven, badge=heir), 5)
        play[Kind.VOTE] = lambda ask: 5 if 5 in ask.options else SKIP
        play.until(lambda game: game.state.day == 2)
        assert play.game.state.sheriff == (heir if heir == 7 else 0)


def test_a_sheriff_who_died_in_the_night_hands_the_badge_on_at_dawn(driven: Any) -> None:
    play = driven("zh12")
    dead = play.seat(Role.VILLAGER)
    elect(play, dead).script |= {Kind.WOLF_VOTE: dead, Kind.BADGE: lambda ask: ask.options[0]}
    play.until(Happening.BADGE)
    whats = [e.what for e in play.game.events]
    assert whats.index(Happening.SHERIFF) < whats.index(Happening.DAWN) < whats.index(Happening.BADGE)


def test_only_ordinary_living_wolves_are_offered_to_explode(driven: Any) -> None:
    play = first_day(driven).until(lambda game: game.state.day == 2)
    assert {ask.seat for ask in play.asked(Kind.EXPLODE)} == set(play.game.state.seats(Role.WOLF))


def test_an_explosion_kills_the_wolf_and_ends_the_day(driven: Any) -> None:
    play = first_day(driven)
    wolf = play.seat(Role.WOLF)
    play[Kind.EXPLODE, wolf] = YES
    play.until(lambda game: game.state.day == 2)
    assert play.game.state.dead[wolf] == "explosion" and not play.asked(Kind.VOTE)


def exploding_election(driven: Any, **script: Any) -> Any:
    play = elect(first_day(driven, **script), 5, others=1)
    wolf = next(s for s in play.game.state.seats(Role.WOLF) if s not in (1, 5))
    play[Kind.EXPLODE, wolf] = YES
    return play


def test_an_explosion_in_the_election_settles_the_nights_dead_first(driven: Any) -> None:
    play = driven("zh12")
    dead, wolf = play.seat(Role.HUNTER), play.seat(Role.WOLF)
    elect(play, next(s for s in play.game.state.seats(Role.VILLAGER)))
    play.script |= {Kind.WOLF_VOTE: dead, (Kind.EXPLODE, wolf): YES}
    play.until(lambda game: game.state.day == 2)
    whats = [e.what for e in play.game.events]
    assert whats.index(Happening.EXPLODED) < whats.index(Happening.DAWN)
    assert play.asked(Kind.SHOOT) and [a.seat for a in play.asked(Kind.LAST_WORDS)] == [dead]
    assert not play.asked(Kind.SPEECH) and not play.asked(Kind.VOTE)


def test_a_broken_off_election_votes_the_next_day_without_speeches_or_pk(driven: Any) -> None:
    play = exploding_election(driven, sheriff_vote=SKIP)
    play.until(lambda game: game.state.day == 2 and game.asks[0].kind is Kind.SHERIFF_VOTE)
    speeches = len(play.asked(Kind.CAMPAIGN))
    assert all(set(ask.options) == {1, 5, SKIP} for ask in play.game.asks)
    a, b = (ask.seat for ask in play.game.asks[:2])
    play[Kind.SHERIFF_VOTE] = lambda ask: {a: 1, b: 5}.get(ask.seat, SKIP)
    play.until(lambda game: game.asks[0].kind is Kind.SPEECH)
    assert len(play.asked(Kind.CAMPAIGN)) == speeches and not play.asked(Kind.PK_SPEECH)
    assert play.game.state.sheriff == 0


def test_a_second_explosion_destroys_the_badge(driven: Any) -> None:
    play = exploding_election(driven)
    play.until(lambda game: game.state.day == 2 and game.state.phase == "election")
    second = play.game.asks[0].seat
    assert play.game.asks[0].kind is Kind.EXPLODE
    play[Kind.EXPLODE, second] = YES
    play.until(Happening.BADGE_LOST)
    play.until(lambda game: game.state.day == 4)
    assert not play.happened(Happening.SHERIFF) and play.game.state.election == "closed"


def test_victory_by_parity(driven: Any) -> None:
    play = driven(
        "mini7",
        wolf_vote=lambda ask: ask.options[0],
        vote=lambda ask: town()[0] if ask.seat != town()[0] else town()[1],
    )

    def town() -> list[int]:
        state = play.game.state
        return [s for s in state.living() if s not in state.wolves]

    outcome = play.until().game.outcome
    assert outcome is not None and outcome.winner == "wolves" and len(play.game.state.alive) <= 2 * 2


@pytest.mark.parametrize("killed", ["gods", "villagers"])
def test_victory_by_side(driven: Any, killed: str) -> None:
    play = driven("zh12")
    roles = (Role.SEER, Role.WITCH, Role.HUNTER, Role.GUARD) if killed == "gods" else (Role.VILLAGER,)
    play[Kind.WOLF_VOTE] = lambda ask: next(o for o in ask.options if o in play.game.state.seats(*roles))
    outcome = play.until().game.outcome
    assert outcome is not None and (outcome.winner, outcome.days) == ("wolves", 4)


def test_town_wins_when_no_wolf_lives_and_wolves_first_if_both_end(driven: Any) -> None:
    from werewolf.engine.victory import winner

    state = driven("zh12").game.state
    for wolf in state.wolves:
        state.remove(wolf, "exile")
    assert winner(state) == "town"
    for villager in state.seats(Role.VILLAGER):
        state.remove(villager, "shot")
    assert winner(state) == "wolves"


def test_speech_carries_its_statement(driven: Any) -> None:
    from werewolf.engine import Statement

    play = driven("mini7", save=YES).until(Kind.SPEECH)
    seat = play.game.asks[0].seat
    other = next(s for s in play.game.state.living() if s != seat)
    play[Kind.SPEECH, seat] = Say("…", Statement("wolf", other))
    play.step()
    (said,) = play.happened(Happening.SAID)
    assert (said.seat, said.target, said.data["claim"]) == (seat, other, "wolf")
