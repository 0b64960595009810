"""Names of spans and attributes.

``gen_ai.*`` are the OpenTelemetry semantic conventions for generative AI. The published Python package marks
all of them as moved, so they are constants here. ``agl.*`` are ours: token ids, rollouts and rewards have no
name in the conventions.
"""

from __future__ import annotations

from typing import Any, Final

from agentlightning._lazy import plugin_name

# Spans
CALL_SPAN: Final = "openai.chat.completion"
REWARD_SPAN: Final = "agentlightning.reward"
MESSAGE_SPAN: Final = "agentlightning.message"
OBJECT_SPAN: Final = "agentlightning.object"
EXCEPTION_SPAN: Final = "agentlightning.exception"
ANNOTATION_SPAN: Final = "agentlightning.annotation"
OPERATION_SPAN: Final = "agentlightning.operation"
ROLLOUT_SPAN: Final = "agentlightning.rollout"
COMMAND_SPAN: Final = "agentlightning.command"
"""One process of a program that is the agent (``agl_programs/commands/agent.py``)."""
BAD_RECORD_SPAN: Final = "agentlightning.bad_record"
"""Takes the place of an agent's span that cannot be a record (``capture/records.py``)."""

# GenAI conventions
OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
AGENT_NAME: Final = "gen_ai.agent.name"
AGENT_ID: Final = "gen_ai.agent.id"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
AWAIT_APPROVAL: Final = "await_approval"
"""Operation of a tool call that did not run, or not to its end, because a person has to agree: it runs again,
as ``execute_tool``.
"""
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_CALL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_CALL_RESULT: Final = "gen_ai.tool.call.result"
TOOL_DEFINITIONS: Final = "gen_ai.tool.definitions"
EVALUATION_NAME: Final = "gen_ai.evaluation.name"
EVALUATION_SCORE: Final = "gen_ai.evaluation.score.value"
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"

# Ours
ROLLOUT_ID: Final = "agl.rollout_id"
ATTEMPT_ID: Final = "agl.attempt_id"
TAG_PREFIX: Final = "agl.tag."
"""``agl.tag.node`` and the like carry the tags of a call."""
PROMPT_IDS: Final = "agl.prompt_token_ids"
RESPONSE_IDS: Final = "agl.response_token_ids"
LOGPROBS: Final = "agl.logprobs"
"""Packed: base64 of little-endian int32 (ids) or float32 (logprobs)."""
PROMPT_COUNT: Final = "agl.prompt_tokens"
RESPONSE_COUNT: Final = "agl.response_tokens"
TOKENS_DIGEST: Final = "agl.tokens_digest"
"""sha256 of prompt and response ids (see ``types.tokens.tokens_digest``): joins wire and gateway without a
second copy.
"""
LAYER: Final = "agl.layer"
"""``wire`` on spans the wire layer made."""
CHOICE: Final = "agl.choice"
PARTIAL: Final = "agl.partial"
"""On the wire layer's span of a call whose answer the agent did not read to its end: the ids are those that
it read.
"""
INTERRUPTED: Final = "agl.interrupted"
"""On a span that paused for a person's answer or left for another graph; it did not fail."""
REFUSED: Final = "agl.refused"
"""On the wire layer's span of a call that was answered with an HTTP error: its code, else its status."""
SELECTED: Final = "agl.selected"
"""``False`` on calls that a ``select`` left out of training."""
REWARD_VALUE: Final = "agl.reward.value"
REWARD_NAME: Final = "agl.reward.name"
REWARD_CALL: Final = "agl.reward.call_id"
REWARD_SPAN_ID: Final = "agl.reward.span_id"
REWARD_AGENT: Final = "agl.reward.agent"
REWARD_FINAL: Final = "agl.reward.final"
REWARD_DIMENSIONS: Final = "agl.reward.dimensions"
"""All numbers of a reward with several dimensions."""
REWARD_MISSING: Final = "agl.reward.missing"
"""Why a reward has no number."""
BAD_RECORD_REASON: Final = "agl.bad_record.reason"
BAD_RECORD_NAME: Final = "agl.bad_record.name"
BAD_RECORD_GIVEN: Final = "agl.bad_record.given"
"""The error of a span that cannot be a record, its name, and a short view of its attributes."""
SUPPLIED: Final = "agl.supplied"
"""On a reward that came with an agent-supplied transition; in an attempt's metadata, the ids of the calls
that its agent's own record names: the others are replaced.
"""
JUDGED: Final = "agl.judged"
"""In an attempt's metadata, written by its runner: a reward function or rule of the runner's side judged it,
also where it gave no reward."""
RESAMPLED: Final = "agl.resampled"
"""In an attempt's metadata: how many earlier attempts failed by their own doing (``types/failure.py:
OUTAGE_KINDS``). Each further attempt samples anew; one that only repeats what was cut short does not.
"""

# HTTP headers between wire layer and gateway; the gateway strips them before the engine sees the request
HEADER_AGENT: Final = "x-agl-agent"
"""URL-quoted name of the agent that makes the call, for clients without an adapter."""
HEADER_TAGS: Final = "x-agl-tags"
"""URL-safe JSON object of the caller's tags."""
BAGGAGE_PREFIX: Final = "agl."
"""The tag ``phase`` is the baggage entry ``agl.phase``, which OpenTelemetry's propagators carry to other
processes.
"""
HEADER_ATTEMPT: Final = "x-agl-attempt"
"""Attempt id of the calling context: must agree with the key, else 409."""
HEADER_TRACE: Final = "x-agl-traceparent"
"""As ``traceparent``, which an instrumented HTTP client or the SDK's own tracing may have put in the place of
the wire layer's."""
HEADER_POLICY: Final = "x-agl-policy"
"""Policy that the agent's name is mapped to."""
HEADER_SELECTED: Final = "x-agl-selected"
"""``0``: the ``select`` of a marked class leaves this call out of training; ``1``, or none: it does not."""


def __getattr__(name: str) -> Any:
    return plugin_name(__name__, name)
