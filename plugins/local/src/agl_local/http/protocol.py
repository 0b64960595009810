"""Requests of the OpenAI API, checked and turned into what the engine takes.

Invariant: a field that would change the meaning of an answer is honoured or refused with its name (400),
never ignored. ``max_tokens`` beyond the room that the prompt leaves is cut to it (the answer then says
``length``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agl_local.generation.engine import Engine
from agl_local.generation.request import PromptTooLong
from agl_local.http.fields import ApiError, field, strings
from agl_local.http.structured import FIELDS as CONSTRAINTS, TOOL_FIELDS, check_tools, constraint_values
from agl_local.network.sampling import Sampling, random_bits
from agl_local.text.rendering import TemplateError
from agl_local.text.syntax import Schemas

_SAMPLING: dict[str, type[Any]] = {
    "temperature": float, "top_p": float, "top_k": int, "frequency_penalty": float, "presence_penalty": float,
    "repetition_penalty": float, "min_tokens": int, "ignore_eos": bool,
}  # fmt: skip
_COMMON = {
    *_SAMPLING, "model", "n", "stream", "stream_options", "max_tokens", "seed", "stop", "logit_bias",
    "return_token_ids", "logprobs", *CONSTRAINTS,
}  # fmt: skip
_HINTS = {"reasoning_effort", "verbosity"}
"""Fields that ask a vendor's models for less or more text. A policy answers as it does: they are counted."""
_CHAT = {*_HINTS, "messages", "max_completion_tokens", "top_logprobs", "chat_template_kwargs", *TOOL_FIELDS}
_NO_EFFECT = {
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "priority", "request_id",
}  # fmt: skip
# Fields that are understood in one value only: the one that asks for nothing special.
_ONLY: dict[str, Any] = {
    "echo": False, "best_of": 1, "suffix": "", "min_p": 0, "add_generation_prompt": True,
    "continue_final_message": False, "skip_special_tokens": True,
    "include_stop_str_in_output": False, "use_beam_search": False, "length_penalty": 1,
    "modalities": ["text"], "stop_token_ids": [], "add_special_tokens": False,
}  # fmt: skip


@dataclass(frozen=True)
class Call:
    """One request to an endpoint: its prompts as token ids and how to sample and answer them."""

    chat: bool
    model: str
    prompts: list[list[int]]
    sampling: Sampling
    seed: int
    n: int
    stream: bool
    include_usage: bool
    token_ids: bool
    logprobs: bool
    schemas: Schemas | None = None
    """Of the offered tools, by name; None: the answer is not searched for calls."""


def parse_chat(body: Mapping[str, Any], engine: Engine) -> Call:
    """A body of /v1/chat/completions. Raises ApiError."""
    _refuse_unknown(body, _COMMON | _CHAT)
    tools = check_tools(body)
    prompt = _prompt_of_chat(body, engine, tools)
    limit = field(body, "max_completion_tokens", int)
    limit = field(body, "max_tokens", int) if limit is None else limit
    engine.stats.hints += any(body.get(name) is not None for name in _HINTS)
    logprobs = bool(field(body, "logprobs", bool))
    top = field(body, "top_logprobs", int) or 0
    if top and not logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true", "top_logprobs")
    schemas = None
    if tools and body.get("tool_choice") != "none":
        given = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools}
        schemas = {name: schema if isinstance(schema, dict) else {} for name, schema in given.items()}
    most = engine.max_len if limit is None else limit
    return _call(body, engine, [prompt], most, logprobs, top, chat=True, schemas=schemas)


def parse_completion(body: Mapping[str, Any], engine: Engine) -> Call:
    """A body of /v1/completions. Raises ApiError."""
    _refuse_unknown(body, _COMMON | {"prompt"})
    logprobs = body.get("logprobs")
    top = logprobs if isinstance(logprobs, int) and not isinstance(logprobs, bool) else 0
    wanted = logprobs is not None and logprobs is not False
    if wanted and not isinstance(logprobs, int):
        raise ApiError(400, "logprobs must be a number or a boolean", "logprobs")
    limit = field(body, "max_tokens", int)
    prompts = _prompts(body.get("prompt"), engine)
    limit = 16 if limit is None else limit
    return _call(body, engine, prompts, limit, wanted, top, chat=False)


def parse_tokenize(body: Mapping[str, Any], engine: Engine) -> list[int]:
    """The prompt ids of a body of /tokenize (vLLM's form: ``messages``, or a text ``prompt``)."""
    _refuse_unknown(body, {"model", "messages", "tools", "chat_template_kwargs", "prompt"})
    if body.get("messages") is None:
        prompt = field(body, "prompt", str)
        if prompt is None:
            raise ApiError(400, "give messages, or a prompt as text", "messages")
        return engine.tokenizer.encode(prompt)
    return _prompt_of_chat(body, engine, check_tools(body))


def _prompt_of_chat(body: Mapping[str, Any], engine: Engine, tools: list[dict[str, Any]] | None) -> list[int]:
    messages = field(body, "messages", list)
    if not messages or not all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages):
        raise ApiError(400, "messages must be a list of at least one object with a role", "messages")
    variables = field(body, "chat_template_kwargs", dict) or {}
    try:
        return engine.tokenizer.apply(messages, tools, **variables)
    except TemplateError as error:
        raise ApiError(400, str(error), "messages", "chat_template") from error
    except TypeError as error:
        raise ApiError(400, str(error), "chat_template_kwargs") from error


def _call(
    body: Mapping[str, Any], engine: Engine, prompts: list[list[int]], limit: int, logprobs: bool, top: int,
    *, chat: bool, schemas: Schemas | None = None,
) -> Call:  # fmt: skip
    if top < 0 or top > 20:
        raise ApiError(
            400, f"at most 20 alternatives per token, got {top}", "top_logprobs" if chat else "logprobs"
        )
    for prompt in prompts:
        if len(prompt) >= engine.max_len:
            message = (
                f"This model's maximum context length is {engine.max_len} tokens; "
                f"the prompt has {len(prompt)} and leaves no room for an answer."
            )
            raise ApiError(400, message, "messages" if chat else "prompt", "context_length_exceeded")
    room = engine.max_len - min(map(len, prompts))
    seed = field(body, "seed", int)
    try:
        sampling = Sampling(max_tokens=min(limit, room), **_sampling(body, engine), top_logprobs=top)
    except ValueError as error:
        raise ApiError(400, str(error)) from error
    options = field(body, "stream_options", dict) or {}
    n = field(body, "n", int)
    return Call(
        chat=chat,
        model=engine.name,
        prompts=prompts,
        sampling=sampling,
        seed=random_bits(63) if seed is None else seed,
        n=1 if n is None else n,
        stream=bool(field(body, "stream", bool)),
        include_usage=bool(options.get("include_usage")),
        token_ids=bool(field(body, "return_token_ids", bool)),
        logprobs=logprobs,
        schemas=schemas,
    )


def _sampling(body: Mapping[str, Any], engine: Engine) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, kind in _SAMPLING.items():
        value = field(body, name, kind)
        if value is not None:
            values[name] = value
    stop = body.get("stop")
    if stop is not None:
        values["stop"] = tuple(strings([stop] if isinstance(stop, str) else stop, "stop"))
    values |= constraint_values(body, engine)
    bias = field(body, "logit_bias", dict)
    if bias:
        try:
            values["logit_bias"] = {int(token): float(value) for token, value in bias.items()}
        except (TypeError, ValueError):
            raise ApiError(400, "logit_bias must map token ids to numbers", "logit_bias") from None
    return values


def _refuse_unknown(body: Mapping[str, Any], known: set[str]) -> None:
    for name, value in body.items():
        if value is None or name in known or name in _NO_EFFECT:
            continue
        if name not in _ONLY:
            raise ApiError(400, f"unsupported field {name!r}", name, "unsupported_field")
        if value != _ONLY[name]:
            raise ApiError(
                400, f"{name} is supported as {_ONLY[name]!r} only, got {value!r}", name, "unsupported_field"
            )


def _prompts(value: Any, engine: Engine) -> list[list[int]]:
    """A text, a list of ids, or a list of either."""
    if isinstance(value, str) or (isinstance(value, list) and value and isinstance(value[0], int)):
        value = [value]
    if not isinstance(value, list) or not value:
        raise ApiError(400, "prompt must be a text, a list of token ids, or a list of these", "prompt")
    prompts = [engine.tokenizer.encode(item) if isinstance(item, str) else item for item in value]
    for prompt in prompts:
        _check_ids(prompt, engine.vocab_size)
    return prompts


def _check_ids(prompt: Any, vocab_size: int) -> None:
    sound = isinstance(prompt, Sequence) and all(type(i) is int and 0 <= i < vocab_size for i in prompt)
    if not sound or not prompt:
        raise ApiError(
            400, f"a prompt must have at least one token, with ids in 0..{vocab_size - 1}", "prompt"
        )


__all__ = ["Call", "PromptTooLong", "parse_chat", "parse_completion", "parse_tokenize"]
