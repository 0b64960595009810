"""verl's SGLang server as the engine of a policy. Importing this needs SGLang.

SGLang answers with the ids that were sampled since it knows ``return_token_ids``; 0.5.12, which verl 0.9.1
asks for, does not know it. Without ids nothing can be trained, so such a server is not launched.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import Any

from verl.workers.rollout.sglang_rollout.async_sglang_server import SGLangHttpServer, SGLangReplica

from agl_verl.inside.serving.servers import Announced, Server


class NoIds(RuntimeError):
    """An SGLang that does not say which tokens it sampled."""


def check_ids(release: str, request: type) -> None:
    """Raises NoIds unless chat completions (whose ``request`` is a pydantic model) can be asked for ids."""
    if "return_token_ids" not in request.model_fields:  # type: ignore[attr-defined]
        raise NoIds(
            f"SGLang {release} answers chat completions without the ids of their tokens (return_token_ids): "
            "nothing could be trained; use backend.options.engine: vllm, or an SGLang that has it"
        )


class SglangServer(Server, SGLangHttpServer):  # type: ignore[misc]
    """See ``servers``."""

    async def launch_server(self, *args: Any, **given: Any) -> None:
        """As verl does, if its answers can be trained."""
        protocol = import_module("sglang.srt.entrypoints.openai.protocol")
        check_ids(version("sglang"), protocol.ChatCompletionRequest)
        await super().launch_server(*args, **given)


class SglangReplica(Announced, SGLangReplica):  # type: ignore[misc]
    """See ``servers``. verl sends it weights over the same HTTP door, without a key: it can ask for none."""

    server, keyed = SglangServer, False
