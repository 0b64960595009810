"""Small tasks of several calls whose true advantages are known exactly.

A shape is a finite game: states, three actions a call, and what each action may lead to with which
probability. The policy is a known one (:data:`POLICY`), so the value of every state follows by working
backwards, and with it the true advantage ``A(s, a) = Q(s, a) - V(s)`` of every call. A task is a difficulty;
the policy does not see it, as a language model does not see its own chances.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import NamedTuple

POLICY = (0.5, 0.3, 0.2)
"""Probability of each action, in every state."""
SUCCESS = (0.35, 0.7, 0.15)
"""How often an action succeeds on a task of difficulty 1."""
DIFFICULTIES = (1.3, 1.0, 0.5)

State = tuple[int, int]
"""How many calls were made before, and what was reached."""


class Outcome(NamedTuple):
    """What a call may lead to: ``state`` is ``None`` where the rollout ends."""

    probability: float
    state: State | None
    rewards: dict[str, float]
    """Agent → what it is given for this call."""


@dataclass(frozen=True)
class Shape:
    """One kind of task."""

    name: str
    about: str
    agents: tuple[str, ...]
    """Who makes the calls, in turn."""
    outcomes: Callable[[float, State, int], list[Outcome]]
    dense: bool
    """Calls are rewarded as they are made; else only the whole rollout (or each agent) at its end."""

    def agent(self, state: State) -> str:
        """Who is to move."""
        return self.agents[state[0] % len(self.agents)]


class Step(NamedTuple):
    """One call of a rollout that was played."""

    state: State
    action: int
    rewards: dict[str, float]
    advantage: float
    """The true one, for the agent that made the call."""


def values(shape: Shape) -> Callable[[float, State], dict[str, float]]:
    """The expected return of each agent from a state on, exactly."""

    @cache
    def value(difficulty: float, state: State) -> dict[str, float]:
        out = dict.fromkeys(shape.agents, 0.0)
        for action, probability in enumerate(POLICY):
            for agent, worth in _worth(shape, difficulty, state, action, value).items():
                out[agent] += probability * worth
        return out

    return value


def play(
    shape: Shape, difficulty: float, value: Callable[[float, State], dict[str, float]], random: Random
) -> list[Step]:
    """One rollout of the policy."""
    state: State | None = (0, 0)
    steps: list[Step] = []
    while state is not None:
        action = random.choices(range(len(POLICY)), POLICY)[0]
        outcomes = shape.outcomes(difficulty, state, action)
        then = random.choices(outcomes, [one.probability for one in outcomes])[0]
        agent = shape.agent(state)
        gained = _worth(shape, difficulty, state, action, value)[agent] - value(difficulty, state)[agent]
        steps.append(Step(state, action, then.rewards, gained))
        state = then.state
    return steps


def gradient(
    shape: Shape, value: Callable[[float, State], dict[str, float]]
) -> dict[tuple[str, State, int], float]:
    """The true policy gradient by the logits of each agent and state, per rollout, over all difficulties."""
    out: dict[tuple[str, State, int], float] = {}
    for difficulty in DIFFICULTIES:
        reached: dict[State, float] = {(0, 0): 1.0}
        while reached:
            state, chance = min(reached.items())
            del reached[state]
            agent = shape.agent(state)
            for action, probability in enumerate(POLICY):
                worth = _worth(shape, difficulty, state, action, value)[agent]
                gained = worth - value(difficulty, state)[agent]
                key = (agent, state, action)
                out[key] = out.get(key, 0.0) + chance * probability * gained / len(DIFFICULTIES)
                for then in shape.outcomes(difficulty, state, action):
                    if then.state is not None and then.probability:
                        before = reached.get(then.state, 0.0)
                        reached[then.state] = before + chance * probability * then.probability
    return out


def _worth(
    shape: Shape,
    difficulty: float,
    state: State,
    action: int,
    value: Callable[[float, State], dict[str, float]],
) -> dict[str, float]:
    """The expected return of each agent after an action."""
    out = dict.fromkeys(shape.agents, 0.0)
    for probability, then, rewards in shape.outcomes(difficulty, state, action):
        ahead = value(difficulty, then) if then is not None else {}
        for agent in shape.agents:
            out[agent] += probability * (rewards.get(agent, 0.0) + ahead.get(agent, 0.0))
    return out


# --------------------------------------------------------------------------------------------- the shapes
def _chance(difficulty: float, action: int) -> float:
    return SUCCESS[action] * difficulty


def _two(
    chance: float, good: tuple[State | None, dict[str, float]], bad: tuple[State | None, dict[str, float]]
) -> list[Outcome]:
    return [Outcome(chance, *good), Outcome(1.0 - chance, *bad)]


def _steps(difficulty: float, state: State, action: int) -> list[Outcome]:
    """Four calls, each rewarded for itself; later calls are worth more whatever is done."""
    turn, then = state[0], None if state[0] == 3 else (state[0] + 1, 0)
    level = 0.5 * turn
    return _two(_chance(difficulty, action), (then, {"a": level + 1.0}), (then, {"a": level}))


def _carried(difficulty: float, state: State, action: int) -> list[Outcome]:
    """Four calls; each is paid by how far the work has come, so an early success is paid again and again."""
    turn, reached = state

    def after(done: int) -> tuple[State | None, dict[str, float]]:
        return (None if turn == 3 else (turn + 1, done)), {"a": done / 4}

    return _two(_chance(difficulty, action), after(reached + 1), after(reached))


def _goal(difficulty: float, state: State, action: int) -> list[Outcome]:
    """The same work, rewarded at its end alone, if three of four calls succeeded."""
    turn, reached = state

    def after(done: int) -> tuple[State | None, dict[str, float]]:
        return (None, {"a": float(done >= 3)}) if turn == 3 else ((turn + 1, done), {})

    return _two(_chance(difficulty, action), after(reached + 1), after(reached))


def _retry(cost: float) -> Callable[[float, State, int], list[Outcome]]:
    """Up to five tries; the first that succeeds ends the rollout. ``cost`` of a try that fails."""

    def outcomes(difficulty: float, state: State, action: int) -> list[Outcome]:
        turn = state[0]
        failed: tuple[State | None, dict[str, float]] = (None if turn == 4 else (turn + 1, 0), {"a": -cost})
        return _two(0.6 * _chance(difficulty, action), (None, {"a": 1.0}), failed)

    return outcomes


def _pair(difficulty: float, state: State, action: int) -> list[Outcome]:
    """A writer and a checker take turns, twice. A good text is worth 1 to the writer; the checker earns 0.3
    for a right verdict, and a wrong one costs it 1.
    """
    turn, reached = state
    chance = _chance(difficulty, action)
    if turn % 2 == 0:
        return _two(chance, ((turn + 1, reached + 1), {"w": 1.0}), ((turn + 1, reached), {"w": 0.0}))
    then = None if turn == 3 else (turn + 1, reached)
    return _two(chance, (then, {"c": 0.3}), (then, {"c": -1.0}))


def _duel(difficulty: float, state: State, action: int) -> list[Outcome]:
    """Two agents move in turn, three times each; who is ahead at the end wins 1 from the other."""
    turn, score = state
    side = 1 if turn % 2 == 0 else -1

    def after(now: int) -> tuple[State | None, dict[str, float]]:
        if turn < 5:
            return (turn + 1, now), {}
        won = float((now > 0) - (now < 0))
        return None, {"x": won, "y": -won}

    return _two(_chance(difficulty, action), after(score + side), after(score))


SHAPES = (
    Shape("steps", "4 calls, each rewarded for itself", ("a",), _steps, True),
    Shape("carried", "4 calls, each paid by how far the work has come", ("a",), _carried, True),
    Shape("goal", "4 calls, one reward at the end", ("a",), _goal, False),
    Shape("retry", "1 to 5 tries, one reward at the end", ("a",), _retry(0.0), False),
    Shape("retry, paid", "1 to 5 tries, each failure costs 0.1", ("a",), _retry(0.1), True),
    Shape("pair", "two agents in turn, every call rewarded", ("w", "c"), _pair, True),
    Shape("duel", "two agents in turn, one wins what the other loses", ("x", "y"), _duel, False),
)
