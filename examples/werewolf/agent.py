"""The agent that is trained: it plays one game, with models on the seats that the task gives them.

``play_game(task, llm)`` plays and returns the reward of the trained side. Every model call bears the tags
seat, role, side, phase, kind, day and turn, and has a reward of its own. A task is

``{"preset", "deal", "trained": "wolves" | "town", "sides": {side: player}, "language", "rewards"}``

(see :mod:`werewolf.seating` for players); all but ``deal`` have defaults. With ``"record": true`` the rollout
leaves the whole game as an object span (:mod:`werewolf.replay` shows it).
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from openai import DefaultAsyncHttpxClient

import agentlightning as agl
from agentlightning.types import LLM, Rollout
from werewolf.engine import Game
from werewolf.players.asking import Account
from werewolf.record import KEY, record
from werewolf.rewards import Rewards
from werewolf.seating import Table, draw, sit
from werewolf.table import play
from werewolf.wording import wording

# Reading the certificate store takes 18 ms: once is enough.
TLS = ssl.create_default_context()


async def play_game(
    task: Mapping[str, Any],
    llm: LLM,
    rollout: Rollout | None = None,
    resources: Mapping[str, Any] | None = None,
) -> float:
    """One game; the reward of the trained side. Games of one group share the deal and differ in all other
    lots.
    """
    trained = task.get("trained", "wolves")
    seed = f"{task['deal']}:{rollout.sample if rollout else 0}"
    if rollout is not None and rollout.mode == "train":
        seed += f":{rollout.seed}"  # another game each time the task comes round
    game = Game(task.get("preset", "mini7"), task["deal"], seed)
    rewards = Rewards.read(task.get("rewards"))
    kinds = draw(task.get("sides") or {trained: "policy"}, game, seed)
    account = Account()
    async with DefaultAsyncHttpxClient(verify=TLS) as http:
        words = wording(task.get("language", "zh"))
        players = sit(kinds, Table(game, llm, resources or {}, http, account, words, seed))
        outcome = await play(game, players)
    of_calls = dict(rewards.of_calls(account, outcome, game.state.roles))
    for call, value in of_calls.items():
        agl.emit_reward(value, call=call)
    if task.get("record"):
        agl.emit_object({KEY: record(game, kinds, account, of_calls, words.language)})
    return rewards.outcome(trained, outcome)
