"""The application: routes to pages, in front of them the checks of who asks.

Every route is a GET: nothing of a store can be changed through this server.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from agentlightning.store import StoreError
from agentlightning.store.base import NotFound
from agentlightning.types import UsageError
from agentlightning.types.base import RequestRefused
from agentlightning.webserver import app_runner, listen
from agentlightning.webserver.guard import Handler, guard
from agentlightning.webserver.loopback import check_interface, is_loopback
from agl_dashboard.data.places import NoSuchPlace, Places
from agl_dashboard.data.query import BadQuery
from agl_dashboard.pages import ROUTES
from agl_dashboard.server import live
from agl_dashboard.server.access import OPEN, TOKEN_VARIABLE, Access
from agl_dashboard.server.context import CONTEXT, Context
from agl_dashboard.server.headers import add_headers
from agl_dashboard.server.render import STATIC, render

_log = logging.getLogger(__name__)
_PART: Final = re.compile(r"\{(\w+)\}")
_FREE: Final = ("/static/", OPEN, "/health")
"""What is answered to anybody: nothing of a store."""


@dataclass(frozen=True)
class Dashboard:
    """A running server."""

    url: str
    runner: web.AppRunner
    context: Context

    async def close(self) -> None:
        """End the streams, then close the stores."""
        await self.runner.cleanup()
        await self.context.close()


async def start(places: Places, access: Access, host: str = "127.0.0.1", port: int = 0) -> Dashboard:
    """Serve the pages. ``ExposedServer``: other machines reach ``host``, and no token was given."""
    check_interface("the dashboard", host, guarded=access.given is not None, variable=TOKEN_VARIABLE)
    context = Context(places)
    app = create_app(context, access, local=is_loopback(host))
    runner = app_runner(app, shutdown_timeout=1.0)
    return Dashboard(await listen(runner, host, port), runner, context)


def create_app(context: Context, access: Access, *, local: bool = True) -> web.Application:
    """Make the application. ``local``: it listens on loopback only, so its names are known."""
    checks = [add_headers(), guard(_refuse, local=local), _errors, _require(access)]
    app = web.Application(middlewares=checks)
    app[CONTEXT] = context
    app.router.add_get(OPEN, access.open)
    app.router.add_get("/health", _health)
    app.router.add_static("/static/", STATIC)
    app.router.add_get("/s/{place}/events", _events)
    for path, page in ROUTES.items():
        app.router.add_get(_PART.sub(r"{\1:[^/]+}", path), page)  # an id may hold any character
    return app


async def _health(_: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def _events(request: web.Request) -> web.StreamResponse:
    store = await request.app[CONTEXT].places.store(request.match_info["place"])
    return await live.stream(request, store)


async def _refuse(request: web.Request, why: RequestRefused) -> web.Response:
    return web.Response(text=why.message, status=why.status)


def _require(access: Access) -> Any:
    @web.middleware
    async def required(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith(_FREE) or access.allowed(request):
            return await handler(request)
        return render(request, "locked.html", {"title": "Locked", "variable": TOKEN_VARIABLE}, 401)

    return required


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer an error as a page that says what is wrong; what is this package's fault is logged, too."""
    try:
        return await handler(request)
    except (NoSuchPlace, NotFound, LookupError) as error:
        if not isinstance(error, UsageError):
            _log.exception("error in %s", request.path)
            return _problem(
                request, 500, f"{type(error).__name__}: this is a fault of the dashboard; see its log"
            )
        return _problem(request, 404, str(error))
    except BadQuery as error:
        return _problem(request, 400, str(error))
    except StoreError as error:
        return _problem(request, 503, str(error))
    except UsageError as error:
        return _problem(request, 400, str(error))
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return _problem(request, error.status, _said(error, request))
    except Exception as error:
        _log.exception("error in %s", request.path)
        return _problem(
            request, 500, f"{type(error).__name__}: this is a fault of the dashboard; see its log"
        )


def _said(error: web.HTTPException, request: web.Request) -> str:
    if error.status == 404:
        return f"there is no page {request.path[:200]}"
    if error.status == 405:
        return "every page is read with GET; nothing can be changed here"
    return error.text or error.reason


def _problem(request: web.Request, status: int, message: str) -> web.Response:
    return render(
        request, "problem.html", {"title": str(status), "status": status, "message": message}, status
    )
