"""Fields of a request's body by their types, and the error that names one.

Invariant: a value of another type is refused with status 400, never converted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class ApiError(Exception):
    """An answer other than 200, in the shape of OpenAI's errors."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def field(body: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    """``body[name]`` if of ``kind`` (an int is a float too), None if absent or null. Raises ApiError."""
    value = body.get(name)
    if value is None:
        return None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)  # type: ignore[return-value]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ApiError(400, f"{name} must be of type {kind.__name__}, got {type(value).__name__}", name)
    return value


def strings(value: Any, name: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise ApiError(400, f"{name} must be a list of non-empty strings", name)
    return value
