"""Whether the processes that Ray has started for us are still there.

verl learns of a dead worker when it next asks it for something, of a dead engine never: the agents call it,
not verl. So each is asked all the time, and the first that cannot answer ends the run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import ray

EVERY = 1.0
"""Seconds between two questions."""


class Watch(threading.Thread):
    """Asks by ``questions`` (name → what returns an object reference) until one fails; then ``lost``, once.

    An actor that is busy answers later, which is no failure.
    """

    def __init__(self, questions: Mapping[str, Callable[[], Any]], lost: Callable[[str], None]) -> None:
        super().__init__(name="agl-verl-watch", daemon=True)
        self._questions, self._lost = questions, lost

    def run(self) -> None:
        asked: dict[str, Any] = {}
        while True:
            for name, question in self._questions.items():
                asked.setdefault(name, question())
            answered, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=EVERY)
            for name in [name for name, answer in asked.items() if answer in answered]:
                try:
                    ray.get(asked.pop(name))
                except Exception as error:
                    self._lost(f"{name} has died ({type(error).__name__})")
                    return
            time.sleep(EVERY)


def everybody(trainer: Any, servers: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """The training workers of verl's ``trainer``, and the engines' actors ``servers`` by name."""
    workers = trainer.actor_rollout_wg.workers
    return {
        **{f"training worker {n}": worker.__ray_ready__.remote for n, worker in enumerate(workers)},
        **{name: server.well.remote for name, server in servers.items()},
    }
