"""The Job of one attempt at a rollout: its name, which is the same whoever makes it, and its manifest.

Invariant: a rollout has one Job for each number of an attempt. Its name is made of both, so the API server
refuses a second one; the Job's runner leases the rollout only if it is in the queue. Its token, in a Secret
of the Job's name, reaches that rollout alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentlightning.types import Rollout
from agl_kubernetes.pods import GRACE_SECONDS, Manifest, labels, pod_spec, runner_command, secret_variables
from agl_kubernetes.settings import KubernetesOptions

QUEUE = "agentlightning.dev/queue"
"""Label: digest of the store's URL and the run, so that controllers know their own Jobs."""
ROLLOUT = "agentlightning.dev/rollout"
"""Annotation: the rollout's id, which may have characters that no label takes."""
NUMBER = "agentlightning.dev/attempt"
"""Annotation: the number of the attempt that the Job is for."""
COMPONENT_JOB = "rollout"


def digest(*parts: str) -> str:
    """Return a short name of ``parts`` for labels and names."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class JobKey:
    """Which attempt a Job is for."""

    rollout_id: str
    number: int

    def name(self, options: KubernetesOptions) -> str:
        """Return the Job's name, which is the runner's name in the store too."""
        return f"{options.name}-{digest(self.rollout_id)}-{self.number}"


def key_of(job: Mapping[str, Any]) -> JobKey | None:
    """Return which attempt a Job is for; ``None`` for one that somebody else labelled."""
    notes = job["metadata"].get("annotations") or {}
    number = notes.get(NUMBER, "")
    return JobKey(notes[ROLLOUT], int(number)) if ROLLOUT in notes and number.isdigit() else None


@dataclass(frozen=True, slots=True)
class JobMaker:
    """Makes the Jobs of one queue."""

    options: KubernetesOptions
    store: str
    """URL of the store as pods reach it."""
    agent: str | None
    run_id: str | None

    @property
    def selector(self) -> str:
        """Return the label selector of this queue's Jobs and pods."""
        return ",".join(f"{key}={value}" for key, value in self._labels.items())

    @property
    def _labels(self) -> dict[str, str]:
        queue = digest(self.store, self.run_id or "")
        return {**labels(self.options, COMPONENT_JOB), QUEUE: queue}

    def job(self, rollout: Rollout) -> Manifest:
        """Return the manifest of the Job of a queued rollout's next attempt."""
        options, key = self.options, JobKey(rollout.rollout_id, rollout.attempts + 1)
        name = key.name(options)
        command = [
            *runner_command(options, self.store, self.agent),
            *("--rollout", key.rollout_id, "--worker-id", name),
        ]
        notes = {ROLLOUT: key.rollout_id, NUMBER: str(key.number)}
        meta = {"labels": self._labels, "annotations": notes}
        pod = pod_spec(
            options,
            command,
            secret=name,
            service_account=options.service_account or options.name,
            restart="Never",
        )
        spec: Manifest = {
            "backoffLimit": 0,  # the store decides on another attempt
            "completions": 1,
            "parallelism": 1,
            "ttlSecondsAfterFinished": options.ttl_seconds,
            "template": {"metadata": meta, "spec": pod},
        }
        if rollout.config.timeout_seconds is not None:
            spec["activeDeadlineSeconds"] = self.deadline(rollout.config.timeout_seconds)
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, **meta}, "spec": spec}

    def secret(self, job: Manifest, token: str) -> Manifest:
        """Return the Secret of a Job that was created: the token for its rollout, and its secret variables.
        It goes with the Job.
        """
        meta = job["metadata"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"]}
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": meta["name"], "labels": self._labels, "ownerReferences": [owner]},
            "stringData": {"AGL_TOKEN": token, **secret_variables(self.options.env)},
        }

    def deadline(self, timeout: float) -> int:
        """Return the seconds after which Kubernetes ends the Job of a rollout with this limit: a runner that
        is alive ends it earlier.
        """
        return math.ceil(self.options.pending_seconds + timeout + self.options.drain_seconds + GRACE_SECONDS)
