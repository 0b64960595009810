"""A server of OpenEnv for the tests: count to a number, by text or by JSON."""

from __future__ import annotations

from typing import Any

from openenv.core.env_server import Action, Environment, Observation, State, create_app


class Say(Action):
    number: int
    polite: bool = False


class Heard(Observation):
    so_far: list[int]
    wanted: int


class Counting(Environment[Say, Heard, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Heard:
        if seed == 13:
            raise RuntimeError("thirteen is unlucky")
        self._wanted, self._said = seed or 0, []
        self._state = State(episode_id=episode_id, step_count=0)
        return Heard(so_far=[], wanted=self._wanted)

    def step(self, action: Say, timeout_s: float | None = None, **_: Any) -> Heard:
        self._said.append(action.number)
        right = self._said == list(range(1, len(self._said) + 1))
        done = not right or len(self._said) == self._wanted
        reward = None if self._wanted == 99 else float(right)
        return Heard(so_far=list(self._said), wanted=self._wanted, reward=reward, done=done)

    @property
    def state(self) -> State:
        return self._state


app = create_app(Counting, Say, Heard, env_name="counting", max_concurrent_envs=2)
