"""What an actor does: it leases rollouts and runs the agent on them, as ``agl runner``."""

from __future__ import annotations

import asyncio
import os
from typing import Any, NamedTuple

from agentlightning.capture.installation import capturing
from agentlightning.child_environment import hidden_variables, hide_secrets
from agentlightning.plugins.manager import load
from agentlightning.runner.agent import instrumentors
from agentlightning.runner.runner import Runner
from agentlightning.runner.settings import RunnerSection
from agl_cluster.runners.attempt_keys import attempt_keys_for
from agl_cluster.store.client import StoreClient


class WorkerJob(NamedTuple):
    """What an actor is made with; it is pickled."""

    agent: Any
    settings: RunnerSection
    store: str
    token: str
    """A token of the role runner."""
    patience: float
    run_id: str | None
    worker_id: str
    drain: float


class RunnerActor:
    """A runner as an asynchronous actor: :meth:`run` and :meth:`stop` are called at the same time."""

    def __init__(self, job: WorkerJob) -> None:
        hide_secrets()
        for name in hidden_variables():  # a cluster that was started with the run has its environment
            del os.environ[name]
        self._job = job
        self._stop = asyncio.Event()
        self._runner: Runner | None = None

    async def run(self) -> dict[str, int]:
        """Run rollouts until :meth:`stop`; return the counts of the runner."""
        job, plugins = self._job, load()
        store = StoreClient(job.store, job.token, patience=job.patience)
        inline = job.settings.isolation != "process"
        active = instrumentors(plugins, job.settings.adapters) if inline else []
        try:
            with capturing(active):
                runner = self._runner = Runner(
                    job.agent,
                    store,
                    job.settings,
                    attempt_keys=attempt_keys_for(store),
                    plugins=plugins,
                    run_id=job.run_id,
                    worker_id=job.worker_id,
                    drain=job.drain,
                )
                await runner.serve(self._stop)
                return dict(runner.counts)
        finally:
            await store.close()

    async def counts(self) -> dict[str, int]:
        """Return the counts so far."""
        return dict(self._runner.counts) if self._runner is not None else {}

    async def stop(self) -> None:
        """Lease nothing more, and let what runs end."""
        self._stop.set()
