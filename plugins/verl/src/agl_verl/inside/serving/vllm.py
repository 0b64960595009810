"""verl's vLLM server as the engine of a policy. Importing this needs vLLM."""

from __future__ import annotations

from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from agl_verl.inside.serving.servers import Announced, Keeping, Server


class VllmServer(Keeping, Server, vLLMHttpServer):  # type: ignore[misc]
    """See ``servers``; it asks for the key in ``VLLM_API_KEY``."""


class VllmReplica(Announced, vLLMReplica):  # type: ignore[misc]
    """See ``servers``. Before it sleeps it lets the calls end that it has, as verl's does."""

    server, keyed = VllmServer, True
