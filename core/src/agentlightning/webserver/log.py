"""aiohttp's server log without the text of requests: a header that is too long may be a key."""

from __future__ import annotations

import logging
from typing import Any, Final

from aiohttp import http_exceptions


class ServerLog(logging.LoggerAdapter[logging.Logger]):
    """Logs a malformed request as one line that names the error; everything else unchanged."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log, without the exception where its text quotes the request."""
        error = kwargs.get("exc_info")
        if isinstance(error, http_exceptions.HttpProcessingError):
            what = type(error).__name__
            super().log(logging.INFO, "a malformed request was refused: %s", what)
        else:
            super().log(level, msg, *args, **kwargs)


LOG: Final = ServerLog(logging.getLogger("aiohttp.server"))
