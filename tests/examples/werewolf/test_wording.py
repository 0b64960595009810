"""What players read."""

from __future__ import annotations

from typing import Any

import pytest

from werewolf.engine import PRESETS, Kind, Say, Statement, preset
from werewolf.players.local import local_player
from werewolf.table import play_local
from werewolf.wording import PROMPTS, wording

LANGUAGES = ("zh", "en")


def shape(value: Any) -> Any:
    return {key: shape(inner) for key, inner in value.items()} if isinstance(value, dict) else ""


def test_both_languages_have_texts_for_the_same_things() -> None:
    zh, en = (shape(wording(language).data) for language in LANGUAGES)
    zh.pop("kind_words"), en.pop("kind_words")
    assert zh == en and {p.stem for p in PROMPTS.glob("*.yaml")} == set(LANGUAGES)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_event_and_ask_of_a_game_has_words(driven: Any, language: str, name: str) -> None:
    words = wording(language)
    for deal in range(5):
        game = driven(name, deal).game
        play_local(game, {s: local_player("random", game, s, deal, words) for s in game.state.roles})
        for event in game.events:
            assert words.event(event) or event.what in ("deal", "team")
        for ask, _ in game.answers:
            labels = words.labels(ask)
            assert (words.question(ask) and ask.spoken) or len(labels) == len(ask.options)
            assert all("{" not in label for label in labels)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", sorted(PRESETS))
def test_the_system_prompt_is_whole(language: str, name: str) -> None:
    text = wording(language).system(preset(name))
    assert "{" not in text and str(preset(name).seats) in text


def test_labels_read_back_to_their_choices(driven: Any) -> None:
    ask = driven("zh12").until(Kind.VOTE).game.asks[0]
    labels = wording("zh").labels(ask)
    assert labels["弃票"] == "skip" and labels["11号"] == 11


def test_a_language_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="no prompts in 'fr'; choose one of en, zh"):
        wording("fr")


def test_a_card_names_team_mates_and_king(driven: Any) -> None:
    play = driven("zh12")
    state = play.game.state
    wolf = play.seat("wolf")
    mates = [s for s in state.wolves if s != wolf]
    king = play.seat("wolf_king")
    text = wording("zh").card(wolf, state.roles[wolf], mates, king)
    assert (
        text.startswith(f"[仅{wolf}号可见]")
        and all(f"{s}号" in text for s in mates)
        and f"狼王是{king}号" in text
    )


def test_statements_become_sentences() -> None:
    assert wording("zh").statement(Statement("wolf", 3)) == "我是预言家，查验3号是狼人。"
    assert Say().statement == Statement("pass")
