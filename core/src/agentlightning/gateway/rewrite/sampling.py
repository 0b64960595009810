"""How a call is sampled, and whether that is what the run trains on.

In training, selected calls to a trainable policy are sampled with the run's values. All of them are sent,
neutral ones too: an engine otherwise falls back, silently, to the model's own ``generation_config``
(say ``top_k`` 20).

Invariant: a call whose distribution could not be set is named so, never trained as if it had been.
"""

from __future__ import annotations

from typing import Any

import msgspec

from agentlightning.gateway.rewrite.guided_choice import is_plain_choice, use_structured_outputs

OFF_POLICY = "off-policy-sampling"
"""Reason of a call that was sampled otherwise than the run says."""


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

    def values(self) -> dict[str, Any]:
        """The values by their request names."""
        return msgspec.structs.asdict(self)


_NAMES = (*SamplingPolicy.__struct_fields__, "seed")
_SHAPING = {
    "logit_bias",
    "best_of",
    "use_beam_search",
    "length_penalty",
    "min_tokens",
    "ignore_eos",
    "bad_words",
    "allowed_token_ids",
    "logits_processors",
    "logits_processor",
    "custom_logit_processor",
    "guided_choice",
    "guided_json",
    "guided_regex",
    "guided_grammar",
    "structured_outputs",
    "structural_tag",
    "json_schema",
    "regex",
    "ebnf",
    "echo",
    "dynatemp_range",
    "typical_p",
    "mirostat",
}
"""Request fields that shape the distribution, or what is returned of it, beyond what the values undo."""
_NEUTRAL: tuple[Any, ...] = (None, False, 0, {}, [], "")


class SamplingDecision(msgspec.Struct, frozen=True):
    """What became of a request's sampling values."""

    used: dict[str, Any] = {}
    """Values sent to the engine."""
    asked: dict[str, Any] = {}
    """What the agent asked for, where it differs or shapes the distribution."""
    off_policy: bool = False
    guided: bool = False
    """Off policy only because the request names its allowed answers: trainable once these are known."""

    @property
    def masked(self) -> str | None:
        """``Call.masked`` of a call that was sampled so."""
        return OFF_POLICY if self.off_policy else None


def apply_sampling(
    body: dict[str, Any], *, policy: SamplingPolicy | None, greedy: bool, seed: int | None
) -> SamplingDecision:
    """Set the sampling of ``body`` (in place) and say what was done.

    ``policy``: the run's values, ``None`` to keep the agent's. ``greedy``: temperature 0. ``seed``: used
    unless the agent gave its own; under a run's values it is used in any case, because an agent that pins its
    seed would make all samples of a group the same, and nothing could be learned from them.
    """
    asked: dict[str, Any] = {}
    forced: dict[str, Any] = policy.values() if policy else {"temperature": 0.0} if greedy else {}
    for name, value in forced.items():
        if (wish := body.get(name)) is not None and wish != value:
            asked[name] = wish
        body[name] = value
    if seed is not None and (policy or body.get("seed") is None):
        if (pinned := body.get("seed")) is not None and pinned != seed:
            asked["seed"] = pinned
        body["seed"] = seed
    shaping = _shaping(body) if policy else {}
    use_structured_outputs(body)
    used = {name: body[name] for name in _NAMES if body.get(name) is not None}
    return SamplingDecision(used, asked | shaping, bool(shaping), is_plain_choice(shaping))


def _shaping(body: dict[str, Any]) -> dict[str, Any]:
    """Fields of ``body`` that make its distribution another one than the run's values describe."""
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


def check_echo(settings: SamplingDecision, echo: dict[str, Any]) -> SamplingDecision:
    """``settings`` corrected by what an engine says it used; off policy where it differs from what it got."""
    differs = {k: v for k, v in echo.items() if k in settings.used and k != "seed" and v != settings.used[k]}
    if not differs:
        return settings
    return msgspec.structs.replace(settings, used=settings.used | differs, off_policy=True, guided=False)


def ask_for_tokens(sent: dict[str, Any], api: str) -> None:
    """Have the engine return token ids and the logprob of each."""
    sent["return_token_ids"] = True
    sent.pop("include_reasoning", None)  # false: vLLM would keep the ids to itself, too
    if api == "chat":
        sent["logprobs"] = True
    elif not isinstance(sent.get("logprobs"), int) or sent["logprobs"] is False:
        sent["logprobs"] = 1  # not 0: some engines take that for "none"
