"""Training: recipes as data, rows with their accounts (ledgers, fingerprints, links, reports), progress."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from agentlightning.types.arrays import Flags, Floats, Ints, make_arrays
from agentlightning.types.base import JsonDump, Model
from agentlightning.types.failure import failures_in_words
from agentlightning.types.record import Grammar
from agentlightning.types.tokens import TokenIds


class Segment(Model):
    """The tokens ``[start, end)`` of a row that are the response of one call."""

    call_id: str
    start: int
    end: int
    advantage: float
    trained: bool = True
    """False: re-used context whose tokens are trained in another row, or a masked call."""
    off_policy: bool = False
    """Its tokens were drawn from another distribution than the policy's at the row's temperature, with the
    row's logprobs: the loss weighs each by importance (``Recipe.off_policy_cap``)."""


class Row(Model):
    """One training sequence.

    All per-token arrays have the length of ``token_ids``; position ``t`` is about predicting
    ``token_ids[t]`` from the tokens before it. Outside the mask, weights, advantages and logprobs are 0 and
    versions are -1. A list that is given for one of them becomes an array.
    """

    row_id: str
    rollout_id: str
    policy: str
    token_ids: TokenIds
    mask: Flags
    """1 where the token is trained."""
    advantages: Floats
    logprobs: Floats
    """Behaviour logprobs, as captured."""
    weights: Floats
    """Share of the token in the loss; sums over the step's batch as the recipe's ``loss_aggregation`` says.
    """
    versions: Ints
    segments: list[Segment] = []
    temperature: float = 1.0
    """Temperature the trained tokens were sampled at (the trainer divides its logits by it)."""
    allowed: dict[int, list[list[int]]] = {}
    """Guided choice: start of a segment → allowed token sequences."""
    grammars: dict[int, Grammar] = {}
    """Structured output: start of a segment → the grammar that its tokens were sampled under."""
    metadata: dict[str, Any] = {}

    def __post_init__(self) -> None:
        make_arrays(self, token_ids=TokenIds, mask=Flags, versions=Ints)
        make_arrays(self, advantages=Floats, logprobs=Floats, weights=Floats)

    @property
    def trained_tokens(self) -> int:
        """Number of trained tokens of this row."""
        return self.mask.tobytes().count(b"\x01")


class Ledger(Model):
    """The account of every call of one rollout. ``made == trained + sum(left_out.values())``."""

    rollout_id: str
    made: int = 0
    recorded: int = 0
    with_ids: int = 0
    merged: int = 0
    """Calls that share a row with an earlier one (already counted in ``trained``)."""
    trained: int = 0
    off_policy: int = 0
    """Trained calls that were sampled otherwise than the run's policy (already counted in ``trained``)."""
    left_out: dict[str, int] = {}
    """Reason → calls not trained: ``failed-rollout, no-reward, no-ids, not-selected, frozen-policy,
    superseded, error, off-policy-sampling, over-length, mismatch, stale, other-attempt, …``."""
    merge_failures: dict[str, int] = {}
    """Reason → merges that did not happen: ``think-stripped, template, retokenised, truncated, branch,
    …``.
    """
    verdicts: dict[str, int] = {}
    """Fidelity verdict → calls."""
    disputed: int = 0
    """Calls that the agent's own evidence speaks against (:func:`.verdicts.disputed`): of an agent that is
    trusted they are left out, of another one they are trained all the same."""

    @property
    def sums(self) -> bool:
        """Whether every call is accounted for."""
        return self.made == self.trained + sum(self.left_out.values())


class Batch(Model):
    """The rows of one step, with ledgers and metrics."""

    rows: list[Row]
    ledgers: list[Ledger] = []
    metrics: dict[str, float] = {}
    """``reward_mean``, ``reward_count``, ``groups``, ``groups_zero_std``, ``groups_of_one``, …"""
    policies: dict[str, dict[str, float]] = {}
    """In a run with named policies: policy → its own share of the metrics."""


class RolloutFingerprint(Model):
    """Hashes of one rollout's part of a training step; ``agl verify`` recomputes them from the store.

    Each digest is 32 hex digits of blake2b over a canonical encoding
    (:mod:`agentlightning.credit.fingerprint`).
    """

    run_id: str
    step: int
    rollout_id: str
    policy: str = "policy"
    attempt_id: str | None = None
    version: int | None = None
    """Policy version that the rows were built for."""
    status: str = ""
    """Status of the rollout when it was credited."""
    reward: float | None = None
    """The final reward it emitted; a failure with a reward in the failure table was credited with that one.
    """
    failure: str | None = None
    """Kind of failure; empty: none; ``None``: not logged."""
    calls: int = 0
    calls_digest: str = ""
    """Of every recorded call: ids, logprobs, version, tags, masks, fate."""
    parts: dict[str, dict[str, str]] = {}
    """Call id → part of the call (ids, logprobs, tags, request, …) → a short digest of it."""
    rewards_digest: str = ""
    inputs: dict[str, str] = {}
    """Digests of the other inputs: ``attempts`` (earlier ones), ``group`` (the place in it), ``supplied``
    (call ids of the agent's own record), ``wire`` (the call spans of the agent's process), ``content`` (whole
    calls with their texts), ``rollout`` and ``execution`` (all other fields of rollout and attempt).
    """
    rows: int = 0
    tokens_digest: str = ""
    """Of the rows' ids, masks, behaviour logprobs and versions."""
    advantages_digest: str = ""
    weights_digest: str = ""
    ledger: dict[str, int] = {}
    """``made``, ``trained``, and the counts by reason of the rest."""


class StepReport(Model):
    """The report of one training step, for trackers, hooks, ``metrics.jsonl`` and the store."""

    run_id: str
    step: int
    policy: str
    policy_version: int
    metrics: dict[str, float] = {}
    seconds: dict[str, float] = {}
    """Phase → wall seconds: ``rollout, credit, update, sync``."""
    rows_digest: str | None = None
    """sha256 over the rows, in canonical order."""
    params_digest: str | None = None
    """sha256 over the parameters after the step."""
    version: int | None = None
    """Policy version that the rows were built for; ``policy_version`` is the one after the step."""
    versions: dict[str, int | None] = {}
    """In a run with named policies: that version for every policy that the step trained."""
    terms_digest: str | None = None
    """Digest of the recipe and failure table that the step was credited by."""
    reason: str = ""
    """The commonest reason for which rollouts of the step failed."""

    def failures_text(self) -> str:
        """Return how many rollouts of the step failed and how these count, with a reason; else nothing."""
        m = self.metrics
        failed = int(m.get("rollouts_failed", 0) + m.get("rollouts_no_reward", 0))
        n = int(m.get("rollouts", 0))
        left_out = min(failed, n - int(m.get("reward_count", n)))
        return failures_in_words(failed, left_out, n, self.reason)


AuditLinkKind = Literal["begin", "resume", "step", "evaluation", "checkpoint", "search", "edit", "end"]


class AuditLink(Model):
    """One entry of a run's chain: a record, bound by its hash to everything before it.

    Links are only added, never replaced: a resumed run adds later links for the steps it makes again.
    """

    run_id: str
    number: int
    """0, 1, 2, …"""
    kind: AuditLinkKind
    name: str
    """Its subject: ``0/policy`` (a step's number and policy), an evaluation's batch, a checkpoint's folder.
    """
    body: dict[str, Any] = {}
    """The record as plain values; of files and of a step's fingerprints, the digests."""
    fingerprints: list[RolloutFingerprint] = []
    """Of an evaluation's rollouts. A step's fingerprints are stored apart."""
    previous: str = ""
    """Head of the previous link."""
    head: str = ""
    """sha256 over all of the above (:func:`agentlightning.credit.digest.compute_head`)."""
    signature: str | None = None
    """HMAC-SHA256 of the head, if the run has a key (``AGL_SIGNING_KEY``)."""


class Evaluation(Model):
    """Mean reward of a policy on a dataset, with its 95 % interval."""

    name: str
    n: int
    """Number of rollouts."""
    reward: float
    """Mean over the rollouts that have a reward."""
    ci: tuple[float, float] | None = None
    """95 % interval; ``None`` if it cannot be estimated."""
    interval: str = ""
    """How the interval was computed (:mod:`agentlightning.algorithms.intervals`), or why not."""
    failed: int = 0
    """Rollouts that failed, or succeeded without a reward."""
    left_out: int = 0
    """Of these, those that the failure table gives no reward: they are no part of the mean."""
    reason: str = ""
    """The commonest reason of the failures."""
    rewards: list[float | None] = []
    """Of each rollout; ``None``: left out."""
    seconds: float = 0.0
    metrics: dict[str, float] = {}

    def interval_text(self) -> str:
        """Return the interval and its kind as text."""
        kind = f" ({self.interval})" if self.interval else ""
        return f"–{kind}" if self.ci is None else f"{self.ci[0]:.3f} – {self.ci[1]:.3f}{kind}"

    def failures_text(self) -> str:
        """Return how many rollouts failed and how these count, with a reason; empty if none did."""
        return failures_in_words(self.failed, self.left_out, self.n, self.reason)


# ---------------------------------------------------------------------------------------------------- recipes
LossAggregation = Literal["rollout", "nested", "call", "token", "constant"]


class Correction(JsonDump, msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """How tokens are weighed whose engine and trainer disagree about their probability.

    The ratio of a token is the trainer's probability before the update over the engine's recorded one.
    """

    kind: Literal["truncate", "mask"] = "truncate"
    """``truncate``: the ratio, at most ``cap`` (TIS); ``mask``: the ratio, and 0 outside ``[floor, cap]``
    (MIS, IcePop)."""
    level: Literal["token", "sequence"] = "token"
    """Whether each token has a ratio of its own, or that of its whole call, the product of its tokens'."""
    cap: float = 2.0
    """The largest weight of a token."""
    floor: float | None = None
    """``mask``: the smallest weight; ``None``: 1 / ``cap``."""
    threshold: float = 0.01
    """Fresh tokens are weighed in a step in which the logprobs of engine and trainer differ by at least this
    in the mean; 0: in every step."""

    def acts(self, gap: float) -> bool:
        """Return whether fresh tokens are weighed where logprobs differ by ``gap`` in the mean."""
        return not gap < self.threshold

    def reason(self, gap: float) -> str:
        """Return why a step with this gap is corrected, or is not, for a log."""
        differ = f"engine and trainer differ by {gap:.3g} in the mean logprob of a token"
        if self.acts(gap):
            return (
                f"{differ}, at or above recipe.correction.threshold = {self.threshold:g}: tokens are weighed "
                "by importance from this step on"
            )
        return (
            f"{differ}, below recipe.correction.threshold = {self.threshold:g}: tokens are no longer weighed "
            "by importance"
        )


class Recipe(JsonDump, msgspec.Struct, kw_only=True, frozen=True):
    """An RL algorithm as data. It owns no loop: a driver runs it."""

    name: str
    group_size: int = 8
    """Rollouts per task."""
    credit: str = "broadcast"
    """Credit rule: rewards → one number per call."""
    gamma: float = 1.0
    """Discount of the rule ``discounted`` and of ``step_weight``, per later call; with a critic that of GAE,
    per token.
    """
    lam: float = 1.0
    """λ of generalised advantage estimation (arXiv 1506.02438), which needs a critic."""
    step_weight: float = 0.0
    """Weight of a second advantage, which compares calls of a group that were made in the same state by their
    discounted returns (GiGPO, :mod:`agentlightning.credit.baselines`); 0: off."""
    baseline: str = "group"
    """``group`` (mean of the group), ``rloo`` (mean of the others), ``batch``, ``none``, or a plugin's."""
    group_by: list[str] = msgspec.field(default_factory=lambda: ["group"])
    """Keys a baseline groups by: ``group`` (samples of one task), ``task``, ``batch``, ``policy``, any tag;
    and ``turn``: within a group, the n-th call of an agent is compared with its n-th calls in other rollouts.
    The built-in recipes name it for rules that give a rollout's calls credits of their own.
    """
    scale: Literal["std", "none"] = "none"
    """Divide advantages by the group's standard deviation (GRPO)."""
    loss_aggregation: LossAggregation = "rollout"
    """The unit over which the loss is a mean (:mod:`agentlightning.credit.rows`)."""
    loss_divisor: float = 1.0
    """Divisor of ``loss_aggregation="constant"``: a token weighs 1 / (rollouts · loss_divisor)."""
    ratio_level: Literal["token", "sequence"] = "token"
    """Whether the probability ratio is taken for each token, or for each call as a whole (GSPO; TRL's
    ``importance_sampling_level``)."""
    loss: str = "clip"
    """``clip`` (PPO's surrogate), ``cispo`` (the ratio is a bounded weight) or ``reinforce`` (no ratio)."""
    clip_low: float = 0.2
    """Ratios below ``1 - clip_low`` are clipped."""
    clip_high: float = 0.2
    """Ratios above ``1 + clip_high`` are clipped; for ``cispo`` that is the largest weight."""
    clip_ratio_c: float | None = None
    """Dual clip for negative advantages (arXiv 1912.09729); ``None``: off."""
    kl: float = 0.0
    """Coefficient of the KL penalty to the reference policy."""
    entropy: float = 0.0
    """Coefficient of the entropy bonus."""
    epochs: int = 1
    """Passes over the batch of a step."""
    minibatches: int = 1
    """Optimizer steps per batch and epoch."""
    max_staleness: int = 0
    """A token sampled more than this many versions ago is not trained (reason ``stale``)."""
    importance_cap: float | None = None
    """Truncated importance sampling for stale tokens; ``None``: off."""
    correction: Correction | None = msgspec.field(default_factory=Correction)
    """Importance weights of tokens that the version being trained sampled, where its engine computes other
    probabilities than the trainer (``docs/credit.md``). Kind, level and floor hold for stale tokens too,
    whose cap is ``importance_cap``. ``None``: off."""
    off_policy_cap: float | None = 2.0
    """Truncated importance sampling for calls that were sampled otherwise than the policy (grammar, forced
    tool, own temperature) where the engine reports the probabilities of what it drew: the largest weight of
    a token. ``None``: such calls are left out, as ``off-policy-sampling``."""
    filter_zero_std_groups: bool = False
    """Leave groups with equal credit out of the normalisation (their gradient is zero anyway)."""
    temperature: float = 1.0
    """Temperature at which rollouts are sampled, and at which probabilities are trained."""
    top_p: float = 1.0
    """Share of the probability that is sampled from; 1: all."""
    top_k: int = -1
    """Number of most likely tokens that are sampled from; -1: all."""
    critic: bool = False
    """Advantages come from a value model (GAE); a call's credit is the return it learns."""
    merge: bool = True
    """Merge calls that extend each other into one row."""

    def uses(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults: a driver must implement these."""
        default, own = Recipe(name=self.name), msgspec.structs.asdict(self)
        return {name: value for name, value in own.items() if value != getattr(default, name)}


# --------------------------------------------------------------------------------------------------- progress
class Progress(Model):
    """A long piece of work: the rollouts of a step or of an evaluation, or the update of a policy."""

    what: str
    """``rollouts``, ``evaluation <name>``, ``update``."""
    step: int | None = None
    """The step, from 0; ``None`` for an evaluation."""
    policy: str | None = None
    """The policy that is updated, if a run has several."""
    unit: str = "rollouts"
    done: int = 0
    total: int = 0
    """In ``unit``; 0: not known."""
    tokens: int = 0
    """Tokens computed so far."""
    rollouts: list[str] = []
    """Ids of the rollouts that are waited for: whoever shows progress counts their ends and their calls."""
    memory: dict[str, int] = {}
    """Process → bytes of its memory (resident set size)."""
