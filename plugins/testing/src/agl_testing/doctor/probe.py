"""The probe's session: the run's own parts opened in the temporary folder, and calls made by hand."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from agentlightning.algorithms.context import Context
from agentlightning.algorithms.tasks import task_batches
from agentlightning.credit.rules import UNREWARDED
from agentlightning.gateway import AttemptInfo
from agentlightning.terminal import plural
from agentlightning.train.config import from_fields
from agentlightning.train.configured import ConfiguredRun
from agentlightning.train.trainer import Trainer
from agentlightning.types import AttemptedRollout, AttemptStatus, Call, Record, RolloutStatus, UsageError
from agl_testing.doctor.figures import format_seconds
from agl_testing.doctor.findings import Findings

DEFAULT_SECONDS = 600.0
"""Time limit in seconds for a batch of rollouts whose agent has none."""
CONCURRENCY = 16
"""Concurrent rollouts of the probe for runs whose runners are separate processes."""


class CallFailed(UsageError):
    """A call without an answer from gateway or engine."""


class RolloutsTimedOut(UsageError):
    """Rollouts that exceeded their time limit."""


def probe_trainer(trainer: Trainer, scratch: Path) -> Trainer:
    """Return a copy of the trainer that writes only to ``scratch`` and has no trackers."""
    probe = copy.copy(trainer)
    probe._has_services = False
    probe.config = from_fields(
        {
            "output": scratch,
            "store": None,
            "trackers": [],
            "run": None,
            "resume": False,
            "runner": None,
            "concurrency": trainer.config.agent.concurrency or CONCURRENCY,
        },
        trainer.config,
    )
    return probe


def reads_rewards(trainer: Trainer) -> bool:
    """Whether the credit rule of the run reads rewards: without one, rollouts need none."""
    spec = trainer.plugins.table("agl_credit_rules").get(trainer.recipe.credit)
    return spec is None or not getattr(spec.rule, UNREWARDED, False)


def probe_tasks(configured: ConfiguredRun, k: int) -> list[Any]:
    """Return the first ``k`` tasks in training order; held-out tasks if there are none to train on."""
    tasks = configured.train or configured.val
    return (
        next(task_batches(tasks, min(k, len(tasks)), configured.trainer.config.training.seed))
        if tasks
        else []
    )


async def run_rollouts(
    findings: Findings, tasks: Sequence[Any], samples: int, *, name: str, policy: str | None = None
) -> list[Record]:
    """Return records of ``samples`` rollouts per task by the user's agent, one attempt each.

    Raises :class:`RolloutsTimedOut` when they exceed their time limits.
    """
    context = findings.require_context()
    once = msgspec.structs.replace(context.config, max_attempts=1, retry_on=[], retry_condition=[])
    rollouts = context.rollouts(
        tasks, samples, name=f"doctor/{name}", mode="train", policy=policy, config=once
    )
    ids = [rollout.rollout_id for rollout in rollouts]
    await context.store.enqueue_many_rollouts(rollouts)
    limit = time_limit(once.timeout_seconds, len(ids), concurrency(findings))
    done = await context.guard(context.store.wait_for_rollouts(ids, timeout=limit))
    if len(done) < len(ids):
        ended = {rollout.rollout_id for rollout in done}
        for late in [i for i in ids if i not in ended]:
            await context.store.update_rollout(late, RolloutStatus.CANCELLED, reason="cancelled: too slow")
        raise RolloutsTimedOut(
            f"{len(ids) - len(done)} of {plural(len(ids), 'rollout')} still ran after "
            f"{format_seconds(limit)}; "
            "give the agent a time limit (agent.timeout_seconds) and see where it waits"
        )
    # A reward that sees the group compares several rollouts of a task.
    return [*await (context.records if samples > 1 else context.store.records)(ids)]


def concurrency(findings: Findings) -> int:
    """Return the number of concurrent rollouts in the probe."""
    return findings.require_configured().trainer.config.agent.concurrency or CONCURRENCY


def time_limit(timeout: float | None, rollouts: int, workers: int) -> float:
    """Return the seconds within which rollouts with this time limit must have ended."""
    return DEFAULT_SECONDS if timeout is None else 30.0 + -(-rollouts // workers) * (timeout + 5.0)


class ProbeAttempt:
    """Calls to the policy through the gateway, as one attempt."""

    def __init__(self, context: Context, lease: AttemptedRollout, key: str) -> None:
        self.context = context
        self.lease = lease
        self.headers = {"Authorization": f"Bearer {key}"}

    async def ask(self, body: dict[str, Any], key: str | None = None) -> tuple[int, dict[str, Any]]:
        """Return (HTTP status, answer) of a chat completion."""
        headers = self.headers if key is None else {"Authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession() as http, self._post(http, body, headers) as response:
            return response.status, json.loads(await response.read())

    async def chat(self, messages: Sequence[Any], **fields: Any) -> dict[str, Any]:
        """Return the assistant's message. Raises :class:`CallFailed` with any other answer."""
        status, answer = await self.ask({"messages": list(messages), **fields})
        if status != 200:
            raise CallFailed(f"the engine answered with status {status}: {json.dumps(answer)[:500]}")
        message: dict[str, Any] = answer["choices"][0]["message"]
        return message

    async def stream(self, messages: Sequence[Any], **fields: Any) -> tuple[float, float]:
        """Return seconds to the first chunk and to the end of an answer."""
        body = {"messages": list(messages), "stream": True, **fields}
        began, first = time.perf_counter(), None
        async with aiohttp.ClientSession() as http, self._post(http, body, self.headers) as response:
            if response.status != 200:
                text = (await response.text())[:500]
                raise CallFailed(f"the engine answered with status {response.status}: {text}")
            async for line in response.content:
                if first is None and line.startswith(b"data:"):
                    first = time.perf_counter() - began
        if first is None:
            raise CallFailed("the engine's stream ended without a single piece")
        return first, time.perf_counter() - began

    async def calls(self) -> list[Call]:
        """Return the recorded calls."""
        ids = self.lease.rollout.rollout_id, self.lease.attempt.attempt_id
        return await self.context.store.query_calls(*ids)

    def _post(self, http: aiohttp.ClientSession, body: dict[str, Any], headers: dict[str, str]) -> Any:
        url = f"{self.context.gateway.url}/chat/completions"
        limit = aiohttp.ClientTimeout(total=self.context.config.timeout_seconds or DEFAULT_SECONDS)
        model = next(iter(self.context.drivers))
        return http.post(url, json={"model": model, **body}, headers=headers, timeout=limit)


@asynccontextmanager
async def open_probe_attempt(context: Context) -> AsyncIterator[ProbeAttempt]:
    """Open an attempt that may make calls."""
    lease = await context.store.start_rollout({}, resources_id=context.resources.ids[context.policy])
    attempt = lease.attempt
    key = context.gateway.open_attempt(
        AttemptInfo(
            rollout_id=attempt.rollout_id,
            attempt_id=attempt.attempt_id,
            fence=attempt.fence,
            seed=context.seed,
            tags={"agent": "doctor"},
        )
    )
    try:
        yield ProbeAttempt(context, lease, key)
    finally:
        await context.gateway.close_attempt(attempt.attempt_id)
        await context.store.update_attempt(attempt.rollout_id, attempt.attempt_id, AttemptStatus.SUCCEEDED)
