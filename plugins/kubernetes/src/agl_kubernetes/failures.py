"""Why a Job ended without an end of its attempt in the store, as kinds of the failure table.

The agent's fault is ``agent-raised`` (its container was killed for memory, or died), the deadline is
``timeout``; what happened to the pod is ``cancelled``, which is tried again by default: it was evicted or
deleted, or never started.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from agentlightning.types import AttemptStatus

UNRECOVERABLE: Final = 2
"""Exit status of ``agl runner`` for an error that a person must fix."""
NEVER_STARTS: Final = frozenset({"InvalidImageName", "ErrImageNeverPull"})
"""Reasons of a waiting container that no waiting mends."""
_PUT_OUT: Final = frozenset(
    {"Evicted", "Preempting", "NodeShutdown", "NodeLost", "Terminated", "NodeAffinity"}
)
_MESSAGE: Final = 400
"""Characters of a message that are kept, the last ones."""


class PodFailure(NamedTuple):
    """What an attempt ends with, because its pod cannot write it."""

    status: AttemptStatus
    reason: str
    exit_code: int | None = None


def condition(thing: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """Return the condition of this kind of a Job or pod, if it is true."""
    found = thing.get("status", {}).get("conditions") or []
    return next((one for one in found if one.get("type") == kind and one.get("status") == "True"), None)


def job_ended(job: Mapping[str, Any]) -> bool:
    """Return whether a Job is complete or has failed."""
    return condition(job, "Complete") is not None or condition(job, "Failed") is not None


def started(pod: Mapping[str, Any] | None) -> bool:
    """Return whether a container of the pod has run."""
    return any({"running", "terminated"} & {*state} for state in _states(pod))


def waiting_reason(pod: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return why a pod has not started, as a word and a message."""
    for state in _states(pod):
        if waiting := state.get("waiting"):
            return str(waiting.get("reason", "Waiting")), str(waiting.get("message", ""))
    for one in (pod or {}).get("status", {}).get("conditions") or []:
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return str(one.get("reason", "Unschedulable")), str(one.get("message", ""))
    return ("Pending", "") if pod is not None else ("NoPod", "the Job has no pod")


def never_started(pod: Mapping[str, Any] | None, seconds: float) -> PodFailure:
    """Return the failure of a pod that did not start within ``seconds``."""
    word, message = waiting_reason(pod)
    return _cancelled(f"{word}: the pod did not start within {seconds:g} s", message)


def failure_of(job: Mapping[str, Any], pod: Mapping[str, Any] | None) -> PodFailure:
    """Return why an ended Job has no end of its attempt."""
    failed = condition(job, "Failed") or {}
    if failed.get("reason") == "DeadlineExceeded":
        limit = job.get("spec", {}).get("activeDeadlineSeconds")
        text = f"timeout: DeadlineExceeded: the Job took longer than activeDeadlineSeconds ({limit} s)"
        return PodFailure(AttemptStatus.TIMEOUT, text)
    if pod is None:
        return _cancelled("PodDeleted: its pod was deleted", str(failed.get("message", "")))
    status = pod.get("status", {})
    if status.get("reason") in _PUT_OUT:
        return _cancelled(f"{status['reason']}: its pod was put out", str(status.get("message", "")))
    if (disrupted := condition(pod, "DisruptionTarget")) is not None:
        word = disrupted.get("reason", "DisruptionTarget")
        return _cancelled(f"{word}: its pod was put out", str(disrupted.get("message", "")))
    for state in _states(pod):
        if "terminated" in state:
            return _of_container(state["terminated"], pod)
    return never_started(pod, 0.0) if failed else _failed("the Job ended without running the rollout")


def _of_container(ended: Mapping[str, Any], pod: Mapping[str, Any]) -> PodFailure:
    code = int(ended.get("exitCode", 0))
    message = _tail(str(ended.get("message", "")))
    if ended.get("reason") == "OOMKilled":
        limits = pod.get("spec", {}).get("containers", [{}])[0].get("resources", {}).get("limits", {})
        text = f"agent-raised: OOMKilled: the container used more than its memory ({limits.get('memory')})"
        return PodFailure(AttemptStatus.FAILED, text, code)
    if code == 0:
        return _failed("the container ended without an end of the attempt")
    if code in (128 + signal.SIGTERM, 128 + signal.SIGINT):
        return _cancelled(f"the container was told to end ({_named(code)})", message)._replace(exit_code=code)
    text = f"agent-raised: the container ended with {_named(code)}"
    return PodFailure(AttemptStatus.FAILED, f"{text}: {message}" if message else text, code)


def _named(code: int) -> str:
    try:
        return f"exit status {code} ({signal.Signals(code - 128).name})"
    except ValueError:
        return f"exit status {code}"


def _states(pod: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    for one in (pod or {}).get("status", {}).get("containerStatuses") or []:
        yield one.get("state") or {}


def _cancelled(what: str, message: str) -> PodFailure:
    text = f"cancelled: {what}"
    return PodFailure(AttemptStatus.FAILED, f"{text}: {_tail(message)}" if message else text)


def _failed(what: str) -> PodFailure:
    return PodFailure(AttemptStatus.FAILED, f"failed: {what}")


def _tail(message: str) -> str:
    return message.strip()[-_MESSAGE:]
