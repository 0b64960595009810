"""Engine and gateway: the policy is served, and a call is on disk before the gateway answers it."""

from __future__ import annotations

import re
import time
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from agentlightning.store.sqlite.store import SQLiteStore
from agentlightning.types import UsageError
from agl_testing.doctor.checks.store import copy_as_if_killed
from agl_testing.doctor.figures import format_seconds
from agl_testing.doctor.findings import Findings
from agl_testing.doctor.memory import measure
from agl_testing.doctor.probe import (
    CallFailed,
    ProbeAttempt,
    open_probe_attempt,
    probe_tasks,
    probe_trainer,
)
from agl_testing.doctor.report import Check, Notes, failure

QUESTION = [{"role": "user", "content": "Count from one to twenty, in words."}]
TOKENS = 64
NOT_SERVED = "The driver could not serve the policy; its message says why."
MEMORY = (
    "Memory goes to options.max_num_seqs, max_len and dtype; `agl doctor` without a configuration shows the "
    "device."
)
OUT_OF_MEMORY = re.compile(r"memory|alloc|status -9|SIGKILL", re.I)
"""In the message of an error that can be about memory; the system kills without a word who asks too much."""


async def check_engine(findings: Findings) -> Check:
    """Start the driver, request a completion, and measure latency and speed."""
    configured = findings.require_configured()
    began = time.perf_counter()
    trainer = probe_trainer(configured.trainer, findings.scratch)
    known = probe_tasks(configured, findings.size.tasks)
    session = trainer.session(
        configured.agent, configured.train, known
    )  # scripted policies need tasks to answer
    try:
        context = findings.context = await findings.stack.enter_async_context(session)
    except Exception as error:
        check = failure("engine", error)
        if not isinstance(error, UsageError):
            check.advice = [NOT_SERVED]
        if isinstance(error, MemoryError) or OUT_OF_MEMORY.search(str(error)):
            check.advice.append(MEMORY)
        return check
    findings.start_seconds = time.perf_counter() - began
    findings.usage.append(measure("engine started"))
    assert context.driver is not None
    notes = Notes()
    async with open_probe_attempt(context) as calls:
        await calls.chat(QUESTION, max_tokens=2)  # warm-up
        first, total = await calls.stream(QUESTION, max_tokens=TOKENS)
        recorded = await calls.calls()
        for name in context.resources.named_policies:
            await _answers(notes, calls, name)
    tokens = len(recorded[-1].response_ids or ())
    if not tokens:
        notes.fail(
            "the engine gives no token ids",
            "Serve the policy with an engine that does (`agl-local`, or vLLM 0.10.2 or newer): nothing is "
            "trained without.",
        )
    rate = (tokens - 1) / (total - first) if tokens > 1 and total > first else None
    speed = f", {rate:.0f} tokens/s for one caller" if rate else ""
    title = (
        f"{configured.trainer.config.backend.driver} serves version {context.driver.version} after "
        f"{format_seconds(findings.start_seconds)}; first token in {1000 * first:.0f} ms{speed}"
    )
    return notes.check("engine", title, start_seconds=findings.start_seconds, first_token=first, rate=rate)


async def _answers(notes: Notes, calls: ProbeAttempt, name: str) -> None:
    """Check that a policy of a run with named policies answers."""
    try:
        await calls.chat(QUESTION, max_tokens=2, model=name)
    except CallFailed as error:
        notes.fail(f"policy {name!r} does not answer: {error}", "Look at its path, endpoint, model and key.")
    else:
        notes.fact(f"policy {name} answers")


async def check_gateway(findings: Findings) -> Check:
    """Check health, the refusal of a forged key, and that an answered call is on disk."""
    context = findings.require_context()
    notes = Notes()
    parts = urlsplit(context.gateway.url)
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"{parts.scheme}://{parts.netloc}/health") as response,
    ):
        health = await response.json()
    if health.get("status") != "ok":
        notes.fail(f"the gateway says {health}", "Look at its log; a paused gateway holds every call.")
    async with open_probe_attempt(context) as calls:
        refused, _ = await calls.ask({"messages": QUESTION}, key="agl-forged")
        began = time.perf_counter()
        await calls.chat(QUESTION, max_tokens=4)
        seconds = time.perf_counter() - began
        held = await _is_durable(calls, findings.scratch / "killed")
    if refused != 401:
        notes.fail(f"a forged key got status {refused}", "Tell us: nobody may call without an attempt's key.")
    if not held:
        notes.fail(
            "an answered call is not in the store's files", "Do not train: calls would be lost by a kill."
        )
    title = "a call is on disk before it is answered; a forged key is refused"
    return notes.check("gateway", title, call_seconds=seconds, durable=held)


async def _is_durable(calls: ProbeAttempt, folder: Path) -> bool:
    """Return whether a copy of the files, taken now, holds the attempt's calls."""
    attempt = calls.lease.attempt
    store = SQLiteStore(copy_as_if_killed(calls.context.folder / "store.sqlite", folder))
    try:
        found = await store.query_calls(attempt.rollout_id, attempt.attempt_id)
        return any(call.response_ids for call in found)
    finally:
        await store.close()
