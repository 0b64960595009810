"""One model call as the pipeline hands it on: its caller, the agent's body, and the engine's.

Invariants: a :class:`ModelRequest` never changes; a stage that decides more makes a new one. ``chat`` is the
agent's request, and ``body`` its record; only ``engine_body`` is rewritten.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from agentlightning.gateway.apis import ApiFormat
from agentlightning.gateway.attempts import Admitted, OpenAttempt, branch_of
from agentlightning.gateway.errors import RequestRefused
from agentlightning.gateway.identity import RequestIdentity, choice_count
from agentlightning.gateway.media import recorded
from agentlightning.gateway.metrics import Metrics
from agentlightning.gateway.route import Routes, Upstream, check_open, choose_route
from agentlightning.gateway.sampling import (
    SamplingDecision,
    SamplingPolicy,
    apply_sampling,
    ask_for_tokens,
)
from agentlightning.types import Tags, merge_tags
from agentlightning.types.select import caller_name, policy_for, with_role


class ModelRequest(msgspec.Struct, kw_only=True, frozen=True):
    """One call, with all decisions about it so far."""

    caller: RequestIdentity
    attempt: OpenAttempt
    api: ApiFormat
    """The API that the agent speaks."""
    agent_body: dict[str, Any]
    """The body as the agent sent it."""
    chat: dict[str, Any]
    """The same in the engine's API."""
    body: dict[str, Any]
    """The same as it is recorded, with references in the place of images' contents."""
    engine_body: dict[str, Any]
    """The body that the engine gets; a copy of ``chat``."""
    streams: bool
    """The agent asked for a stream."""
    choices: int
    """How many choices the answer should have."""
    tags: Tags
    route: Upstream
    selected: bool
    sampling: SamplingDecision
    sequence: int
    start: float
    edited: dict[str, Any] = {}
    """Changes beyond sampling (``Call.edited``)."""
    version: int | None = None
    """Policy version that the route served when the call was forwarded, for engines whose answers name none.
    If weights change during the call, the older number is the safe one for staleness."""
    holds: int = 0
    """How often the policy had been held when the call was forwarded."""

    @property
    def tools(self) -> bool:
        """The request offers tools."""
        return bool(self.body.get("tools") or self.body.get("functions"))

    @property
    def passes_through(self) -> bool:
        """The engine's stream reaches the agent as it arrives; others are replayed from whole answers."""
        return self.streams and not self.api.translated and self.route.passes_through(self.tools)

    @property
    def answer_id(self) -> str:
        """Id of an answer to which the engine gave none."""
        return f"{self.attempt.info.attempt_id}-{self.sequence}"

    def decode(self, raw: bytes, decode: Callable[[bytes], Any]) -> Any:
        """Decode an answer, or a chunk of one; parse only those prompt ids that are new."""
        return self.attempt.prompts.decode((self.attempt.info.attempt_id, branch_of(self.tags)), raw, decode)

    def payload(self) -> bytes:
        """The JSON that is sent to the engine."""
        if not self.streams:
            return msgspec.json.encode(self.engine_body)
        body = dict(self.engine_body)
        if not self.passes_through:
            body.pop("stream_options", None)
            body["stream"] = False
        elif self.route.trainable:
            options = body.get("stream_options")
            body["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
        return msgspec.json.encode(body)


@dataclass
class Planner:
    """Decides route, selection and sampling of admitted calls."""

    routes: Routes
    sampling: Mapping[str, SamplingPolicy]
    """The run's values, by policy."""
    metrics: Metrics

    def plan(self, admitted: Admitted, api: ApiFormat, chat: dict[str, Any]) -> ModelRequest:
        """Plan a call; ``chat``: its body in the engine's API. The method awaits nothing, so that the
        sequence is the order of arrival.
        """
        caller, attempt = admitted.caller, admitted.attempt
        messages = recorded(chat.get("messages"))
        body = chat if messages is None else {**chat, "messages": messages}
        tags, route = self.choose(admitted, body)
        info = attempt.info
        wanted = caller.selected or not info.trusted  # who is not trusted takes no call out of training
        selected = route.trainable and wanted and attempt.selects(tags)
        training = selected and info.mode == "train"
        seed = None
        if selected or route.seeded:
            seed = attempt.seeds.next(branch_of(tags), body, caller.span_id, caller.retry)
        engine_body = {**chat, "model": route.model}
        sampling = apply_sampling(
            engine_body,
            policy=self.sampling.get(route.policy) if training else None,
            greedy=info.greedy and selected and not training,
            seed=seed,
        )
        if route.trainable:
            ask_for_tokens(engine_body, api.engine_api)
        return ModelRequest(
            caller=caller,
            attempt=attempt,
            api=api,
            agent_body=admitted.body,
            chat=chat,
            body=body,
            engine_body=engine_body,
            streams=body.get("stream") is True,
            choices=choice_count(body),
            tags=tags,
            route=route,
            selected=selected,
            sampling=sampling,
            sequence=attempt.next_sequence(),
            start=time.time(),
        )

    def choose(self, admitted: Admitted, body: Mapping[str, Any]) -> tuple[Tags, Upstream]:
        """Tags and route of a request."""
        info, caller = admitted.attempt.info, admitted.caller
        tags = with_role(merge_tags(info.tags, caller.tags) if info.tags else caller.tags)
        mapped = policy_for(info.policies, tags)
        try:
            route = choose_route(self.routes, str(body.get("model", "")), caller.policy, mapped)
        except RequestRefused as refused:
            if mapped is not None or caller.policy is not None:
                raise
            self.metrics.count_unrouted(who := caller_name(tags))
            message = f"no policy is given to {who!r}: add its agent, role or node to `policies` ({refused})"
            raise RequestRefused(404, "no-route", message) from None
        check_open(route, self.routes, info.policies)
        return tags, route

    def reroute(self, request: ModelRequest, holds: int) -> ModelRequest:
        """Return the request for the engine that serves its policy now; it may have changed during a wait."""
        route = self.routes.get(request.route.policy, request.route)
        body = {**request.engine_body, "model": route.model}
        return msgspec.structs.replace(
            request, route=route, engine_body=body, version=route.served_version(), holds=holds
        )
