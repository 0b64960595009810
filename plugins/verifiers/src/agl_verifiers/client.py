"""The client by which an environment reaches the gateway: verifiers' own, asking by the SDK's public method.

verifiers posts a body and reads the answer itself, from a server's task that knows of no attempt. The
instrumented SDK then sees no answer, and the gateway alone would record the call.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from openai import APIError, AsyncOpenAI
from verifiers.v1.clients import EvalClient, EvalClientConfig
from verifiers.v1.errors import ProviderError, model_error

from agentlightning.capture.context import AttemptContext, attempt_context
from agentlightning.types import LLM


class GatewayClient(EvalClient):  # type: ignore[misc]  # untyped where verifiers is missing
    """Asks the policy in the name of one attempt. ``config`` is what an environment knows it by."""

    def __init__(self, llm: LLM, context: AttemptContext) -> None:
        # By its name: an environment keeps one client for each description of an endpoint.
        self.config = EvalClientConfig(base_url=llm.endpoint, api_key_var=f"NOT_SET_{secrets.token_hex(8)}")
        super().__init__(self.config)
        self._sdk = AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0)
        self._context = context

    async def get_response(
        self,
        dialect: Any,
        body: dict[str, Any],
        sampling: Any,
        session_id: str | None = None,
        turn: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The answer to a chat request, with the provider's own JSON."""
        if not dialect.upstream_path.endswith("chat/completions"):
            raise ProviderError(f"{dialect.upstream_path}: chat completions alone are asked for here")
        asked = {name: value for name, value in body.items() if value is not None}
        with attempt_context(self._context):
            try:
                completion = await self._sdk.chat.completions.create(**asked)
            except APIError as error:
                raise model_error(error) from error
        raw = completion.model_dump(mode="json", exclude_unset=True)
        response = dialect.parse_response(dialect.validate_response(raw))
        response.raw = raw
        return response

    async def close(self) -> None:
        """Close both connections."""
        await self._sdk.close()
        await super().close()
