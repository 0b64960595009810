"""Keeps the policy with the best held-out reward, beyond the rotation of checkpoints.

``<run>/best/step-000020/`` is the policy after 20 finished steps, in Hugging Face layout (a folder for each
of several policies), and ``<run>/best.json`` names it with its evaluation. Invariant: the folder that
``best.json`` names is complete.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentlightning.algorithms.context import Context
from agentlightning.algorithms.journal import BEST, read_best
from agentlightning.specs import StartedDriver
from agentlightning.types import Evaluation

FOLDER = "best"


class KeptBest:
    """Keeps the best policy of one run (:class:`agentlightning.algorithms.schedule.Watch`). ``by``: the name
    of the evaluation set whose reward counts; ``True``: the held-out tasks.
    """

    def __init__(self, context: Context, by: bool | str) -> None:
        self._context, self._by = context, by if isinstance(by, str) else ""
        self._best = BestPolicy(context.folder)

    async def evaluated(self, step: int, evaluations: Mapping[str, Evaluation]) -> None:
        """Keep the present policy, of ``step`` finished steps, if its evaluation is the best so far."""
        evaluation = evaluations.get(self._by)
        if evaluation is None or self._context.driver is None:
            return
        if await self._best.consider(step, evaluation, self._context.driver):
            what = f"{evaluation.reward:.3f} ({evaluation.name})"
            self._context.say(f"best held-out reward so far: {what}, after step {step}; kept")

    def summary(self) -> dict[str, Any]:
        """Return the record of the best policy, if one is kept."""
        return {"best": self._best.record} if self._best.record else {}


class BestPolicy:
    """The best policy of the run in ``folder``. An equal reward does not replace it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.record = read_best(folder)

    async def consider(self, step: int, evaluation: Evaluation, driver: StartedDriver) -> bool:
        """Keep the present policy, of ``step`` finished steps, if no evaluation was better; return whether it
        is kept.
        """
        if self.record is not None and evaluation.reward <= self.record["reward"]:
            return False
        above = self.folder / FOLDER
        draft, kept = above / f".unfinished-{step:06d}", above / f"step-{step:06d}"
        shutil.rmtree(draft, ignore_errors=True)
        await driver.export(draft)
        await asyncio.to_thread(_replace, draft, kept)
        interval = None if evaluation.ci is None else list(evaluation.ci)
        self.record = {
            "step": step,
            "policy": f"{FOLDER}/{kept.name}",
            "evaluation": evaluation.name,
            "reward": evaluation.reward,
            "ci": interval,
            "tasks": evaluation.n,
        }
        passing = self.folder / f"{BEST}.part"
        passing.write_text(json.dumps(self.record, indent=2) + "\n", encoding="utf-8")
        os.replace(passing, self.folder / BEST)
        for other in above.iterdir():
            if other != kept:
                await asyncio.to_thread(shutil.rmtree, other)
        return True


def _replace(draft: Path, kept: Path) -> None:
    shutil.rmtree(kept, ignore_errors=True)
    draft.rename(kept)
