"""What may be shown and kept of secrets, and of text that other people wrote.

:func:`redacted` takes passwords and tokens out of URLs, and :func:`visible` makes text safe for a terminal;
:func:`shown` is for print and for log lines. Every page, message, log and record uses these. Each hides too
much rather than too little.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from types import TracebackType
from typing import TextIO
from urllib.parse import unquote_plus

HIDDEN = "***"
SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
"""Names of variables whose values are secret."""
_SECRET_PARAMETER = re.compile(
    r"(key|token|secret|passw(or)?d|passwd|pwd|sig|signature|credentials?)$", re.IGNORECASE
)
_URL = re.compile(r"\b([a-z][a-z0-9+.-]*)://([^\s\"\\<>`]+)", re.IGNORECASE)
_WHOLE = re.compile(r"([a-z][a-z0-9+.-]*)://([^\n]+)", re.IGNORECASE)
_HOST_AND_PORT = re.compile(r"(\[[^]]*]|[^/?#:@]*)(:\d*)?[/?#]")
"""Beginning of what holds no user before an ``@``."""
_PARAMETER = re.compile(r"([?&;#])([^=&;#\s]+)=([^&#\s]*)")
_WEB = ("http", "https", "ws", "wss")
_UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


def redacted(text: object) -> str:
    """Return a text with ``***`` in place of passwords and tokens in its URLs: what stands between ``:`` and
    ``@``, a user without a password in the URL of a web server, and the values of parameters such as
    ``token``, ``api_key`` and ``password``.
    """
    found = str(text)
    if "://" not in found:
        return found
    whole = _WHOLE.fullmatch(found)
    if whole is not None and whole[1].lower() not in _WEB and found.count("://") == 1:
        return _without_secrets(whole)  # a database's password may hold spaces
    return _URL.sub(_without_secrets, found)


def _without_secrets(found: re.Match[str]) -> str:
    scheme, rest = found[1], found[2]
    web = scheme.lower() in _WEB
    head, at, tail = rest.rpartition("@")
    if at and head and not head.startswith("/") and not (web and _HOST_AND_PORT.match(head)):
        user, colon, _ = head.partition(":")
        head = f"{user}:{HIDDEN}" if colon else HIDDEN if web else head
        rest = f"{head}@{tail}"
    return f"{scheme}://{_PARAMETER.sub(_parameter, rest)}"


def _parameter(found: re.Match[str]) -> str:
    name = unquote_plus(found[2])
    return f"{found[1]}{found[2]}={HIDDEN if _SECRET_PARAMETER.search(name) else found[3]}"


def visible(text: object) -> str:
    r"""Return a text that a terminal shows and does not obey: control characters (but tabs and line ends),
    C1 controls, controls of direction, invisible characters and lone surrogates as ``\u001b``. JSON stays
    the same JSON.
    """
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", str(text))


def shown(text: object) -> str:
    """Return a text as it may be printed: visible, and without the passwords of its URLs."""
    return visible(redacted(text))


def say(text: object, *, file: TextIO | None = None) -> None:
    """Print a text and a line end on stdout, or in ``file``."""
    print(shown(text), file=file, flush=True)


class ShownLines(logging.Formatter):
    """A formatter whose lines may be printed, and kept in a file that somebody prints."""

    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record))


def show_tracebacks() -> None:
    """Print the tracebacks of errors that nobody catches as they may be printed."""

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        say("".join(traceback.format_exception(kind, error, trace)).rstrip("\n"), file=sys.stderr)

    sys.excepthook = show
