"""The engine's process is killed while a run trains: the run ends by that, in one sentence."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from e2e.test_line import PROCESS, Watch, trainer

from agentlightning.algorithms.context import EngineDied
from agentlightning.hookspecs import hookimpl
from agentlightning.types import StepReport
from calc_x.agent import solve
from calc_x.datasets import load


class KillsTheEngine:
    """Kills the engine once the first step is reported."""

    def __init__(self) -> None:
        self.driver: Any = None

    @hookimpl
    def agl_policy_updated(self, report: StepReport) -> None:
        for pid in self.driver._engines.pids().values():
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.plugins
async def test_a_killed_engine_is_named_and_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agl_local import driver as module

    killer, watch = KillsTheEngine(), Watch()
    begun = module.LocalDriver.start

    async def start(self: Any) -> Any:
        killer.driver = self
        return await begun(self)

    monkeypatch.setattr(module.LocalDriver, "start", start)
    made = trainer(tmp_path, watch, options=PROCESS, steps=4, callbacks=[killer])
    with pytest.raises(EngineDied, match=r"the engine of policy 'policy' died: signal 9 \(SIGKILL\)"):
        await made.afit(solve, load("generated:train", limit=8))
    assert len(watch.reports) == 1
