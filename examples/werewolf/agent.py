"""The agent that is trained: it plays one game, with models on the seats that the task gives them.

``play_game(task, llm)`` plays and returns the reward of the trained side. Every model call bears the tags
seat, role, side, phase, kind, day and turn, and has a reward of its own. A task is

``{"preset", "deal", "trained": "wolves" | "town", "sides": {side: player}, "language", "rewards", "judge"}``

(see :mod:`werewolf.seating` for players); all but ``deal`` have defaults. ``"judge": "llm:NAME"`` has the
speeches of ``model`` players scored (:mod:`werewolf.judge`). With ``"record": true`` the rollout leaves the
whole game as an object span (:mod:`werewolf.replay` shows it).

``play_game_supplied`` plays the same games and hands its transitions in as triplets.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from openai import DefaultAsyncHttpxClient

import agentlightning as agl
from agentlightning.types import LLM, Rollout
from werewolf.engine import Game
from werewolf.judge import BadJudge, endpoint_of, judged
from werewolf.players.asking import Account
from werewolf.record import KEY, record
from werewolf.rewards import Rewards
from werewolf.seating import Table, draw, sit
from werewolf.table import play
from werewolf.wording import wording

# Reading the certificate store takes 18 ms: once is enough.
TLS = ssl.create_default_context()
Resources = Mapping[str, Any]


async def play_game(
    task: Mapping[str, Any],
    llm: LLM,
    rollout: Rollout | None = None,
    resources: Resources | None = None,
) -> float:
    """One game; the reward of the trained side. Games of one group share the deal and differ in all other
    lots.
    """
    played = await play_through(task, llm, rollout, resources or {})
    for call, value in played.rewards.items():
        agl.emit_reward(value, call=call)
    return played.outcome


async def play_game_supplied(
    task: Mapping[str, Any],
    llm: LLM,
    rollout: Rollout | None = None,
    resources: Resources | None = None,
) -> list[agl.Triplet]:
    """The same game as the agent's own record: the trained side's calls, each with its reward. Ids and
    logprobs stay those that were captured; calls that are not in the list are not trained.
    """
    played = await play_through(task, llm, rollout, resources or {})
    agl.emit_reward(played.outcome)
    side = task.get("trained", "wolves")
    mine = [call for d in played.account.decisions if d.side == side for call in d.calls]
    return [
        agl.Triplet(prompt_ids=[], response_ids=[], call_id=call, reward=played.rewards[call])
        for call in mine
    ]


@dataclass
class Played:
    """A finished game."""

    outcome: float = 0.0
    """The reward of the trained side."""
    rewards: dict[str, float] = field(default_factory=dict)
    """Response id → reward of the call."""
    account: Account = field(default_factory=Account)
    ending: str = ""
    """What the moderator says at its end: who has won."""


async def play_through(
    task: Mapping[str, Any], llm: LLM, rollout: Rollout | None, resources: Resources
) -> Played:
    """One game, of whose rewards nothing is emitted."""
    seed = f"{task['deal']}:{rollout.sample if rollout else 0}"
    if rollout is not None and rollout.mode == "train":
        seed += f":{rollout.seed}"  # another game each time the task comes round
    game = Game(task.get("preset", "mini7"), task["deal"], seed)
    rewards = Rewards.read(task.get("rewards"))
    words = wording(task.get("language", "zh"))
    kinds = draw(task.get("sides") or {task.get("trained", "wolves"): "policy"}, game, seed)
    judge = endpoint_of(task["judge"], llm, resources) if task.get("judge") else None
    if rewards.judge and judge is None:
        raise BadJudge(
            'rewards: judge has a weight, but the task names no judge; give it "judge": "llm:NAME"'
        )
    played = Played()
    async with DefaultAsyncHttpxClient(verify=TLS) as http:
        players = sit(kinds, Table(game, llm, resources, http, played.account, words, seed))
        outcome = await play(game, players)
        scores = await _scores(played.account, kinds, judge, words, http) if judge else {}
    played.outcome = rewards.outcome(task.get("trained", "wolves"), outcome)
    played.ending = words.event(game.events[-1])
    played.rewards = dict(rewards.of_calls(played.account, outcome, game.state.roles, scores))
    if task.get("record"):
        agl.emit_object({KEY: record(game, kinds, played.account, played.rewards, words.language)})
    return played


async def _scores(
    account: Account, kinds: Mapping[int, str], judge: LLM, words: Any, http: Any
) -> dict[str, float]:
    """The judge's scores of what the ``model`` players said, left on the calls as rewards ``judge`` of their
    own (no rule of credit reads them), and what became of the asking as an annotation.
    """
    models = [seat for seat, kind in kinds.items() if kind.partition(":")[0] == "model"]
    scores, counts = await judged(account, models, judge, words, http)
    for call, score in scores.items():
        agl.emit_reward(score, name="judge", call=call)
    agl.emit_annotation({f"judge.{what}": n for what, n in sorted(counts.items())})
    return scores
