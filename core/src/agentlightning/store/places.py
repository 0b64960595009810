"""Places of stores as text that may be shown and kept."""

from __future__ import annotations

from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

_SECRETS = ("password", "sslpassword", "token")
_SHOWN = "***"


def without_password(place: object) -> str:
    """Return a store's place as text, with ``***`` in place of a password in it.

    It hides too much rather than too little: in a URL that cannot be read, all between ``://`` and the last
    ``@``.
    """
    text = str(place)
    scheme, is_url, rest = text.partition("://")
    if not is_url or ("@" not in rest and "?" not in rest):
        return text
    head, at, tail = rest.rpartition("@")
    user, colon, _ = head.partition(":")
    if at:
        text = f"{scheme}://{user}{f':{_SHOWN}' if colon else ''}@{tail}"
    try:
        parts = urlsplit(text)
    except ValueError:
        return text.partition("?")[0]
    if not parts.query:
        return text
    query = [(name, _SHOWN if name in _SECRETS else value) for name, value in parse_qsl(parts.query, True)]
    return urlunsplit(parts._replace(query=urlencode(query, safe="*/,=-", quote_via=quote)))
