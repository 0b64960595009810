"""The controller: makes a Job for each queued rollout, sees to their ends, and survives its own.

All that it must remember stands in the cluster (Jobs, by label) and in the store (leases, attempts). Whoever
starts a second controller, or the same one again, finds both.

Invariants: a rollout never runs twice at once. Its Job is made only when no Job of an earlier attempt is
active; a Job's name is that of its attempt; its runner leases the rollout only from the queue; and the
store fences whatever is late. A pod that dies without an end of its attempt has one written for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agentlightning.plugins.suite import install_line
from agentlightning.specs import RunnerJob
from agentlightning.store import Conflict, NotFound
from agentlightning.store.base import AttemptEnded
from agentlightning.types import AttemptStatus, Rollout, RolloutStatus, UsageError
from agentlightning.types.failure import failure_kind_of_end
from agentlightning.webserver.loopback import is_loopback
from agl_cluster.store.client import StoreClient
from agl_kubernetes.agents import agent_in_image
from agl_kubernetes.failures import (
    NEVER_STARTS,
    UNRECOVERABLE,
    PodFailure,
    failure_of,
    job_ended,
    never_started,
    started,
    waiting_reason,
)
from agl_kubernetes.jobs import JobKey, JobMaker, key_of
from agl_kubernetes.pods import GRACE_SECONDS, Manifest
from agl_kubernetes.settings import KubernetesOptions

if TYPE_CHECKING:
    from agl_kubernetes.cluster import Cluster, Watched

log = logging.getLogger(__name__)
TICK_SECONDS = 1.0
"""Seconds between two looks at the queue, if the cluster has nothing new meanwhile."""
_QUEUED = (RolloutStatus.QUEUING, RolloutStatus.REQUEUING)
_ENDED = (AttemptStatus.SUCCEEDED, AttemptStatus.FAILED, AttemptStatus.TIMEOUT)
_PAGE = 1000
_JOB_LABELS = ("batch.kubernetes.io/job-name", "job-name")


def make(job: RunnerJob, options: KubernetesOptions) -> JobController:
    """Return the controller of a run. UsageError for what pods could not work with."""
    if not isinstance(job.store, StoreClient):
        raise UsageError(
            f"runner: pods cannot reach {job.store!r}; serve it with `agl store`, and give its URL as store"
        )
    try:
        import kubernetes_asyncio  # noqa: F401
    except ImportError:
        raise UsageError(
            f"runner: the client of Kubernetes is not installed; {install_line('runner', 'kubernetes')}"
        ) from None
    store = options.store or job.store.url
    return JobController(job, options, JobMaker(options, store, agent_in_image(job, options), job.run_id))


class JobController:
    """Runs the rollouts of a store as Jobs.

    ``counts``: ``jobs`` (made), ``taken`` (a Job of the name was there), ``cancelled-jobs`` and
    ``superseded-jobs`` (deleted), ``not-started``, ``no-quota``, ``fenced`` (ends that the store refused),
    ``failed: <kind>`` (ends that were written for pods), and those of :mod:`.cluster`.
    """

    def __init__(self, job: RunnerJob, options: KubernetesOptions, maker: JobMaker) -> None:
        self.counts: Counter[str] = Counter()
        self._store, self._run_id, self._gateway = job.store, job.run_id, job.gateway
        self._options, self._maker = options, maker
        self._settled: set[str] = set()
        """Jobs whose end has been seen to."""
        self._first_seen: dict[str, float] = {}
        """Job → when it was first seen active, by the monotonic clock."""
        self._outlived: dict[str, float] = {}
        """Active Job of an attempt that has ended → when that was first seen."""

    # ---------------------------------------------------------------------------------------- the loop
    async def serve(self, stop: asyncio.Event) -> None:
        """Make Jobs and see to them until ``stop`` is set. Jobs that run then go on: their runners write
        their own ends, and a controller that starts later finds them.
        """
        from agl_kubernetes.cluster import JOBS, PODS, Cluster, Watched

        cluster, changed = await Cluster.connect(self._options, self.counts), asyncio.Event()
        try:
            self._check_addresses(cluster.host)
            jobs, pods = (
                Watched(cluster, kind, self._maker.selector, changed, self.counts) for kind in (JOBS, PODS)
            )
            looking = self._look_until(stop, cluster, jobs, pods, changed)
            tasks = [asyncio.create_task(one) for one in (looking, jobs.run(), pods.run())]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await cluster.close()

    async def _look_until(
        self, stop: asyncio.Event, cluster: Cluster, jobs: Watched, pods: Watched, changed: asyncio.Event
    ) -> None:
        stopping = asyncio.create_task(stop.wait())
        for watched in (jobs, pods):
            known = asyncio.create_task(watched.synced.wait())
            await asyncio.wait({known, stopping}, return_when=asyncio.FIRST_COMPLETED)
            known.cancel()
        while not stop.is_set():
            changed.clear()
            await self.look(cluster, jobs.objects, pods.objects)
            woken = asyncio.create_task(changed.wait())
            await asyncio.wait({woken, stopping}, timeout=TICK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            woken.cancel()
        stopping.cancel()

    async def look(
        self, cluster: Cluster, jobs: Mapping[str, Manifest], pods: Mapping[str, Manifest]
    ) -> None:
        """See to each Job once, then make Jobs for queued rollouts."""
        pod_of = _pods_by_job(pods)
        active: dict[str, JobKey] = {}
        for name, job in [*jobs.items()]:
            if (key := key_of(job)) is None:
                continue
            if job_ended(job):
                await self._settle(cluster, name, key, job, pod_of.get(name))
            elif not job["metadata"].get("deletionTimestamp"):
                active[name] = key
        for known in (self._first_seen, self._outlived):
            for name in known.keys() - active.keys():
                del known[name]
        self._settled &= jobs.keys()
        await self._drop_outlived(cluster, active)
        await self._give_up(cluster, active, pod_of)
        await self._make_jobs(cluster, active)

    # ---------------------------------------------------------------------------------------- ends
    async def _settle(
        self, cluster: Cluster, name: str, key: JobKey, job: Manifest, pod: Manifest | None
    ) -> None:
        """Write the end of an ended Job's attempt, unless its runner has."""
        if name in self._settled:
            return
        failure = failure_of(job, pod)
        if failure.exit_code == UNRECOVERABLE and not await self._runs(key, name):
            await cluster.delete(_jobs(), name)  # whoever mends it and starts again does not find it
            _, _, message = failure.reason.partition("exit status 2")
            raise UsageError(f"the runner of Job {name} cannot run any rollout{message or ': see its log'}")
        await self._write_end(key, name, failure)
        self._settled.add(name)

    async def _runs(self, key: JobKey, name: str) -> bool:
        """Return whether the Job's runner has an attempt that has not ended."""
        try:
            latest = await self._store.get_latest_attempt(key.rollout_id)
        except NotFound:
            return False
        return latest is not None and latest.worker_id == name and latest.status not in _ENDED

    async def _write_end(self, key: JobKey, name: str, failure: PodFailure) -> None:
        """End the Job's attempt; one that its runner never began is begun and ended, so that the number of
        attempts bounds what cannot start.
        """
        try:
            latest = await self._store.get_latest_attempt(key.rollout_id)
            if latest is None or latest.sequence_id < key.number:
                lease = await self._store.start_attempt(key.rollout_id, worker_id=name, queued=True)
                latest = lease.attempt
            if latest.worker_id != name or latest.status in _ENDED:
                return
            await self._store.update_attempt(
                key.rollout_id, latest.attempt_id, failure.status, reason=failure.reason
            )
        except NotFound:  # the rollout was deleted with its run
            return
        except AttemptEnded as error:
            self.counts["fenced"] += 1
            log.warning("Job %s: the end of its attempt was refused: %s", name, error)
            return
        except Conflict:  # somebody else has the rollout, or it has ended
            return
        self.counts[f"failed: {failure_kind_of_end(failure.status, failure.reason)}"] += 1
        log.warning("Job %s: its attempt ended: %s", name, failure.reason)

    async def _drop_outlived(self, cluster: Cluster, active: dict[str, JobKey]) -> None:
        """Delete active Jobs of rollouts that were cancelled, and those whose attempt ended long ago."""
        rollouts = await self._rollouts([key.rollout_id for key in active.values()])
        now = time.monotonic()
        for name, key in [*active.items()]:
            rollout = rollouts.get(key.rollout_id)
            cancelled = rollout is None or rollout.status is RolloutStatus.CANCELLED
            queued_again = (
                rollout is not None and rollout.status in _QUEUED and rollout.attempts >= key.number
            )
            if not (cancelled or queued_again or _is_over(rollout, key)):
                self._outlived.pop(name, None)
                continue
            since = self._outlived.setdefault(name, now)
            if cancelled or now - since >= self._options.drain_seconds + GRACE_SECONDS:
                await cluster.delete(_jobs(), name)
                self.counts["cancelled-jobs" if cancelled else "superseded-jobs"] += 1
                self._settled.add(name)
                del active[name]

    async def _rollouts(self, ids: list[str]) -> dict[str, Rollout]:
        found: dict[str, Rollout] = {}
        wanted = [*dict.fromkeys(ids)]
        for first in range(0, len(wanted), _PAGE):
            page = await self._store.query_rollouts(rollout_ids=wanted[first : first + _PAGE], limit=_PAGE)
            found |= {one.rollout_id: one for one in page}
        return found

    async def _give_up(
        self, cluster: Cluster, active: dict[str, JobKey], pod_of: Mapping[str, Manifest]
    ) -> None:
        """End the attempts of pods that do not start in time, or cannot."""
        now, limit = time.monotonic(), self._options.pending_seconds
        for name, key in [*active.items()]:
            since, pod = self._first_seen.setdefault(name, now), pod_of.get(name)
            hopeless = waiting_reason(pod)[0] in NEVER_STARTS
            if started(pod) or not (hopeless or now - since >= limit):
                continue
            failure = never_started(pod, limit if not hopeless else now - since)
            await cluster.delete(_jobs(), name)
            await self._write_end(key, name, failure)
            self._settled.add(name)
            self.counts["not-started"] += 1
            del active[name]

    # ---------------------------------------------------------------------------------------- Jobs
    async def _make_jobs(self, cluster: Cluster, active: Mapping[str, JobKey]) -> None:
        """Make Jobs for the oldest queued rollouts, up to ``parallelism`` active ones."""
        from agl_kubernetes.cluster import JOBS, SECRETS, QuotaExceeded

        free = self._options.parallelism - len(active)
        if free <= 0:
            return
        limit = min(_PAGE, free + len(active))  # those whose pods have not leased them yet are queued too
        queued = await self._store.query_rollouts(status=_QUEUED, run_id=self._run_id, limit=limit)
        busy = {key.rollout_id for key in active.values()}
        chosen = [one for one in queued if one.rollout_id not in busy][:free]
        try:
            for rollout in chosen:
                job = self._maker.job(rollout)
                name = job["metadata"]["name"]
                if name in self._settled:  # its end was written a moment ago; the rollout's new state follows
                    continue
                token = await self._token(rollout, name, job["spec"].get("activeDeadlineSeconds"))
                made = await cluster.create(JOBS, job)
                if made is not None:  # the pod waits for the Secret
                    await cluster.create(SECRETS, self._maker.secret(made, token))
                self.counts["jobs" if made is not None else "taken"] += 1
        except QuotaExceeded as error:
            self.counts["no-quota"] += 1
            log.info("no further Job for now: %s", error)

    async def _token(self, rollout: Rollout, worker_id: str, seconds: float | None) -> str:
        """Return the token of the Job of a rollout. UsageError: the store has no secret to make it with."""
        assert isinstance(self._store, StoreClient)
        try:
            return await self._store.rollout_token(rollout.rollout_id, worker_id, seconds)
        except Conflict as error:
            raise UsageError(f"runner: each Job gets a token for its own rollout: {error}") from None

    def _check_addresses(self, api_host: str) -> None:
        """Raise UsageError for addresses that no pod of another machine reaches."""
        if is_loopback(api_host):
            return
        for what, url in (("store", self._maker.store), ("gateway.listen", self._gateway)):
            host = urlsplit(url or "").hostname
            if host is not None and is_loopback(host):
                more = "give the address that pods reach"
                where = "runner.store" if what == "store" else "gateway.listen and gateway.advertise"
                raise UsageError(f"{what}: pods cannot reach {url}; {more} as {where}")


def _is_over(rollout: Rollout | None, key: JobKey) -> bool:
    return rollout is not None and (rollout.status.final or rollout.attempts > key.number)


def _pods_by_job(pods: Mapping[str, Manifest]) -> dict[str, Manifest]:
    """Return Job → its newest pod."""
    found: dict[str, Any] = {}
    for pod in sorted(pods.values(), key=lambda one: one["metadata"].get("creationTimestamp") or ""):
        meta = pod["metadata"].get("labels") or {}
        for label in _JOB_LABELS:
            if label in meta:
                found[meta[label]] = pod
    return found


def _jobs() -> str:
    from agl_kubernetes.cluster import JOBS

    return JOBS
