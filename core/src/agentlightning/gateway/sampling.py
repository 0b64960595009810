"""The sampling of a call: the run's values in training, and a record of every departure from them.

Selected training calls to a trainable policy are sampled with the run's values. All values are sent, neutral
ones too: otherwise an engine silently uses the model's own ``generation_config`` (say ``top_k`` 20).

Invariant: a call whose distribution could not be set is recorded as such, and never trained as if it had
been.

A request that constrains its answer (a guided choice, structured output, a forced tool) is sampled from what
the constraint allows. It is trained like any other if the driver can make the engine's masks again and the
engine's logprobs are those of the masked distribution; an engine confirms both by answering with
``guided_choice_ids`` or ``grammar``. Without them the call is marked :data:`OFF_POLICY`, and credit trains it
by importance weights if the route's logprobs are ``processed`` (:attr:`SamplingDecision.reported`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agentlightning.credit.eligibility import OFF_POLICY


class SamplingPolicy(msgspec.Struct, kw_only=True, frozen=True):
    """The run's sampling values for one policy. The defaults sample from the model's own distribution."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    """-1: off."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0


_NAMES = (*SamplingPolicy.__struct_fields__, "seed")
_SHAPING = {
    "allowed_token_ids", "bad_words", "best_of", "custom_logit_processor", "dynatemp_range", "ebnf", "echo",
    "guided_choice", "guided_grammar", "guided_json", "guided_regex", "ignore_eos", "json_schema",
    "length_penalty", "logit_bias", "logits_processor", "logits_processors", "min_tokens", "mirostat",
    "regex", "structural_tag", "structured_outputs", "typical_p", "use_beam_search",
}  # fmt: skip
"""Request fields that change the distribution, or its logprobs, whatever the values are."""
_CONSTRAINTS = frozenset(
    {
        "guided_choice", "guided_grammar", "guided_json", "guided_regex", "response_format",
        "structured_outputs", "tool_choice",
    }
)  # fmt: skip
"""Request fields that say which answers are allowed."""
_REPORTED = _CONSTRAINTS | {
    "allowed_token_ids", "bad_words", "logit_bias", "min_tokens", "structural_tag"
}  # fmt: skip
"""Request fields whose effect processed logprobs show: they change logits before the token is drawn."""
_STRUCTURED = ("choice", "grammar", "json", "regex")
"""What ``guided_*`` are called in ``structured_outputs``."""
_NEUTRAL: tuple[Any, ...] = (None, False, 0, {}, [], "")


class SamplingDecision(msgspec.Struct, frozen=True):
    """How a call is sampled."""

    used: dict[str, Any] = {}
    """Values sent to the engine."""
    asked: dict[str, Any] = {}
    """The agent's wishes that were overruled, or that shape the distribution."""
    off_policy: bool = False
    guided: bool = False
    """Off policy only because the request constrains its answer: trainable if the engine says by which masks.
    """
    reported: bool = True
    """Whether processed logprobs show all that shapes the distribution."""

    @property
    def masked(self) -> str | None:
        """``Call.masked`` of the call."""
        return OFF_POLICY if self.off_policy else None


def apply_sampling(
    body: dict[str, Any], *, policy: SamplingPolicy | None, greedy: bool, seed: int | None
) -> SamplingDecision:
    """Set the sampling of ``body``, in place.

    ``policy``: the run's values, ``None`` to keep the agent's. ``greedy``: temperature 0. ``seed``: used
    unless the agent gave its own. Under a run's values it is always used: an agent that pins its seed would
    make all samples of a group equal, and nothing could be learned from them.
    """
    forced: dict[str, Any] = {"temperature": 0.0} if greedy else {}
    if policy:
        forced = msgspec.structs.asdict(policy)
    if seed is not None and (policy or body.get("seed") is None):
        forced["seed"] = seed
    asked = {name: wish for name, value in forced.items() if (wish := body.get(name)) not in (None, value)}
    body.update(forced)
    shaping = _shaping(body) if policy else {}
    use_structured_outputs(body)
    used = {name: body[name] for name in _NAMES if body.get(name) is not None}
    return SamplingDecision(
        used, asked | shaping, bool(shaping), is_constraint(shaping), _REPORTED.issuperset(_shaping(body))
    )


def _shaping(body: dict[str, Any]) -> dict[str, Any]:
    """Fields of ``body`` that change its distribution beyond the run's values."""
    out = {name: body[name] for name in _SHAPING.intersection(body) if body[name] not in _NEUTRAL}
    if out.get("best_of") == 1:
        del out["best_of"]
    choice = body.get("tool_choice")
    if isinstance(choice, dict) or choice == "required":  # engines force these with a grammar
        out["tool_choice"] = choice
    form = body.get("response_format")
    if isinstance(form, dict) and form.get("type") not in (None, "text"):
        out["response_format"] = form
    return out


def check_echo(decision: SamplingDecision, echo: dict[str, Any]) -> SamplingDecision:
    """Correct ``decision`` by the values that an engine reports; it is off policy if they differ."""
    differs = {k: v for k, v in echo.items() if k in decision.used and k != "seed" and v != decision.used[k]}
    if not differs:
        return decision
    return msgspec.structs.replace(decision, used=decision.used | differs, off_policy=True, guided=False)


def ask_for_tokens(sent: dict[str, Any], api: str) -> None:
    """Make the engine return token ids and the logprob of each."""
    sent["return_token_ids"] = True
    sent.pop("include_reasoning", None)  # with false, vLLM omits the ids too
    if api == "chat":
        sent["logprobs"] = True
    elif not isinstance(sent.get("logprobs"), int) or sent["logprobs"] is False:
        sent["logprobs"] = 1  # not 0: some engines return none for it


def is_constraint(shaping: Mapping[str, Any]) -> bool:
    """Whether nothing but constraints on the answer shapes the distribution."""
    return bool(shaping) and _CONSTRAINTS.issuperset(shaping)


def use_structured_outputs(body: dict[str, Any]) -> None:
    """Rename the ``guided_*`` fields to ``structured_outputs`` (in place), which engines share: vLLM has
    dropped the older fields and, given one, answers unconstrained without an error.
    """
    if body.get("structured_outputs") is None:
        guided = {
            kind: body.pop(f"guided_{kind}") for kind in _STRUCTURED if body.get(f"guided_{kind}") is not None
        }
        if guided:
            body["structured_outputs"] = guided


def is_allowed(allowed: Sequence[Sequence[int]], response: Sequence[int] | None) -> bool:
    """Whether a response is one of the allowed, with or without an end token, or the beginning of one."""
    if not response:
        return False
    ids = list(response)
    return any(ids == list(one[: len(ids)]) or ids[:-1] == list(one) for one in allowed)
