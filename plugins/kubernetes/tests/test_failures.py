"""Pods that fail: what the store is told, as kinds of the failure table."""

from __future__ import annotations

import re
from typing import Any

import pytest

from agentlightning.types import AttemptStatus
from agentlightning.types.failure import RETRIED_KINDS, failure_kind
from agl_kubernetes.failures import failure_of, never_started, started, waiting_reason


def job(reason: str = "BackoffLimitExceeded", **spec: Any) -> dict[str, Any]:
    condition = {"type": "Failed", "status": "True", "reason": reason, "message": "it failed"}
    return {"metadata": {"name": "j"}, "spec": spec, "status": {"conditions": [condition]}}


def pod(state: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    states = [] if state is None else [{"name": "runner", "state": state}]
    limits = {"resources": {"limits": {"memory": "512Mi"}}}
    return {"spec": {"containers": [limits]}, "status": {"containerStatuses": states, **status}}


def ended(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


PUT_OUT = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "PreemptionByScheduler",
    "message": "for x",
}


@pytest.mark.parametrize(
    ("of_job", "of_pod", "kind", "said"),
    [
        (job(), pod(ended(137, "OOMKilled")), "agent-raised", "OOMKilled: .* its memory \\(512Mi\\)"),
        (job(), pod(ended(139)), "agent-raised", "exit status 139 \\(SIGSEGV\\)"),
        (job(), pod(ended(7, message="a last line")), "agent-raised", "exit status 7: a last line"),
        (job(), pod(ended(143)), "cancelled", "was told to end"),
        (job(), pod(ended(1), reason="Evicted", message="disk"), "cancelled", "Evicted: .*disk"),
        (job(), pod(ended(137), conditions=[PUT_OUT]), "cancelled", "PreemptionByScheduler: .*for x"),
        (job(), None, "cancelled", "PodDeleted"),
        (
            job("DeadlineExceeded", activeDeadlineSeconds=9),
            None,
            "timeout",
            "activeDeadlineSeconds \\(9 s\\)",
        ),
        (job(), pod(ended(0, "Completed")), "failed", "without an end of the attempt"),
    ],
)
def test_each_way_to_fail_has_its_kind(
    of_job: dict[str, Any], of_pod: dict[str, Any] | None, kind: str, said: str
) -> None:
    found = failure_of(of_job, of_pod)
    assert failure_kind(found.reason) == kind
    assert (found.status is AttemptStatus.TIMEOUT) == (kind == "timeout")
    assert re.search(said, found.reason)


def test_what_happened_to_the_pod_is_tried_again_and_the_agents_own_fault_is_not() -> None:
    assert "cancelled" in RETRIED_KINDS and "agent-raised" not in RETRIED_KINDS


def test_a_pod_that_never_starts_says_why() -> None:
    waiting = pod({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}})
    assert not started(waiting) and waiting_reason(waiting) == ("ImagePullBackOff", "no such image")
    found = never_started(waiting, 300)
    assert found.reason == "cancelled: ImagePullBackOff: the pod did not start within 300 s: no such image"
    blocked = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    assert waiting_reason(pod(conditions=[blocked])) == ("Unschedulable", "0/3 nodes")
    assert waiting_reason(None)[0] == "NoPod"


def test_a_long_message_keeps_its_end() -> None:
    assert failure_of(job(), pod(ended(1, message="x" * 9000 + "the end"))).reason.endswith("the end")
    assert len(failure_of(job(), pod(ended(1, message="x" * 9000))).reason) < 600
