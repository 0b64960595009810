"""A model behind no network: each request is answered at once, from bytes made beforehand.

Put in the place of the HTTP transports' one method, below whatever client a framework makes: requests are
built and answers parsed as ever, and nothing is waited for.
"""

from __future__ import annotations

import json
from importlib import import_module
from importlib.util import find_spec
from typing import Any

CALL = {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": '{"a": 17,  "b":25}'}}
PROMPT, RESPONSE = 32_000, 1_000
"""Token ids of a large call; a small one has 300 and 20."""


class Canned:
    """The model: a tool call, and an answer once there is a result. ``calls`` counts."""

    def __init__(self, prompt: int, response: int) -> None:
        self.calls, self.ids = 0, True
        self._answers = {
            (ids, last): _answer(ids, last, prompt, response)
            for ids in (True, False)
            for last in (True, False)
        }

    def body(self, request: bytes) -> bytes:
        """The answer to a request."""
        self.calls += 1
        return self._answers[self.ids, b'"role":"tool"' in request or b'"role": "tool"' in request]

    def install(self) -> None:
        """Answer for every transport of this process."""
        for name in ("httpx", "httpx2"):
            if find_spec(name) is None:
                continue
            module: Any = import_module(name)

            async def answer_async(transport: Any, request: Any, module: Any = module) -> Any:
                return self._response(module, await request.aread())

            def answer(transport: Any, request: Any, module: Any = module) -> Any:
                return self._response(module, request.read())

            module.AsyncHTTPTransport.handle_async_request = answer_async
            module.HTTPTransport.handle_request = answer

    def _response(self, module: Any, request: bytes) -> Any:
        return module.Response(200, content=self.body(request), headers={"content-type": "application/json"})


def _answer(ids: bool, last: bool, prompt: int, response: int) -> bytes:
    text = "word " * (response - 1) + "42"
    message = {"role": "assistant", "content": text if last else None}
    choice: dict[str, Any] = {
        "index": 0,
        "message": message,
        "finish_reason": "stop" if last else "tool_calls",
    }
    if not last:
        message["tool_calls"] = [CALL]  # type: ignore[assignment]
    answer: dict[str, Any] = {
        "id": "chatcmpl-canned",
        "object": "chat.completion",
        "created": 1,
        "model": "policy",
        "choices": [choice],
        "usage": {"prompt_tokens": prompt, "completion_tokens": response, "total_tokens": prompt + response},
    }
    if ids:
        answer["prompt_token_ids"] = [(7919 * place) % 150_000 for place in range(prompt)]
        choice["token_ids"] = [(104_729 * place) % 150_000 for place in range(response)]
        logprob = {"token": "word ", "bytes": None, "top_logprobs": []}
        content = [{**logprob, "logprob": -(place % 4096) / 1024} for place in range(response)]
        choice["logprobs"] = {"content": content, "refusal": None}
    return json.dumps(answer).encode()
