"""Which addresses only this machine can reach, and the tokens that any other address needs."""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import socket
from functools import cache, lru_cache
from typing import Final

from agentlightning.types import UsageError

MIN_TOKEN_LENGTH: Final = 16
"""Characters of a token below which a warning is logged."""
_log = logging.getLogger(__name__)


class ExposedServer(UsageError, ValueError):
    """A server would be open to other machines without a token; the message names a way out."""


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Return whether ``host`` is ``localhost`` or a loopback address. No name is looked up."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@cache
def loopback() -> str:
    """Return the loopback address of this machine: ``127.0.0.1``, and ``::1`` where there is IPv6 alone."""
    for host, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)):
        try:
            socket.create_server((host, 0), family=family).close()
        except OSError:
            continue
        return host
    return "127.0.0.1"  # neither: whoever listens gets the system's error


def interface(host: str) -> str:
    """Return the address to bind for ``host``: :func:`loopback` for ``127.0.0.1``, else ``host`` itself."""
    return loopback() if host == "127.0.0.1" else host


def address(host: str) -> str:
    """Return ``host`` as a URL's authority has it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def cannot_listen(what: str, host: str, port: int, error: OSError, choose: str) -> UsageError:
    """Return the error of a server that has no port. ``choose``: the option or key that names another."""
    place = f"{address(host)}:{port}"
    if error.errno == errno.EADDRINUSE:
        return UsageError(
            f"{what} cannot listen on {place}: the port is in use. End the process that has it (`ss -ltnp` "
            f"lists them), or choose another port by {choose}; 0 takes a free one"
        )
    return UsageError(f"{what} cannot listen on {place}: {error.strerror or error}; choose by {choose}")


def host_of(authority: str) -> str:
    """Return the host of a ``Host`` header or a URL's authority, in lower case, without port and brackets."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0].lower()
    return authority.partition(":")[0].rstrip(".").lower()


def check_token(token: str | None, variable: str) -> str | None:
    """Check a token and return it unchanged. An empty token is refused: whoever set the variable wanted one.
    A short token can be guessed, so a warning is logged.
    """
    if token is None:
        return None
    if not token.strip():
        raise ExposedServer(
            f"{variable} is empty: set it to a token, e.g. from `openssl rand -hex 32`, or unset it"
        )
    if token != token.strip() or not token.isprintable() or not token.isascii():
        raise ExposedServer(
            f"{variable} cannot be sent in a header: give printable ASCII without spaces at its ends, e.g. "
            "from `openssl rand -hex 32`"
        )
    if len(token) < MIN_TOKEN_LENGTH:
        _log.warning(
            "%s has %d characters and can be guessed: give at least %d, e.g. from `openssl rand -hex 32`",
            variable,
            len(token),
            MIN_TOKEN_LENGTH,
        )
    return token


def token_from_env(variable: str) -> str | None:
    """Return the checked token of an environment variable; ``None`` where it is not set."""
    return check_token(os.environ.get(variable), variable)


def check_interface(what: str, host: str, *, guarded: bool, variable: str) -> None:
    """Refuse, before anything listens, to serve ``what`` on a host that other machines can reach. A server
    that is ``guarded`` by the secret of ``variable`` may listen there.
    """
    if not guarded and not is_loopback(host):
        raise ExposedServer(
            f"refusing to serve {what} on {host or 'every interface'} without a token: anybody there could "
            f"use it. Set {variable} (e.g. from `openssl rand -hex 32`), or serve on 127.0.0.1"
        )
