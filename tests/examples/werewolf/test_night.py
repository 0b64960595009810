"""The rules of the night."""

from __future__ import annotations

from typing import Any

import pytest

from werewolf.engine import Happening, IllegalAnswer, Kind, Role, Say, Side
from werewolf.engine.asks import NO, SKIP, YES


def test_the_powers_act_in_the_presets_order(driven: Any) -> None:
    game = driven("zh12").until(Happening.DAWN).game
    kinds = [ask.kind for ask, _ in game.answers if ask.phase == "night"]
    order = list(dict.fromkeys(kinds))
    assert order == [Kind.GUARD, Kind.WOLF_TALK, Kind.WOLF_VOTE, Kind.POISON, Kind.CHECK]


def test_the_guard_may_guard_itself_or_nobody(driven: Any) -> None:
    ask = driven("zh12").until(Kind.GUARD).game.asks[0]
    assert ask.seat in ask.options and SKIP in ask.options


def test_a_guarded_victim_survives(driven: Any) -> None:
    play = driven("zh12")
    target = play.seat(Role.VILLAGER)
    play[Kind.GUARD] = play[Kind.WOLF_VOTE] = None
    play.script |= {Kind.GUARD: target, Kind.WOLF_VOTE: target}
    assert target in play.until(Happening.DAWN).game.state.alive


def test_guarded_and_healed_dies(driven: Any) -> None:
    play = driven("zh12", save=YES)
    target = play.seat(Role.VILLAGER)
    play.script |= {Kind.GUARD: target, Kind.WOLF_VOTE: target}
    play.until(Happening.DAWN)
    assert play.game.state.dead == {target: "clash"}


def test_poison_ignores_the_guard(driven: Any) -> None:
    play = driven("zh12")
    target = play.seat(Role.VILLAGER)
    play.script |= {Kind.GUARD: target, Kind.POISON: target}
    assert play.until(Happening.DAWN).game.state.dead == {target: "poison"}


def test_antidote_and_poison_never_in_one_night(driven: Any) -> None:
    play = driven("zh12", save=YES)
    play[Kind.WOLF_VOTE] = play.seat(Role.VILLAGER)
    play.until(Happening.DAWN)
    assert play.asked(Kind.SAVE) and not play.asked(Kind.POISON)


def test_without_the_antidote_she_does_not_learn_the_victim(driven: Any) -> None:
    play = driven("zh12", save=YES)
    play[Kind.WOLF_VOTE] = lambda ask: next(
        o for o in ask.options if o in play.game.state.seats(Role.VILLAGER)
    )
    play.until(lambda game: game.state.day == 2 and game.asks[0].kind is Kind.POISON)
    assert [event.day for event in play.happened(Happening.VICTIM)] == [1]


def test_the_witch_hit_herself_learns_it_and_may_only_poison(driven: Any) -> None:
    play = driven("zh12")
    witch = play.seat(Role.WITCH)
    play[Kind.WOLF_VOTE] = witch
    play.until(Happening.DAWN)
    (told,) = play.happened(Happening.VICTIM)
    assert told.target == witch and told.audience == {witch}
    assert not play.asked(Kind.SAVE) and play.asked(Kind.POISON)


def test_in_mini7_the_witch_may_save_herself(driven: Any) -> None:
    play = driven("mini7", save=YES)
    play[Kind.WOLF_VOTE] = play.seat(Role.WITCH)
    assert play.until(Happening.DAWN).game.state.dead == {}


def test_each_potion_is_for_one_use(driven: Any) -> None:
    play = driven("zh12", save=YES)
    play[Kind.WOLF_VOTE] = lambda ask: next(
        o for o in ask.options if o in play.game.state.seats(Role.VILLAGER)
    )
    play[Kind.POISON] = lambda ask: next(o for o in ask.options if o in play.game.state.wolves)
    play.until()
    assert len(play.asked(Kind.SAVE)) == 1 and len([e for e in play.happened(Happening.WITCH)]) == 2


@pytest.mark.parametrize(("role", "side"), [(Role.WOLF_KING, Side.WOLVES), (Role.GUARD, Side.TOWN)])
def test_the_seer_sees_sides_and_the_king_is_a_wolf(driven: Any, role: Role, side: Side) -> None:
    play = driven("zh12")
    play[Kind.CHECK] = play.seat(role)
    (checked,) = play.until(Happening.CHECKED).happened(Happening.CHECKED)
    assert checked.data["side"] == side.value and checked.audience == {play.seat(Role.SEER)}
    (asked,) = play.asked(Kind.CHECK)
    assert play.seat(Role.SEER) not in asked.options


def test_wolves_talk_until_the_last_speaker_of_a_pass_agrees(driven: Any) -> None:
    last = driven("zh12").game.state.wolves[-1]
    play = driven("zh12", wolf_talk=lambda ask: Say("杀", agree=ask.seat == last and len(talks()) > 4))

    def talks() -> list[Any]:
        return play.asked(Kind.WOLF_TALK)

    play.until(Kind.WOLF_VOTE)
    assert len(talks()) == 8  # agreement of all but the last speaker of the first pass does not count


def test_wolves_talk_three_passes_at_most(driven: Any) -> None:
    play = driven("zh12").until(Kind.WOLF_VOTE)
    assert len(play.asked(Kind.WOLF_TALK)) == 12


def test_the_most_wolf_votes_decide(driven: Any) -> None:
    play = driven("zh12")
    a, b = play.seat(Role.VILLAGER), play.seat(Role.VILLAGER, 1)
    wolves = play.game.state.wolves
    play.script |= {
        (Kind.WOLF_VOTE, w): (a if i < 2 else b if i == 2 else SKIP) for i, w in enumerate(wolves)
    }
    assert play.until(Happening.DAWN).game.state.dead == {a: "knife"}


def test_a_tie_of_wolf_votes_is_decided_by_lot(driven: Any) -> None:
    died = set()
    for chance in range(12):
        play = driven("zh12", chance=chance)
        a, b = play.seat(Role.VILLAGER), play.seat(Role.VILLAGER, 1)
        for i, wolf in enumerate(play.game.state.wolves):
            play[Kind.WOLF_VOTE, wolf] = a if i % 2 else b
        died |= set(play.until(Happening.DAWN).game.state.dead)
    assert died == {a, b}


def test_nobody_is_killed_only_if_all_wolves_vote_so(driven: Any) -> None:
    play = driven("zh12", wolf_vote=SKIP).until(Happening.DAWN)
    assert play.game.state.dead == {}


def test_wolves_may_kill_one_of_themselves_in_zh12_only(driven: Any) -> None:
    for preset, may in (("zh12", True), ("classic9", False), ("mini7", False)):
        play = driven(preset).until(Kind.WOLF_VOTE)
        wolves = set(play.game.state.wolves)
        assert bool(wolves & set(play.game.asks[0].options)) is may


def test_hidden_wolf_votes_are_shown_when_all_have_voted(driven: Any) -> None:
    play = driven("zh12").until(Kind.WOLF_VOTE)
    assert len(play.game.asks) == 4  # asked at once
    wolves = play.game.state.wolves
    play.step()
    assert {e.audience for e in play.happened(Happening.WOLF_PROPOSAL)} == {frozenset(wolves)}


def test_in_mini7_wolves_propose_in_turn_and_differing_ones_are_decided_by_lot(driven: Any) -> None:
    victims = set()
    for chance in range(12):
        play = driven("mini7", chance=chance)
        first, second = play.game.state.wolves
        a, b = play.seat(Role.VILLAGER), play.seat(Role.VILLAGER, 1)
        play.script |= {(Kind.WOLF_VOTE, first): a, (Kind.WOLF_VOTE, second): b}
        play.until(Kind.CHECK)
        assert play.asked(Kind.WOLF_VOTE)[1].notes["proposed"] == (a,)
        victims |= {e.target for e in play.happened(Happening.WOLF_RESULT)}
    assert victims == {a, b}


def test_a_gun_holder_learns_privately_whether_it_was_poisoned(driven: Any) -> None:
    for cause in ("knife", "poison"):
        play = driven("zh12")
        hunter = play.seat(Role.HUNTER)
        play[Kind.WOLF_VOTE if cause == "knife" else Kind.POISON] = hunter
        (gun,) = play.until(Happening.DAWN).happened(Happening.GUN)
        assert gun.audience == {hunter} and gun.data["may_shoot"] is (cause == "knife")


def test_private_events_reach_their_seats_only(driven: Any) -> None:
    play = driven("zh12", save=NO).until(Happening.DAWN)
    game = play.game
    for event in game.events:
        for seat in game.state.roles:
            assert (event in game.seen_by(seat)) is (event.audience is None or seat in event.audience)
    villager = play.seat(Role.VILLAGER)
    assert {e.what for e in game.seen_by(villager)} == {
        Happening.DEAL, Happening.NIGHT, Happening.ELECTION, Happening.CANDIDATES, Happening.NO_SHERIFF,
        Happening.DAWN, Happening.ORDER,
    }  # fmt: skip


def test_an_illegal_answer_is_refused_and_changes_nothing(driven: Any) -> None:
    game = driven("zh12").until(Kind.GUARD).game
    before = (list(game.events), game.asks)
    for answer in (99, "never", True, Say("hello")):
        with pytest.raises(IllegalAnswer, match="legal are"):
            game.answer([answer])
    with pytest.raises(ValueError, match="1 asks are open, 0"):
        game.answer([])
    assert (list(game.events), game.asks) == before
