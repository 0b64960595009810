"""Keeps one actor for each CPU of a Ray cluster alive while a run lasts.

Invariants: an actor holds no secret, only a token of the role runner; it ends with the process that made it;
one that dies is started again, after a longer pause each time; an error that a person must fix ends the run.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from agentlightning.plugins.suite import install_line
from agentlightning.runner.outcome import CannotRun
from agentlightning.specs import RunnerJob
from agentlightning.types import UsageError, new_id
from agentlightning.webserver.loopback import is_loopback
from agl_cluster.roles import Role, derived_token
from agl_cluster.runners.supervisor import FIRST_PAUSE, LONGEST_PAUSE, STABLE_SECONDS
from agl_cluster.store.client import StoreClient
from agl_ray.settings import RayOptions
from agl_ray.worker import RunnerActor, WorkerJob

log = logging.getLogger(__name__)
CONNECT_SECONDS = 10.0
COUNT_SECONDS = 5.0
"""Seconds between two looks at the counts of the actors."""


def make(job: RunnerJob, options: RayOptions) -> RayRunner:
    """Return the runner of a run. UsageError for what actors could not work with."""
    if not isinstance(job.store, StoreClient):
        raise UsageError(
            f"runner: actors cannot reach {job.store!r}; serve it with `agl store`, and give its URL as store"
        )
    try:
        import ray  # noqa: F401
    except ImportError:
        raise UsageError(f"runner: ray is not installed; {install_line('runner', 'ray')}") from None
    token = derived_token(Role.RUNNER)
    if token is None:
        raise UsageError(
            "runner: actors get a token that is made with the store's secret: set AGL_SECRET to the same "
            "value here and where the store runs"
        )
    return RayRunner(job, options, token)


class RayRunner:
    """Runs the rollouts of a store in actors.

    ``counts``: the sum of the actors' (:attr:`.Runner.counts`), and ``restarted`` (actors that died and were
    started again). What an actor had counted in its last seconds dies with it.
    """

    def __init__(self, job: RunnerJob, options: RayOptions, token: str) -> None:
        self.counts: Counter[str] = Counter()
        self._job, self._options, self._token = job, options, token
        self._ended: Counter[str] = Counter()
        """Counts of actors that are gone, and ``restarted``."""
        self._present: dict[int, dict[str, int]] = {}
        self._actors: dict[int, Any] = {}

    async def serve(self, stop: asyncio.Event) -> None:
        """Keep the actors alive until ``stop`` is set; then let them end."""
        began = await asyncio.to_thread(self._connect)
        try:
            slots = [asyncio.create_task(self._keep_alive(n, stop)) for n in range(self._workers())]
            helpers = [asyncio.create_task(self._count()), asyncio.create_task(self._stop_actors(stop))]
            try:
                await asyncio.gather(*slots)
            finally:
                for task in (*slots, *helpers):
                    task.cancel()
                await asyncio.gather(*slots, *helpers, return_exceptions=True)
        finally:
            await asyncio.to_thread(self._leave, began)
            self._sum()

    # ---------------------------------------------------------------------------------------- the cluster
    def _connect(self) -> bool:
        """Join the cluster; return whether this process was in none before."""
        import ray

        if ray.is_initialized():
            self._check_gateway(ray.nodes())
            return False
        try:
            _check_reachable(self._options.address)
            ray.init(address=self._options.address, log_to_driver=False, logging_level=logging.WARNING)
        except (OSError, RuntimeError, ValueError) as error:
            raise UsageError(
                f"runner.address: no Ray cluster at {self._options.address!r} ({error}); start one with `ray "
                "start --head`, or give `local`"
            ) from None
        try:
            self._check_gateway(ray.nodes())
        except BaseException:
            ray.shutdown()
            raise
        return True

    def _leave(self, began: bool) -> None:
        import ray

        for actor in self._actors.values():
            ray.kill(actor)
        if began:
            ray.shutdown()

    def _check_gateway(self, nodes: Iterable[dict[str, Any]]) -> None:
        """Raise UsageError if a node cannot reach the store or the gateway."""
        alive = {node.get("NodeManagerAddress") for node in nodes if node.get("Alive")}
        if len(alive) < 2:
            return
        for key, url in (("store", self._job.store.url), ("gateway.listen", self._job.gateway or "")):  # type: ignore[attr-defined]
            host = urlsplit(url).hostname
            if host is not None and is_loopback(host):
                raise UsageError(
                    f"{key}: the cluster has {len(alive)} nodes, which cannot reach {url}; give an address "
                    "that they reach"
                )

    def _workers(self) -> int:
        import ray

        if self._options.workers is not None:
            return self._options.workers
        return max(1, int(ray.cluster_resources().get("CPU", 1) / self._options.cpus))

    # ---------------------------------------------------------------------------------------- actors
    async def _keep_alive(self, slot: int, stop: asyncio.Event) -> None:
        """Run one actor after another until a stop."""
        deaths = 0
        while not stop.is_set():
            began = time.monotonic()
            try:
                self._ended.update(await self._run_actor(slot))
                return  # it was told to stop
            except _dead() as error:
                why = str(error).splitlines()[0]
            finally:
                self._actors.pop(slot, None)
                self._present.pop(slot, None)
            if stop.is_set():
                return
            deaths = 1 if time.monotonic() - began > STABLE_SECONDS else deaths + 1
            pause = min(FIRST_PAUSE * 2 ** (deaths - 1), LONGEST_PAUSE)
            self._ended["restarted"] += 1
            self._sum()
            log.warning("actor %d is gone (%s); starting it again in %g s", slot, why, pause)
            try:
                await asyncio.wait_for(stop.wait(), pause)
            except TimeoutError:
                pass

    async def _run_actor(self, slot: int) -> dict[str, int]:
        """Run one actor to its end, and return its counts. Raise an error of Ray's when it dies, and a
        UsageError for what a person must fix.
        """
        import ray

        given = self._options
        reserved: dict[str, Any] = {"num_cpus": given.cpus, "resources": dict(given.resources)}
        if given.memory_mb is not None:
            reserved["memory"] = given.memory_mb * 2**20
        if given.runtime_env is not None:
            reserved["runtime_env"] = given.runtime_env
        try:
            actor = ray.remote(RunnerActor).options(**reserved).remote(self._worker_job())
        except TypeError as error:  # what cannot be pickled
            raise UsageError(f"runner: the agent cannot be sent to an actor: {error}") from error
        self._actors[slot] = actor
        try:
            counts: dict[str, int] = await actor.run.remote()
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, UsageError | CannotRun | ImportError):
                raise UsageError(f"runner: an actor cannot run any rollout: {cause}") from None
            raise
        return counts

    def _worker_job(self) -> WorkerJob:
        job, options = self._job, self._options
        store = job.store
        assert isinstance(store, StoreClient)
        settings = job.config.routed_agent.model_copy(
            update={
                "concurrency": options.concurrency,
                "isolation": options.isolation or job.config.agent.isolation,
            }
        )
        return WorkerJob(
            job.agent,
            _runner_section(settings),
            store.url,
            self._token,
            store.patience,
            job.run_id,
            new_id("ray"),
            options.drain_seconds,
        )

    async def _stop_actors(self, stop: asyncio.Event) -> None:
        await stop.wait()
        for actor in [*self._actors.values()]:
            actor.stop.remote()

    async def _count(self) -> None:
        """Ask the actors for their counts now and then."""
        silent: tuple[type[BaseException], ...] = (TimeoutError, *_dead())
        while True:
            await asyncio.sleep(COUNT_SECONDS)
            for slot, actor in [*self._actors.items()]:
                try:
                    found = await asyncio.wait_for(actor.counts.remote(), COUNT_SECONDS)
                except silent:
                    continue
                if slot in self._actors:
                    self._present[slot] = found
            self._sum()

    def _sum(self) -> None:
        total = Counter(self._ended)
        for counts in self._present.values():
            total.update(counts)
        self.counts.clear()
        self.counts.update(total)


def _check_reachable(address: str) -> None:
    """Raise OSError if nobody listens at ``host:port``: Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()


def _runner_section(settings: Any) -> Any:
    """Return the part of the section ``agent`` that a runner takes."""
    from agentlightning.runner.settings import RunnerSection

    return RunnerSection(**{name: getattr(settings, name) for name in RunnerSection.model_fields})


def _dead() -> tuple[type[BaseException], ...]:
    """Return the errors by which Ray says that an actor or its node is gone."""
    import ray

    return (ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError)
