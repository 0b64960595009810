"""What an algorithm of one's own queues is tried as the trainer was told, however it is queued."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import agentlightning as agl
from agentlightning.plugins.manager import build
from agentlightning.store import SQLiteStore
from agentlightning.types import Rollout, RolloutConfig

TRIES: Counter[str] = Counter()


def clumsy(task: str) -> float:
    """Raises twice, then succeeds."""
    TRIES[task] += 1
    if TRIES[task] < 3:
        raise ValueError("not yet")
    return 1.0


@agl.algo
async def by_hand(*, store: Any, context: Any) -> dict[str, Any]:
    """Queues one rollout in each way there is."""
    own = RolloutConfig(max_attempts=1)
    one = await store.enqueue_rollout(input="one")
    many = await store.enqueue_many_rollouts(
        [
            Rollout(rollout_id="", input="many"),
            Rollout(rollout_id="", input="its own", config=own),
        ]
    )
    past = await context.store.enqueue_rollout("past the algorithm's view", run_id=context.run_id)
    made = [one, *many, past]
    ended = await store.wait_for_rollouts([r.rollout_id for r in made])
    return {str(r.input): [str(r.status), r.attempts] for r in ended}


async def test_every_way_of_queueing_follows_the_trainer(tmp_path: Path) -> None:
    TRIES.clear()
    trainer = agl.Trainer(
        by_hand,
        output=tmp_path,
        trackers=[],
        plugins=build([], discover=False),
        failure={"agent-raised": "retry"},
        max_attempts=4,
        timeout_seconds=30.0,
        trusted=False,
    )
    summary = await trainer.afit(clumsy, ["a task"])
    thrice = ["succeeded", 3]
    found = {name: summary[name] for name in ("one", "many", "its own", "past the algorithm's view")}
    assert found == {
        "one": thrice,
        "many": thrice,
        "its own": ["failed", 1],
        "past the algorithm's view": thrice,
    }
    (folder,) = tmp_path.iterdir()
    store = SQLiteStore(folder / "store.sqlite")
    config = next(r.config for r in await store.query_rollouts() if r.input == "one")
    assert (config.max_attempts, config.timeout_seconds) == (4, 30.0)
    assert "agent-raised" in config.retry_on and not config.trusted
    await store.close()
