"""What came of a request, as it is sent: a result, or an error by the name of its type."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from agentlightning.store.base import AttemptEnded, Conflict, NotFound, StoreError
from agentlightning.types.arrays import from_either


class TooLarge(StoreError, ValueError):
    """The request is larger than the store takes: to send it again cannot succeed."""


class Unauthorized(StoreError):
    """The server of the store knows no token of the request; the message says which kind is wanted."""


class Forbidden(StoreError):
    """The token's role may not do this; the message names the role that may."""


class Busy(StoreError):
    """The server has more writes under way than it takes; the same request may be sent again later."""


class ErrorBody(msgspec.Struct):
    """The body of an error; ``error`` is the name of its type."""

    error: str
    message: str


class BatchOutcome(msgspec.Struct, omit_defaults=True):
    """The outcome of one call of a batch: a result, or an error."""

    result: Any = None
    error: ErrorBody | None = None


ERRORS: Final[tuple[type[Exception], ...]] = (
    *(AttemptEnded, Conflict, NotFound, Unauthorized, Forbidden, Busy, StoreError),
    *(msgspec.ValidationError, msgspec.DecodeError, ValueError, TypeError, OverflowError, RecursionError),
)
"""The errors that are told by their type and text, subclasses first. Any other is a bug."""


def error_body(error: Exception) -> ErrorBody:
    """Return the body of an error; that of a bug has not its text."""
    for kind in ERRORS:
        if isinstance(error, kind):
            return ErrorBody(kind.__name__, str(error))
    return ErrorBody("InternalError", f"{type(error).__name__} in the store; its log says more")


def error_from_body(found: ErrorBody) -> Exception:
    """Make the exception of an error's body, by the name of its type."""
    for kind in ERRORS:
        if kind.__name__ == found.error:
            if issubclass(kind, (msgspec.ValidationError, msgspec.DecodeError)):
                return ValueError(found.message)
            return kind(found.message)
    return StoreError(f"{found.error}: {found.message}")


def to_outcome(found: Any) -> BatchOutcome:
    """Return the outcome of a call, to send and to remember."""
    return (
        BatchOutcome(error=error_body(found)) if isinstance(found, Exception) else BatchOutcome(result=found)
    )


def from_outcome(kind: Any, found: BatchOutcome) -> Any:
    """Return the result, of type ``kind``, or the exception of an outcome; the exception is not raised."""
    if found.error is not None:
        return error_from_body(found.error)
    return msgspec.convert(found.result, kind, dec_hook=from_either)
