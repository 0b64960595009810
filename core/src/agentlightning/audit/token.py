"""Explain one token: where it stands, what pulls at it, and its logprob then and now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentlightning.audit.run import CannotRecompute, Run
from agentlightning.audit.standing import Standing
from agentlightning.credit.explain import place_of, trace_token
from agentlightning.credit.pulls import Token, in_sum, pulls
from agentlightning.credit.trainable import version_of
from agentlightning.specs import Inspector
from agentlightning.types import Call, UsageError

RECORDED = (
    "optimizer_steps",
    "steps_skipped",
    "clip_fraction",
    "entropy",
    "kl_reference",
    "logprob_gap_max",
)
"""Metrics of a step that say what its update did to tokens like this one."""


class NoSuchToken(UsageError, LookupError):
    """The call has no such token."""


async def of_token(run: Run, stand: Standing, call: Call, index: int, policy: Path | None) -> dict[str, Any]:
    """All there is to say about a token of a response. ``policy``: as in :func:`.explain.explain`."""
    facts = _facts(run, stand, call, index, policy)
    return {**facts, **await _pulled(run, stand, call, facts)}


def _facts(run: Run, stand: Standing, call: Call, index: int, policy: Path | None) -> dict[str, Any]:
    """What is on record of a token, and what the driver's inspector says of it."""
    ids = call.response_ids or []
    if not 0 <= index < len(ids):
        raise NoSuchToken(f"call {call.call_id} has {len(ids)} response tokens; there is no token {index}")
    looked = _look(run, policy, call.policy)
    found = place_of(stand.batch.rows, call.call_id) if stand.batch else None
    traced = trace_token(stand.batch, call.call_id, index) if stand.batch and found else {}
    logprob_then = call.logprobs[index] if call.logprobs and index < len(call.logprobs) else None
    out = {
        "index": index,
        "of": len(ids),
        "id": ids[index],
        "text": None,
        "around": None,
        "position": traced.get("position"),
        "mask": 1 if traced else 0,
        "version": call.policy_version,
        "logprob_then": logprob_then,
        "logprob_now": None,
        "now": looked if isinstance(looked, str) else None,
        "advantage": traced.get("advantage"),
        "weight": traced.get("weight"),
        "weight_times_advantage": traced.get("weight_times_advantage"),
        "critic": run.recipe.critic,
    }
    if isinstance(looked, str):
        return out
    inspector, folder = looked
    texts = inspector.decode(ids)
    out |= {"text": texts[index], "around": ["".join(texts[:index]), "".join(texts[index + 1 :])]}
    if found is None:
        return {**out, "now": "not scored: the token is in no row"}
    now = inspector.logprobs(found[0])[found[1].start + index]
    return {**out, "logprob_now": now, "now": f"under {folder}"}


async def _pulled(run: Run, stand: Standing, call: Call, token: dict[str, Any]) -> dict[str, Any]:
    """Everything that pulls at a token, and what was recorded of the step's update."""
    if not token["mask"]:
        return {"pulls": [], "pulled": None, "recorded": {}}
    recorded = await _recorded(run, stand, call.policy)
    at = Token(
        advantage=token["advantage"],
        weight=token["weight"],
        logprob=token["logprob_then"],
        version=-1 if call.policy_version is None else call.policy_version,
        trained=version_of(stand.versions, call.policy),
        now=token["logprob_now"],
        gap=recorded.get("logprob_gap_max"),
    )
    found = pulls(run.recipe, at)
    untouched = recorded.get("steps_skipped") and not recorded.get("optimizer_steps")
    said = (
        "the step's update was left out: its loss or gradient was not finite" if untouched else in_sum(found)
    )
    if stand.sealed is None:
        said = f"not trained by any step on record; it would be: {said}"
    return {"pulls": [pull._asdict() for pull in found], "pulled": said, "recorded": recorded}


async def _recorded(run: Run, stand: Standing, policy: str) -> dict[str, float]:
    """What the step's report says of its update, over all of its tokens."""
    if stand.sealed is None:
        return {}
    mine = [
        report.metrics
        for report in await run.store.query_steps(run.run_id)
        if report.step == stand.sealed.step and (not run.trained or report.policy == policy)
    ]
    return {name: mine[-1][name] for name in RECORDED if name in mine[-1]} if mine else {}


def _look(run: Run, policy: Path | None, name: str) -> tuple[Inspector, Path] | str:
    """An inspector of the newest policy of the run (or of ``policy``), or why there is none."""
    folders = [policy] if policy is not None else [folder for folder, _ in run.policies(name)]
    if not folders:
        return "not available: the run's folder holds no policy (give --policy FOLDER)"
    try:
        return run.inspector(folders[0]), folders[0]
    except CannotRecompute as error:
        return f"not available: {error}"
