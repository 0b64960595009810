"""The gateway: an OpenAI-compatible server between agents and engines that records every call.

Each route of a model call is served by :class:`~agentlightning.gateway.pipeline.Pipeline`. Invariants: an
answer is sent after its record is durable; the record is the engine's own answer.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec
from aiohttp import web

from agentlightning.gateway.apis import Route
from agentlightning.gateway.attempts import AttemptInfo, OpenAttempts
from agentlightning.gateway.base import RunGateway
from agentlightning.gateway.calls import CallWriter
from agentlightning.gateway.client import EngineClient, Limits
from agentlightning.gateway.errors import RequestRefused
from agentlightning.gateway.identity import identify
from agentlightning.gateway.metrics import Metrics
from agentlightning.gateway.paths import Unserved, format_of, formats_of, spellings
from agentlightning.gateway.pause import ALL, PauseGate
from agentlightning.gateway.pipeline import Pipeline
from agentlightning.gateway.reply import AgentReply
from agentlightning.gateway.request import Planner
from agentlightning.gateway.route import Upstream
from agentlightning.gateway.settings import CallSection, GatewaySection, agent_url, cannot_serve, parse_listen
from agentlightning.keys import ByteQuota, Keys
from agentlightning.log_limit import limit_libraries
from agentlightning.plugins.manager import Plugins, load
from agentlightning.specs import CallGuard
from agentlightning.store.base import Store
from agentlightning.types import Call
from agentlightning.webserver import app_runner, enlarge_young_generation, restore_thresholds
from agentlightning.webserver.guard import guard
from agentlightning.webserver.loopback import is_loopback

HEADER_LIMIT = 16_384
"""Bytes of one header line; a request with a longer one gets 400."""


class Gateway(RunGateway):
    """Server, routes and attempts of one process.

    ``settings``: where it listens, for :meth:`start`. ``calls``: which calls are trained, and by which policy
    they are answered, where an attempt does not say so itself (:class:`AttemptInfo`). ``on_call``: called
    with each record once it is durable; it must not block. ``keep_alive``: seconds between comments in a
    silent stream. ``guards`` admit and count its calls. ``plugins``: whose APIs it serves; none: those of
    this process.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys,
        settings: GatewaySection = GatewaySection(),
        calls: CallSection = CallSection(),
        *,
        on_call: Callable[[Call], None] | None = None,
        limits: Limits | None = None,
        keep_alive: float = 5.0,
        guards: Sequence[CallGuard] = (),
        plugins: Plugins | None = None,
    ) -> None:
        super().__init__()
        self._metrics = metrics = Metrics()
        self._plugins = plugins or load()
        self._formats = formats_of(self._plugins)
        self._keys = keys
        self._settings = settings
        self._gate = PauseGate()
        self._attempts = OpenAttempts(store, keys, calls)
        self._client = EngineClient(limits or Limits(), metrics.failovers)
        self._pipeline = Pipeline(
            keys=keys,
            attempts=self._attempts,
            planner=Planner(self.routes, self.sampling, metrics),
            gate=self._gate,
            client=self._client,
            writer=CallWriter(store, self._attempts, metrics, guards, on_call),
            metrics=metrics,
            guards=guards,
            keep_alive=keep_alive,
            max_requests=settings.max_requests,
            quota=ByteQuota(settings.attempt_bytes),
        )
        self._runner: web.AppRunner | None = None
        self._url: str | None = None

    @property
    def metrics(self) -> Metrics:
        """Counters since the start."""
        return self._metrics

    def add_route(self, upstream: Upstream) -> None:
        """Serve a policy from an engine, in place of any earlier engine."""
        asked = {"route": upstream, "client": self._client, "metrics": self._metrics}
        upstream.edits = self._plugins.first("agl_call_edits", **asked) or upstream.edits
        super().add_route(upstream)

    # ------------------------------------------------------------------------------- attempts and holds
    def open_attempt(self, info: AttemptInfo) -> str:
        """Let an attempt call, and return its key (the agent's ``OPENAI_API_KEY``)."""
        return self._attempts.open(info)

    async def close_attempt(self, attempt_id: str, *, grace: float = 0.0) -> None:
        """Revoke the key. Calls under way get ``grace`` seconds; then they are cancelled and recorded."""
        await self._attempts.close(attempt_id, grace)

    async def hold(self, policy: str = ALL) -> None:
        """Make new calls of a policy wait."""
        self._gate.hold(policy)

    async def release(self, policy: str = ALL) -> None:
        """Let calls of the policy go on."""
        self._gate.release(policy)

    async def drain(self, timeout: float | None = None) -> bool:
        """Wait until no call is at an engine."""
        return await self._gate.drain(timeout)

    # ------------------------------------------------------------------------------------------ lifecycle
    def app(self, *, local: bool = True) -> web.Application:
        """The aiohttp application; it opens and closes the connections to the engines. ``local``: it is
        served on loopback, and refuses requests for other hosts that have no valid key.

        Serve it with ``webserver.app_runner``: it cancels the handler of an agent that hangs up, which frees
        its engine.
        """
        no_pages = guard(self._refuse_cross_origin, local=local, trusted=self._bears_key)
        app = web.Application(middlewares=[no_pages])
        handlers = self._handlers()
        for (method, path), handler in handlers.items():
            for spelled in spellings(path, azure=format_of(self._formats, path).azure):
                app.router.add_route(method, spelled, handler)
        unserved = Unserved(self._formats, handlers, self._count_unserved)
        app.router.add_route("*", "/{path:.*}", unserved.serve)
        app.on_startup.append(self._startup)
        app.on_cleanup.append(self._cleanup)
        return app

    def _handlers(self) -> dict[Route, Callable[[web.Request], Awaitable[web.StreamResponse]]]:
        """The route table."""
        pipeline, formats = self._pipeline, self._formats
        return {
            **{("POST", path): partial(pipeline.serve, api=api) for path, api in formats.items()},
            **{
                route: partial(pipeline.serve, api=api, handler=handler)
                for api in formats.values()
                for route, handler in api.routes().items()
            },
            ("GET", "/v1/models"): self._models,
            ("GET", "/health"): self._health,
            ("GET", "/metrics"): self._show_metrics,
        }

    async def start(self, listener: socket.socket | None = None) -> str:
        """Serve where the settings say, or on a socket that listens already, and return the base URL for
        agents (``http://host:port/v1``; see :mod:`~agentlightning.gateway.settings`).

        Raise :class:`UsageError` for a host that other machines can reach, unless the keys' secret was chosen
        (``AGL_SECRET``).
        """
        if self._runner is not None:
            raise RuntimeError(f"the gateway is started already, at {self._url}")
        listen, advertise = self._settings.listen, self._settings.advertise
        if listener is None:
            host, port = parse_listen(listen, advertise, guarded=self._keys.shared)
        else:
            host, port, *_ = listener.getsockname()
        runner = app_runner(
            self.app(local=is_loopback(host)),
            max_line_size=HEADER_LIMIT,
            max_field_size=HEADER_LIMIT,
            shutdown_timeout=1.0,
        )
        await runner.setup()
        try:
            if listener is None:
                await web.TCPSite(runner, host, port, backlog=1024).start()
            else:
                await web.SockSite(runner, listener, backlog=1024).start()
        except OSError as error:
            await runner.cleanup()
            raise cannot_serve(host, port, error) from error
        self._runner = runner
        self._url = agent_url(host, runner.addresses[0][1], advertise)
        return self._url

    @property
    def urls(self) -> list[str]:
        """The base URL while started."""
        if self._url is None:
            raise RuntimeError("the gateway is not started: await start()")
        return [self._url]

    async def stop(self) -> None:
        """Stop serving. Calls under way are cancelled, and recorded."""
        if self._runner is None:
            return
        runner, self._runner, self._url = self._runner, None, None
        for site in list(runner.sites):
            await site.stop()
        await self._attempts.stop()
        await runner.cleanup()

    async def _startup(self, app: web.Application) -> None:
        await self._client.start()
        enlarge_young_generation()
        limit_libraries()

    async def _cleanup(self, app: web.Application) -> None:
        restore_thresholds()
        await self._client.stop()

    # ------------------------------------------------------------------------------------------- handlers
    def _bears_key(self, request: web.Request) -> bool:
        try:
            identify(request.headers, self._keys)
        except RequestRefused:
            return False
        return True

    async def _refuse_cross_origin(self, request: web.Request, why: RequestRefused) -> web.StreamResponse:
        await self._pipeline.writer.count_refused(why)
        return await AgentReply(request, format_of(self._formats, request.path)).refuse(why)

    async def _count_unserved(self, request: web.Request, why: RequestRefused) -> None:
        """Count a request of no route, for the attempt of its key if it has one."""
        try:
            claims = identify(request.headers, self._keys).claims
        except RequestRefused as refused:
            claims = refused.claims
        await self._pipeline.writer.count_refused(why.of(claims))

    async def _models(self, request: web.Request) -> web.Response:
        shared = {"object": "model", "created": 0, "owned_by": "agentlightning"}
        return web.json_response({"object": "list", "data": [{"id": name, **shared} for name in self.routes]})

    async def _health(self, request: web.Request) -> web.Response:
        status = "paused" if self._gate.paused else "ok"
        return web.json_response({"status": status, "policies": list(self.routes)})

    async def _show_metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(self.state()), content_type="application/json")

    def state(self) -> dict[str, object]:
        """Counters, calls under way, and the endpoints of each policy, for JSON."""
        gate = self._gate
        return {
            **self.metrics.as_dict(),
            "attempts": len(self._attempts),
            "paused": gate.paused,
            "in_flight": gate.in_flight,
            "waiting": gate.waiting,
            "waited": gate.waited_total,
            "engines": {
                policy: [e.state() for e in route.endpoints.all] for policy, route in self.routes.items()
            },
            "policies_held": gate.policies,
            "replayed_kinds": {
                policy: [f"{'with' if tools else 'without'} tools" for tools in sorted(route.inexact_streams)]
                for policy, route in self.routes.items()
            },
        }
