"""``LLMProxy`` of v0.3: the gateway before the endpoints of a model list.

Alone, :meth:`LLMProxy.start` serves a gateway of its own on the store that it was given. As
``Trainer(llm_proxy=…)`` its models are routes of the run's gateway, and the algorithm gets it back.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from agentlightning.gateway.attempts import AttemptInfo
from agentlightning.gateway.base import RunGateway
from agentlightning.gateway.route import Upstream
from agentlightning.gateway.settings import GatewaySection
from agentlightning.keys import CONTEXT_KEY, Keys
from agentlightning.types import LLM, ProxyLLM, UsageError
from agl_cluster.gateways.watched import WatchedGateway
from agl_v03.stores.v03_store import plain_store

OPENAI = "https://api.openai.com/v1"
PREFIXES = ("openai/", "hosted_vllm/", "vllm/")
"""Prefixes by which LiteLLM names OpenAI-compatible servers."""


class ModelConfig(TypedDict):
    """A model: its name for agents, and where it is in LiteLLM's words (``model``, ``api_base``,
    ``api_key``)."""

    model_name: str
    litellm_params: dict[str, Any]


class LLMProxy:
    """A recording proxy before OpenAI-compatible endpoints.

    ``port``: 0 or ``None`` takes a free one. ``model_list``: see :class:`ModelConfig`. ``store``: records go
    there; it may be given later (:meth:`set_store`). ``num_retries``, ``launch_mode``, ``num_workers``,
    ``callbacks`` and ``litellm_config`` belong to LiteLLM, which is not used; they are refused, except that
    the gateway's own retries take the place of ``num_retries``.
    """

    def __init__(
        self,
        port: int | None = None,
        model_list: Sequence[Mapping[str, Any]] | None = None,
        store: Any = None,
        *,
        host: str | None = None,
        num_retries: int | None = None,
        **litellm: Any,
    ) -> None:
        if unknown := sorted(name for name, value in litellm.items() if value is not None):
            raise UsageError(
                f"LLMProxy: {', '.join(unknown)} belongs to LiteLLM, which the gateway does not use: leave "
                "it out (token ids, logprobs and streams are recorded anyway)"
            )
        self.port, self.host = port or 0, host or "127.0.0.1"
        self.model_list: list[Mapping[str, Any]] = []
        self.store = store
        self._gateway: RunGateway | None = None
        self._own = False
        self.update_model_list(model_list or [])

    def update_model_list(self, model_list: Sequence[Mapping[str, Any]]) -> None:
        """Replace the models; a running gateway takes the new routes at once."""
        routes = [_route(model) for model in model_list]
        for known in self.model_list:
            if self._gateway is not None:
                self._gateway.remove_route(known["model_name"])
        self.model_list = list(model_list)
        for one in routes:
            if self._gateway is not None:
                self._gateway.add_route(one)

    def set_store(self, store: Any) -> None:
        """Set the store of the next :meth:`start`."""
        self.store = store

    def attach(self, gateway: RunGateway) -> None:
        """Serve the models from the gateway of a run, which starts and stops it."""
        self._gateway, self._own = gateway, False
        for model in self.model_list:
            gateway.add_route(_route(model))

    def is_running(self) -> bool:
        """Whether agents can call."""
        return self._gateway is not None

    async def start(self) -> None:
        """Serve, unless it runs already. Runners in this process get keys by ``AGL_SECRET``, which is set to
        a random value if it is not set.
        """
        if self._gateway is not None:
            return
        if self.store is None:
            raise UsageError("LLMProxy: give it a store before it starts, LLMProxy(store=…)")
        os.environ.setdefault("AGL_SECRET", os.urandom(32).hex())
        host = f"[{self.host}]" if ":" in self.host else self.host
        listen = GatewaySection(listen=f"{host}:{self.port}")
        gateway = WatchedGateway(plain_store(self.store), Keys.from_env(), listen)
        self.attach(gateway)
        await gateway.start()
        self._own = True

    async def stop(self) -> None:
        """Stop serving; the gateway of a run goes on until the run ends."""
        if self._own and self._gateway is not None:
            gateway, self._gateway = self._gateway, None
            await gateway.stop()

    async def restart(self, *, model_list: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Start, or start again, with these models."""
        await self.stop()
        if model_list is not None:
            self.update_model_list(model_list)
        await self.start()

    def as_resource(
        self,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        model: str | None = None,
        sampling_parameters: dict[str, Any] | None = None,
    ) -> LLM:
        """Return the resource for agents. With the ids of an attempt it holds that attempt's key; without, a
        runner puts the key of each attempt in. Default of ``model``: the first of the list.
        """
        if self._gateway is None:
            raise UsageError("LLMProxy is not started: await llm_proxy.start()")
        names = [one["model_name"] for one in self.model_list]
        if not names or (model is not None and model not in names):
            raise UsageError(f"LLMProxy has no model {model!r}; its models: {', '.join(names) or 'none'}")
        if (rollout_id is None) != (attempt_id is None):
            raise UsageError("as_resource: give both rollout_id and attempt_id, or none")
        common: dict[str, Any] = {
            "endpoint": self._gateway.url,
            "model": model or names[0],
            "sampling_parameters": dict(sampling_parameters or {}),
        }
        if rollout_id is None or attempt_id is None:
            return ProxyLLM(api_key=CONTEXT_KEY, replicas=list(self._gateway.urls[1:]), **common)
        info = AttemptInfo(rollout_id=rollout_id, attempt_id=attempt_id)
        return LLM(api_key=self._gateway.open_attempt(info), **common)

    def __str__(self) -> str:
        return self._gateway.url if self._gateway is not None else "LLMProxy (not started)"


def _route(model: Mapping[str, Any]) -> Upstream:
    """Return the route to a model. Raise :class:`UsageError` for an endpoint that speaks no OpenAI API."""
    name, params = model["model_name"], dict(model.get("litellm_params") or {})
    full = str(params.get("model", name))
    prefix = next((one for one in PREFIXES if full.startswith(one)), None)
    base = params.get("api_base") or (os.environ.get("OPENAI_BASE_URL") or OPENAI)
    if prefix is None and "/" in full and not params.get("api_base"):
        raise UsageError(
            f"LLMProxy: {full!r} is no OpenAI-compatible endpoint; give its api_base, or start LiteLLM's own "
            "proxy and name that as api_base"
        )
    url = str(base).rstrip("/")
    return Upstream(
        policy=name,
        url=url if url.endswith("/v1") else url + "/v1",
        model=full.removeprefix(prefix or ""),
        api_key=params.get("api_key") or os.environ.get("OPENAI_API_KEY"),
        trainable=False,
    )
