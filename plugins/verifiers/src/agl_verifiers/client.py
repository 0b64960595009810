"""The client that an environment asks: verifiers' own for chat completions, by the SDK's public method.

verifiers 0.2 posts a body and reads the bytes of the answer itself. The instrumented SDK then sees no answer,
and the gateway alone would record the call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verifiers.clients import OpenAIChatCompletionsClient
from verifiers.clients.openai_chat_completions_client import handle_openai_overlong_prompt


class GatewayClient(OpenAIChatCompletionsClient):  # type: ignore[misc]  # untyped where verifiers is missing
    """Asks by ``chat.completions.create``. A prompt that is too long ends the rollout, as in verifiers."""

    @handle_openai_overlong_prompt  # type: ignore[untyped-decorator]
    async def get_native_response(
        self,
        prompt: Sequence[Any],
        model: str,
        sampling_args: Mapping[str, Any],
        tools: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """The SDK's answer to a chat request."""
        asked = {name: value for name, value in sampling_args.items() if value is not None}
        if tools:
            asked["tools"] = tools
        headers = kwargs.get("extra_headers")
        return await self.client.chat.completions.create(
            model=model, messages=prompt, extra_headers=headers, **asked
        )
