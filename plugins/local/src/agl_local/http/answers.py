"""Answers of the OpenAI API, whole or in chunks, with vLLM's extras for token ids.

``return_token_ids`` adds ``prompt_token_ids`` (chat: at the top; completions: in each choice) and
``token_ids`` to each choice (and ``guided_choice_ids`` or ``grammar`` at the top of a constrained answer);
``policy_version`` is the oldest version that any token was sampled with (where tokens of a choice are of
another, its ``policy_versions`` has one for each). Invariant: the chunks of a stream add up to the unstreamed
answer of the same seed.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

import msgspec

from agentlightning.types.tokens import pack
from agl_local.generation.request import Completion, TokenEvent, TopLogprobs
from agl_local.http.protocol import Call
from agl_local.network.sampling import random_bits
from agl_local.text.textstream import TextStream
from agl_local.text.tokenizer import ChatTokenizer
from agl_local.text.tools import CallStream, ToolCall, parse_calls


class Answer:
    """Builds the bodies that answer one call."""

    def __init__(self, call: Call, tokenizer: ChatTokenizer) -> None:
        self.call = call
        self.tokenizer = tokenizer
        kind = "chat.completion" if call.chat else "text_completion"
        self.head: dict[str, Any] = {
            "id": ("chatcmpl-" if call.chat else "cmpl-") + f"{random_bits(128):032x}",
            "object": kind,
            "created": int(time.time()),
            "model": call.model,
        }

    def whole(self, results: list[list[Completion]]) -> dict[str, Any]:
        """The unstreamed body: all samples of all prompts."""
        versions = [v for completions in results for c in completions for v in c.versions]
        choices = [
            self._choice(prompt, completion, min(versions))
            for prompt, completions in zip(self.call.prompts, results, strict=True)
            for completion in completions
        ]
        for index, choice in enumerate(choices):
            choice["index"] = index
        tokens = sum(len(c.token_ids) for completions in results for c in completions)
        reused = sum(completions[0].reused for completions in results)
        body = {
            **self.head,
            "choices": choices,
            "usage": self.usage(tokens, reused),
            "policy_version": min(versions),
        }
        if self.call.token_ids and self.call.chat:
            body["prompt_token_ids"] = self.call.prompts[0]
        return body | self.constraint()

    def constraint(self) -> dict[str, Any]:
        """What the logprobs are restricted to: ``guided_choice_ids``, the allowed answers as ids, or
        ``grammar``.
        """
        sampling = self.call.sampling
        if not self.call.token_ids:
            return {}
        if sampling.grammar is not None:
            return {"grammar": msgspec.structs.asdict(sampling.grammar)}
        return {} if sampling.guided_choice is None else {"guided_choice_ids": sampling.guided_choice}

    def usage(self, completion_tokens: int, reused: int) -> dict[str, Any]:
        prompt_tokens = sum(map(len, self.call.prompts))
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": reused},
        }

    def id_maker(self, prompt: list[int], sample: int) -> Callable[[int], str]:
        """Ids of tool calls: a hash of prompt, seed, sample and place, so that a seed reproduces them."""
        base = hashlib.sha256(pack(prompt) + f"|{self.call.seed}|{sample}".encode())

        def make(k: int) -> str:
            digest = base.copy()
            digest.update(f"|{k}".encode())
            return f"call_{digest.hexdigest()[:24]}"

        return make

    def _choice(self, prompt: list[int], done: Completion, oldest: int) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": 0,
            "finish_reason": done.finish_reason,
            "stop_reason": done.stop_reason,
        }
        if self.call.chat:
            message: dict[str, Any] = {"role": "assistant", "content": done.text}
            if (schemas := self.call.schemas) is not None:
                maker = self.id_maker(prompt, done.index)
                parsed = parse_calls(done.text, self.tokenizer.syntax, maker, schemas)
                message["content"] = parsed.content
                if parsed.calls:
                    message["tool_calls"] = [c.to_openai() for c in parsed.calls]
                    choice["finish_reason"] = _with_calls(done.finish_reason)
                if parsed.malformed:
                    choice["tool_call_errors"] = parsed.malformed
            choice["message"] = message
        else:
            choice["text"] = done.text
        choice["logprobs"] = self._logprobs(
            TokenReport(self), done.token_ids, done.logprobs, done.top_logprobs
        )
        if self.call.token_ids:
            choice["token_ids"] = done.token_ids
            if not self.call.chat:
                choice["prompt_token_ids"] = prompt
        if any(version != oldest for version in done.versions):
            choice["policy_versions"] = done.versions
        return choice

    def _logprobs(
        self, report: TokenReport, tokens: list[int], logprobs: list[float], top: list[TopLogprobs]
    ) -> dict[str, Any] | None:
        if not self.call.logprobs:
            return None
        return (report.chat if self.call.chat else report.completion)(tokens, logprobs, top)


class TokenReport:
    """The ``logprobs`` objects of one sample, in one piece or in several."""

    def __init__(self, answer: Answer) -> None:
        self._tokenizer = answer.tokenizer
        self._alternatives = answer.call.sampling.top_logprobs
        self._text = TextStream(answer.tokenizer)
        self._offset = 0

    def chat(self, tokens: list[int], logprobs: list[float], top: list[TopLogprobs]) -> dict[str, Any]:
        content = [
            {**self._entry(token, logprob), "top_logprobs": [self._entry(*pair) for pair in others]}
            for token, logprob, others in zip(tokens, logprobs, top, strict=True)
        ]
        return {"content": content, "refusal": None}

    def completion(self, tokens: list[int], logprobs: list[float], top: list[TopLogprobs]) -> dict[str, Any]:
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(self._text.push(token))
        name = self._tokenizer.decode_token
        return {
            "tokens": [name(token)[0] for token in tokens],
            "token_logprobs": logprobs,
            "top_logprobs": [{name(t)[0]: p for t, p in pairs} for pairs in top]
            if self._alternatives
            else None,
            "text_offset": offsets,
        }

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        text, raw = self._tokenizer.decode_token(token)
        return {"token": text, "logprob": logprob, "bytes": list(raw)}


class ChoiceStream:
    """The chunks of one sample of a streamed answer."""

    def __init__(self, answer: Answer, prompt: int, sample: int) -> None:
        self.answer = answer
        self.call = answer.call
        self.index = prompt * self.call.n + sample
        self._prompt = self.call.prompts[prompt]
        self._report = TokenReport(answer)
        maker = answer.id_maker(self._prompt, sample)
        schemas = self.call.schemas
        self._tools = None if schemas is None else CallStream(answer.tokenizer.syntax, maker, schemas)
        self._version: int | None = None
        self._calls = 0
        self._started = False

    def opening(self) -> dict[str, Any]:
        """The first chunk: who speaks, and the prompt's ids."""
        choice = self._choice({"role": "assistant", "content": ""} if self.call.chat else "")
        chunk = self._chunk(choice)
        if self.call.token_ids:
            (chunk if self.call.chat else choice)["prompt_token_ids"] = self._prompt
        return chunk | self.answer.constraint()

    def chunk(self, events: list[TokenEvent]) -> dict[str, Any]:
        """One chunk for tokens that arrived together."""
        text = "".join(event.text for event in events)
        last = events[-1]
        choice = self._choice(self._delta(text, last.finish_reason is not None) if self.call.chat else text)
        tokens, logprobs = [e.token for e in events], [e.logprob for e in events]
        if self.call.token_ids:
            choice["token_ids"] = tokens
        choice["logprobs"] = self.answer._logprobs(
            self._report, tokens, logprobs, [e.top_logprobs for e in events]
        )
        if last.finish_reason is not None:
            choice["finish_reason"] = _with_calls(last.finish_reason) if self._calls else last.finish_reason
            choice["stop_reason"] = last.stop_reason
            if self._tools is not None and self._tools.malformed:
                choice["tool_call_errors"] = self._tools.malformed
        versions = [event.version for event in events]
        self._version = min(versions if self._version is None else [self._version, *versions])
        if max(versions) > self._version:
            choice["policy_versions"] = versions
        chunk = self._chunk(choice)
        chunk["policy_version"] = self._version
        return chunk

    def _delta(self, text: str, final: bool) -> dict[str, Any]:
        if self._tools is None:
            return {"content": text} if text else {}
        content, calls = self._tools.push(text)
        if final:
            rest, more = self._tools.finish()
            content, calls = content + rest, calls + more
        delta: dict[str, Any] = {"content": content} if content else {}
        if calls:
            delta["tool_calls"] = [self._call_delta(call) for call in calls]
        return delta

    def _call_delta(self, call: ToolCall) -> dict[str, Any]:
        self._calls += 1
        return {"index": self._calls - 1, **call.to_openai()}

    def _choice(self, payload: dict[str, Any] | str) -> dict[str, Any]:
        key = "delta" if self.call.chat else "text"
        return {"index": self.index, key: payload, "logprobs": None, "finish_reason": None}

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.call.chat else "text_completion"
        return {**self.answer.head, "object": kind, "choices": [choice]}


def _with_calls(reason: str) -> str:
    return "tool_calls" if reason == "stop" else reason
