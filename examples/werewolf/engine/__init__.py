"""The rules of werewolf (狼人杀) as a pure engine: state, legal answers, events. No model and no
clock inside.

A :class:`~werewolf.engine.game.Game` asks (``game.asks``), is answered (``game.answer``), and tells what
happened (``game.events``), each event with those who may know it. All chance comes from two seeds, so that a
game is a function of preset, seeds and answers.
"""

from __future__ import annotations

from werewolf.engine.asks import Answer, Ask, Choice, IllegalAnswer, Kind, Say, Statement
from werewolf.engine.events import Event, Happening
from werewolf.engine.game import Game, Outcome
from werewolf.engine.roles import Role, Side
from werewolf.engine.rules import PRESETS, Rules, preset
from werewolf.engine.state import State

__all__ = [
    "PRESETS",
    "Answer",
    "Ask",
    "Choice",
    "Event",
    "Game",
    "Happening",
    "IllegalAnswer",
    "Kind",
    "Outcome",
    "Role",
    "Rules",
    "Say",
    "Side",
    "State",
    "Statement",
    "preset",
]
