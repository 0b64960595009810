"""Who may look: a key that opens the pages once, and the cookie or bearer token of those who have.

The address that ``agl dashboard`` prints holds a key. The first request with it gets a cookie, and the key is
worth nothing from then on: an address in a shell's history, a log or a screen-shot opens nothing.

Invariant: no page but the one that explains this is answered without cookie or token. Both are compared in
constant time.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Callable
from typing import Final

from aiohttp import web

from agentlightning.webserver.loopback import check_token

TOKEN_VARIABLE: Final = "AGL_DASHBOARD_TOKEN"
OPEN: Final = "/open"
WEEK: Final = 7 * 86_400


class Access:
    """The secrets of one server. ``say``: prints a line for the person at the terminal."""

    def __init__(self, token: str | None = None, say: Callable[[str], None] = print) -> None:
        self.given = check_token(token, TOKEN_VARIABLE)
        self.token = self.given or secrets.token_urlsafe(32)
        self.key = secrets.token_urlsafe(24)
        self.say = say
        self.url = ""

    @classmethod
    def from_env(cls, say: Callable[[str], None]) -> Access:
        """Take the token of ``AGL_DASHBOARD_TOKEN``, or make one that lasts as long as the server."""
        return cls(os.environ.get(TOKEN_VARIABLE), say)

    def announce(self, url: str) -> None:
        """Print the address that opens the pages once."""
        self.url = url
        self.say(f"agl dashboard on {self.link()}")

    def link(self) -> str:
        """Return the address with the present key."""
        return f"{self.url}{OPEN}?key={self.key}"

    def cookie(self, request: web.Request) -> str:
        """Return the cookie's name: servers on several ports of one host share a jar."""
        port = request.url.port or 80
        return f"agl_dashboard_{port}"

    def allowed(self, request: web.Request) -> bool:
        """Return whether a request bears the cookie or the token."""
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return any(_same(found, self.token) for found in (request.cookies.get(self.cookie(request)), bearer))

    async def open(self, request: web.Request) -> web.Response:
        """Take a key, set the cookie, print the next key's address."""
        if not _same(request.query.get("key", ""), self.key):
            raise web.HTTPForbidden(text="this address was used already, or was never valid")
        self.key = secrets.token_urlsafe(24)
        if self.url:
            self.say(f"opened in a browser; for another one: {self.link()}")
        found = web.Response(status=303, headers={"Location": "/"})
        found.set_cookie(
            self.cookie(request), self.token, max_age=WEEK, httponly=True, samesite="Strict", path="/"
        )
        return found


def _same(given: str | None, expected: str) -> bool:
    return bool(given) and hmac.compare_digest((given or "").encode(errors="replace"), expected.encode())
