"""``GET /metrics`` of a run that trains, where ``metrics: {port: …}`` asks for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from agentlightning.hookspecs import hookimpl
from agentlightning.train.run_folder import say
from agentlightning.types import Attempt, Evaluation, Rollout, StepReport
from agentlightning.types.base import RequestRefused
from agentlightning.webserver import app_runner, listen
from agentlightning.webserver.guard import guard
from agentlightning.webserver.loopback import cannot_listen, loopback
from agl_cluster.prometheus import Exposed, Values, exposition, families
from agl_cluster.settings import MetricsSection

EXPOSED: Final = (
    Exposed("agl_train_step", "gauge", "Steps that are finished.", ("policy",)),
    Exposed("agl_train_policy_version", "gauge", "Version of the policy after the last step.", ("policy",)),
    Exposed("agl_train_metric", "gauge", "A metric of the last step, by its name.", ("policy", "name")),
    Exposed("agl_train_seconds", "counter", "Seconds of the steps by phase.", ("policy", "phase")),
    Exposed("agl_train_rollouts", "counter", "Attempts that have ended in this process.", ("mode", "status")),
    Exposed("agl_train_reward", "gauge", "Reward of the last evaluation of a name.", ("evaluation",)),
    Exposed("agl_train_checkpoints", "counter", "Checkpoints written."),
)  # fmt: skip


@asynccontextmanager
async def serving_metrics(settings: MetricsSection) -> AsyncIterator[RunMetrics]:
    """Serve the metrics of a run, to whose hooks what it yields listens."""
    page = RunMetrics()
    async with page.serve(settings) as url:
        say(f"Metrics: {url}")
        yield page


class RunMetrics:
    """What a run's metrics page shows; the hooks of the run keep it."""

    def __init__(self) -> None:
        self.steps: dict[tuple[str, ...], float] = {}
        self.versions: dict[tuple[str, ...], float] = {}
        self.metrics: dict[tuple[str, ...], float] = {}
        self.seconds: dict[tuple[str, ...], float] = {}
        self.rollouts: Counter[tuple[str, ...]] = Counter()
        self.rewards: dict[tuple[str, ...], float] = {}
        self.checkpoints = 0

    @hookimpl
    def agl_policy_updated(self, report: StepReport) -> None:
        policy = report.policy
        self.steps[policy,] = report.step + 1
        self.versions[policy,] = report.policy_version
        for name, value in report.metrics.items():
            self.metrics[policy, name] = float(value)
        for phase, seconds in report.seconds.items():
            self.seconds[policy, phase] = self.seconds.get((policy, phase), 0.0) + seconds

    @hookimpl
    def agl_rollout_finished(self, rollout: Rollout, attempt: Attempt) -> None:
        self.rollouts[rollout.mode, str(attempt.status.value)] += 1

    @hookimpl
    def agl_evaluated(self, evaluation: Evaluation) -> None:
        self.rewards[evaluation.name,] = evaluation.reward

    @hookimpl
    def agl_checkpoint_saved(self) -> None:
        self.checkpoints += 1

    async def page(self, request: web.Request) -> web.Response:
        """Answer ``GET /metrics``."""
        values: Values = {
            "agl_train_step": self.steps,
            "agl_train_policy_version": self.versions,
            "agl_train_metric": self.metrics,
            "agl_train_seconds": self.seconds,
            "agl_train_rollouts": self.rollouts,
            "agl_train_reward": self.rewards,
            "agl_train_checkpoints": float(self.checkpoints),
        }
        body, kind = exposition(families(EXPOSED, values), request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": kind})

    @asynccontextmanager
    async def serve(self, settings: MetricsSection) -> AsyncIterator[str]:
        """Answer at a port; return the URL of the page."""
        app = web.Application(middlewares=[guard(_refused)])
        app.router.add_get("/metrics", self.page)
        runner = app_runner(app, shutdown_timeout=0.5)
        try:
            url = await listen(runner, port=settings.port)
        except OSError as error:
            await runner.cleanup()
            what, place = "the page of metrics", (loopback(), settings.port)
            raise cannot_listen(what, *place, error, "metrics.port") from error
        try:
            yield f"{url}/metrics"
        finally:
            await runner.cleanup()


async def _refused(request: web.Request, why: RequestRefused) -> web.StreamResponse:
    return web.Response(status=why.status, text=why.message)
