"""Explain one token: its place, the loss terms at it, and its logprob then and now."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentlightning.credit.eligibility import version_of
from agentlightning.specs import Inspector
from agentlightning.types import Call, Row, Segment, UsageError
from agl_audit.explanation.advantage import find_segment, trace_token
from agl_audit.explanation.loss_terms import TrainedToken, loss_terms, net_effect
from agl_audit.explanation.recomputed_step import RecomputedStep
from agl_audit.run import CannotRecompute, OpenRun

RECORDED = (
    "optimizer_steps", "steps_skipped", "clip_fraction", "entropy", "kl_reference", "logprob_gap_max",
    "correction/corrected",
)  # fmt: skip
"""Metrics of a step about its update of tokens."""


class NoSuchToken(UsageError, LookupError):
    """The call has no such token."""


async def of_token(
    run: OpenRun, step: RecomputedStep, call: Call, index: int, policy: Path | None
) -> dict[str, Any]:
    """Return the explanation of a response token: its recorded values, those of the driver's inspector, and
    the loss terms at it. ``policy``: as for :func:`.explain.explain`.
    """
    ids: Sequence[int] = call.response_ids or ()
    if not 0 <= index < len(ids):
        raise NoSuchToken(f"call {call.call_id} has {len(ids)} response tokens; there is no token {index}")
    found = find_segment(step.batch.rows, call.call_id) if step.batch else None
    traced = trace_token([found[0]], call.call_id, index) if found else {}
    out: dict[str, Any] = {
        "index": index,
        "of": len(ids),
        "id": ids[index],
        "text": None,
        "around": None,
        "mask": 1 if found else 0,
        "version": call.version_of_token(index),
        "logprob_then": call.logprobs[index] if call.logprobs and index < len(call.logprobs) else None,
        "logprob_now": None,
        "now": None,
        **{name: traced.get(name) for name in ("position", "advantage", "weight", "weight_times_advantage")},
        "critic": run.recipe.critic,
        "off_policy": bool(found and found[1].off_policy),
        "said": _said(found, index),
        "hint": found[0].metadata.get("hint") if found else None,
    }
    folders = [policy] if policy is not None else [folder for folder, _ in run.policies(call.policy)]
    if not folders:
        out["now"] = "not available: the run's folder holds no policy (give --policy FOLDER)"
    else:
        try:
            out |= _inspected(run.inspector(folders[0]), folders[0], ids, index, found)
        except CannotRecompute as error:
            out["now"] = f"not available: {error}"
    return {**out, **await _pulled(run, step, call, out)}


def _said(found: tuple[Row, Segment] | None, index: int) -> dict[str, float]:
    """Return what edited the batch by: name, e.g. ``teacher`` → its logprob of the token."""
    if found is None:
        return {}
    row, segment = found
    return {name: values[segment.start + index] for name, values in row.metadata.get("tokens", {}).items()}


def _inspected(
    inspector: Inspector, folder: Path, ids: Sequence[int], index: int, found: tuple[Row, Segment] | None
) -> dict[str, Any]:
    """Return the text of a token, and its logprob under the policy in ``folder``."""
    texts = inspector.decode(ids)
    out = {"text": texts[index], "around": ["".join(texts[:index]), "".join(texts[index + 1 :])]}
    if found is None:
        return {**out, "now": "not scored: the token is in no row"}
    row, segment = found
    (now,) = inspector.logprobs([row])
    return {**out, "logprob_now": now[segment.start + index], "now": f"under {folder}"}


async def _pulled(run: OpenRun, step: RecomputedStep, call: Call, token: dict[str, Any]) -> dict[str, Any]:
    """Return all loss terms at a token, and the recorded metrics of the step's update."""
    if not token["mask"]:
        return {"pulls": [], "pulled": None, "recorded": {}}
    recorded = await _recorded(run, step, call.policy)
    at = TrainedToken(
        advantage=token["advantage"],
        weight=token["weight"],
        logprob=token["logprob_then"],
        version=-1 if token["version"] is None else token["version"],
        trained=version_of(step.versions, call.policy),
        now=token["logprob_now"],
        gap=recorded.get("logprob_gap_max"),
        corrected=None if (acted := recorded.get("correction/corrected")) is None else bool(acted),
        off_policy=bool(token["off_policy"]),
    )
    found = loss_terms(run.recipe, at)
    said = net_effect(found)
    if recorded.get("steps_skipped") and not recorded.get("optimizer_steps"):
        said = "the step's update was left out: its loss or gradient was not finite"
    if step.fingerprint is None:
        said = f"not trained by any step on record; it would be: {said}"
    return {"pulls": [pull._asdict() for pull in found], "pulled": said, "recorded": recorded}


async def _recorded(run: OpenRun, step: RecomputedStep, policy: str) -> dict[str, float]:
    """Return the metrics of the step's update, over all tokens, from its report."""
    if step.fingerprint is None:
        return {}
    mine = [
        report.metrics
        for report in await run.store.query_steps(run.run_id)
        if report.step == step.fingerprint.step and (not run.trained or report.policy == policy)
    ]
    return {name: mine[-1][name] for name in RECORDED if name in mine[-1]} if mine else {}
