"""Numbers per token as arrays that behave like lists, and the hooks that encode and decode them.

A number takes 1, 4 or 8 bytes here and up to 40 in a list; ``numpy.frombuffer`` and ``torch.frombuffer`` read
an array without a copy. JSON has lists of numbers in their place, MessagePack has the bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import msgspec

from agentlightning.types.tokens import WIDTH, TokenIds, little_endian

if TYPE_CHECKING:
    _Ints: TypeAlias = array[int]
    _Floats: TypeAlias = array[float]
else:  # generic for type checkers alone
    _Ints = _Floats = array


class _ListLike:
    """Adds to an array of the standard library: comparison with lists, slices of the same class, and lists
    assigned to slices.
    """

    __slots__ = ()
    code: ClassVar[str]

    def __new__(cls, values: Iterable[float] | bytes = ()) -> Any:
        """Raise ``ValueError`` for a value that is no number, or too large."""
        try:
            return super().__new__(cls, cls.code, values)  # type: ignore[call-arg]
        except (OverflowError, TypeError) as error:
            raise ValueError(f"{cls.__name__} holds numbers of C type {cls.code!r}: {error}") from None

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)  # type: ignore[misc]
        return type(self)(found) if isinstance(index, slice) else found

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, slice) and not isinstance(value, array):
            value = array(self.code, value)
        super().__setitem__(index, value)  # type: ignore[misc]

    def __eq__(self, other: object) -> Any:
        if isinstance(other, list | tuple):
            return len(self) == len(other) and list(self) == list(other)  # type: ignore[arg-type, call-overload]
        return super().__eq__(other)

    def __ne__(self, other: object) -> Any:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))  # type: ignore[call-overload]

    def __copy__(self) -> Any:
        return type(self)(self)  # type: ignore[arg-type]

    def __deepcopy__(self, _: Any) -> Any:
        return type(self)(self)  # type: ignore[arg-type]


class Flags(_ListLike, _Ints):
    """0 or 1 a token, in one byte (int8)."""

    __slots__ = ()
    code = "b"


class Ints(_ListLike, _Ints):
    """Whole numbers (int32)."""

    __slots__ = ()
    code = "i"


class Floats(_ListLike, _Floats):
    """Real numbers (float64)."""

    __slots__ = ()
    code = "d"


ARRAYS = (TokenIds, Flags, Ints, Floats)


def make_arrays(record: object, **kinds: Any) -> None:
    """Turn lists in fields of ``record`` into arrays; ``kinds``: field → type of array."""
    for field, kind in kinds.items():
        values = getattr(record, field)
        if values is not None and type(values) is not kind:
            setattr(record, field, kind(values))


def pack_float32(values: Iterable[float]) -> bytes:
    """Pack numbers as little-endian float32, the precision of an engine's logprobs."""
    numbers = values.tolist() if isinstance(values, array) else values  # an array of another type is slow
    return little_endian(array("f", numbers)).tobytes()


def unpack_float32(data: bytes) -> Floats:
    """Undo :func:`pack_float32`."""
    found: Floats = Floats(little_endian(array("f", data)))
    return found


def pack_int64(values: Iterable[int]) -> bytes:
    """Pack whole numbers as little-endian int64. An array is widened column by column of its bytes, because
    a step of long rollouts has tens of millions of numbers, which would all become Python objects.
    """
    if isinstance(values, TokenIds):
        return _widened(values.packed(), WIDTH)
    if isinstance(values, Flags | Ints):
        return _widened(little_endian(array(values.code, values)).tobytes(), values.itemsize)
    return little_endian(array("q", values)).tobytes()


_SIGN = bytes(0xFF if byte & 0x80 else 0 for byte in range(256))
_POSITIVE = bytes(range(0x80))


def _widened(data: bytes, width: int) -> bytes:
    """Little-endian integers of ``width`` bytes as integers of eight."""
    found = bytearray(len(data) // width * 8)
    for place in range(width):
        found[place::8] = data[place::width]
    top = data[width - 1 :: width]
    if top.translate(None, _POSITIVE):  # a negative number, whose sign fills the bytes above
        sign = top.translate(_SIGN)
        for place in range(width, 8):
            found[place::8] = sign
    return bytes(found)


def unwrap_scalar(value: Any, *, one_element: bool = False) -> Any:
    """Return the Python number in a scalar of numpy, torch and the like (an array without dimensions), and
    any other value unchanged. ``one_element``: unwrap an array with one element, too. An agent's object may
    raise.
    """
    if callable(item := getattr(value, "item", None)) and (
        one_element or getattr(value, "shape", None) == ()
    ):
        return item()
    return value


def to_list(value: Any) -> Any:
    """Encode arrays as lists: ``enc_hook`` of msgspec for JSON and built-in types."""
    if isinstance(value, ARRAYS):
        return value.tolist()
    raise TypeError(f"objects of type {type(value).__name__} have no form in JSON")


def to_bytes(value: Any) -> Any:
    """Encode arrays as little-endian bytes: ``enc_hook`` of msgspec for MessagePack."""
    if isinstance(value, TokenIds):
        return value.packed()
    if isinstance(value, Flags | Ints | Floats):
        return little_endian(array(value.code, value)).tobytes()
    raise TypeError(f"objects of type {type(value).__name__} have no form in MessagePack")


def from_either(kind: Any, value: Any) -> Any:
    """Decode an array from a list of numbers or from bytes: ``dec_hook`` of msgspec."""
    if kind is TokenIds:
        return TokenIds.unpacked(value) if isinstance(value, bytes) else TokenIds(_numbers(value, int))
    if kind in ARRAYS:
        if isinstance(value, bytes):
            return little_endian(kind(value))
        return kind(_numbers(value, float if kind is Floats else int))
    raise NotImplementedError(f"{kind} is no type of a record")


def _numbers(value: Any, kind: Any) -> list[Any]:
    found: list[Any] = msgspec.convert(value, list[kind])
    return found
