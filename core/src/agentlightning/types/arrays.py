"""Numbers per token as arrays that behave like lists, and how records with arrays go in and out of JSON.

A number takes 1, 4 or 8 bytes here and up to 40 in a list; ``numpy.frombuffer`` and ``torch.frombuffer`` read
an array without a copy. JSON has lists of numbers in their place, MessagePack has the bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import msgspec

from agentlightning.types.tokens import TokenIds, little_endian

if TYPE_CHECKING:
    _Ints: TypeAlias = array[int]
    _Floats: TypeAlias = array[float]
else:  # generic for type checkers alone
    _Ints = _Floats = array


class _ListLike:
    """What lists can and arrays of the standard library cannot: compare with lists, keep their class in a
    slice, take a list as a slice.
    """

    __slots__ = ()
    code: ClassVar[str]

    def __new__(cls, values: Iterable[float] | bytes = ()) -> Any:
        """``ValueError`` for values that are no numbers, or too large."""
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


def as_floats(values: Iterable[float]) -> Floats:
    """Numbers as an array; an array as it is."""
    return values if isinstance(values, Floats) else Floats(values)


def make_arrays(record: object, **kinds: Any) -> None:
    """Turn lists in fields of ``record`` into arrays; ``kinds``: field → type of array."""
    for field, kind in kinds.items():
        values = getattr(record, field)
        if values is not None and type(values) is not kind:
            setattr(record, field, kind(values))


def pack_float32(values: Iterable[float]) -> bytes:
    """Numbers as little-endian float32, the precision that engines give logprobs in."""
    return little_endian(array("f", values)).tobytes()


def unpack_float32(data: bytes) -> Floats:
    """The inverse of :func:`pack_float32`."""
    found: Floats = Floats(little_endian(array("f", data)))
    return found


def unwrap_scalar(value: Any, *, one_element: bool = False) -> Any:
    """The Python number in a scalar of numpy, torch and the like (an array without dimensions); other values
    as they are. ``one_element``: in an array with one element, too. Objects of agents may raise here.
    """
    if callable(item := getattr(value, "item", None)) and (
        one_element or getattr(value, "shape", None) == ()
    ):
        return item()
    return value


def to_list(value: Any) -> Any:
    """``enc_hook`` of msgspec for JSON and built-in types: arrays as lists."""
    if isinstance(value, ARRAYS):
        return value.tolist()
    raise TypeError(f"objects of type {type(value).__name__} have no form in JSON")


def to_bytes(value: Any) -> Any:
    """``enc_hook`` of msgspec for MessagePack: arrays as little-endian bytes."""
    if isinstance(value, TokenIds):
        return value.packed()
    if isinstance(value, Flags | Ints | Floats):
        return little_endian(array(value.code, value)).tobytes()
    raise TypeError(f"objects of type {type(value).__name__} have no form in MessagePack")


def from_either(kind: Any, value: Any) -> Any:
    """``dec_hook`` of msgspec: an array from a list of numbers, or from bytes."""
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
