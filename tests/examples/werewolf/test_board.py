"""The small policy's words."""

from __future__ import annotations

from typing import Any

import pytest

from werewolf.board import WORDS, NoBoard, answers, board, check_preset
from werewolf.engine import Game, preset
from werewolf.players.knowledge import Knowledge
from werewolf.players.local import local_player
from werewolf.table import Hub


def boards(deal: int) -> list[tuple[str, list[str]]]:
    """All boards of a game of random players, with the answers each allows."""
    game = Game("mini7", deal)
    players: dict[int, Any] = {s: local_player("random", game, s, deal) for s in game.state.roles}
    knows: dict[int, Any] = {s: Knowledge(s, 7) for s in game.state.roles}
    hubs, out = [Hub(game, players), Hub(game, knows)], []
    while game.asks:
        for hub in hubs:
            hub.tell()
        out += [(board(knows[ask.seat], ask), list(answers(ask))) for ask in game.asks]
        game.answer([players[ask.seat].choose(ask) for ask in game.asks])
    return out


def test_every_word_is_one_token_and_boards_are_short() -> None:
    pytest.importorskip("torch")
    from werewolf.tokenizer import build_tokenizer

    tokenizer = build_tokenizer()
    assert all(len(tokenizer.encode(word)) == 1 for word in WORDS)
    assert len(set(WORDS)) == len(WORDS)
    lengths = []
    for deal in range(20):
        for text, options in boards(deal):
            ids = tokenizer.encode(text)
            assert tokenizer.decode(ids) == text and len(set(options)) == len(options)
            assert all(1 <= len(tokenizer.encode(option)) <= 2 for option in options)
            lengths.append(len(ids))
    assert sum(lengths) / len(lengths) < 50


def test_a_board_holds_only_what_its_seat_knows() -> None:
    text = [text for deal in range(20) for text, _ in boards(deal) if "村民" in text]
    assert text and not any("队友" in one or "被袭" in one or "提议" in one for one in text)


def test_the_board_has_words_for_mini7_only() -> None:
    with pytest.raises(NoBoard, match="zh12"):
        check_preset(preset("zh12"))


def test_the_shipped_policy_is_the_one_that_is_made() -> None:
    pytest.importorskip("torch")
    from agl_local.policy.folder import load_policy, state
    from werewolf.start_policy import POLICY, start_policy

    shipped, made = load_policy(POLICY), start_policy(1)
    assert shipped.tokenizer.encode("第1天投谁身份3号狼人") == made.tokenizer.encode("第1天投谁身份3号狼人")
    ours, theirs = state(shipped.model), state(made.model)
    assert ours.keys() == theirs.keys() and all(bool((ours[k] == theirs[k]).all()) for k in ours)
