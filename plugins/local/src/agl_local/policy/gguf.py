"""A reader of GGUF files: their metadata, and their tensors as float32.

Invariant: every length and offset is checked against the size of the file before it is used; a file that is
damaged, truncated or of an unknown kind raises :class:`BadModelFile`. Source: the GGUF specification,
versions 2 and 3 (https://github.com/ggml-org/ggml/blob/master/docs/models.md).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from agentlightning.types import UsageError

T = TypeVar("T")
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Type number of a metadata value → its format in :mod:`struct`."""
_CHUNK = 1 << 20
"""Values that are decoded at a time: it bounds the memory of temporary arrays."""


class BadModelFile(UsageError, ValueError):
    """A model file that is damaged or cannot be converted; the text names the file and the reason."""


# ------------------------------------------------------------------------------------- encodings of tensors
@dataclass(frozen=True, slots=True)
class Encoding:
    """How a tensor is stored: ``values`` of a row share a block of ``size`` bytes."""

    name: str
    values: int
    size: int
    decode: Callable[[Bytes], Floats]
    """Blocks (n, size) → values (n, values)."""


def _decode_f32(blocks: Bytes) -> Floats:
    return blocks.view("<f4").astype(np.float32)


def _decode_f16(blocks: Bytes) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def _decode_q4_0(blocks: Bytes) -> Floats:
    return (_nibbles(blocks[:, 2:]) - np.float32(8)) * _half(blocks, 0)


def _decode_q4_1(blocks: Bytes) -> Floats:
    return _nibbles(blocks[:, 4:]) * _half(blocks, 0) + _half(blocks, 2)


def _decode_q8_0(blocks: Bytes) -> Floats:
    return blocks[:, 2:].view(np.int8).astype(np.float32) * _half(blocks, 0)


def _half(blocks: Bytes, at: int) -> Floats:
    """Return the float16 at byte ``at`` of each block, as a column."""
    return blocks[:, at : at + 2].copy().view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Floats:
    """Return the low halves of the bytes, then the high halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)


ENCODINGS = {
    0: Encoding("F32", 1, 4, _decode_f32),
    1: Encoding("F16", 1, 2, _decode_f16),
    2: Encoding("Q4_0", 32, 18, _decode_q4_0),
    3: Encoding("Q4_1", 32, 20, _decode_q4_1),
    8: Encoding("Q8_0", 32, 34, _decode_q8_0),
}
_OTHERS = {
    6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K",
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip
"""Tensor types that are not decoded, for the error."""


# ------------------------------------------------------------------------------------------------- the file
@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies in the file. ``shape`` is in numpy's order, rows first."""

    shape: tuple[int, ...]
    encoding: Encoding
    start: int
    size: int
    """Bytes."""


class GGUFFile:
    """An open GGUF file: ``metadata`` by key and ``tensors`` by name. The file is mapped, not read.

    Raises :class:`BadModelFile`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise BadModelFile(f"{self.path}: there is no such file")
        if self.path.stat().st_size < 24:
            raise BadModelFile(f"{self.path}: not a GGUF file: it has {self.path.stat().st_size} bytes")
        self._data: Bytes = np.memmap(self.path, np.uint8, "r")
        cursor = _Cursor(self.path, self._data.data)
        n_tensors, n_keys = _read_counts(cursor)
        self.metadata: Mapping[str, Any] = _read_metadata(cursor, n_keys)
        self.tensors: Mapping[str, TensorInfo] = _read_tensors(cursor, n_tensors, self._alignment())

    def get(self, key: str, kind: type[T], default: T) -> T:
        """Return the value of ``key``; ``default`` if the file has none. Raise if it is of another type."""
        value = self.metadata.get(key, default)
        if type(value) is not kind:  # exactly: True is no number
            raise BadModelFile(f"{self.path}: {key} is a {type(value).__name__}, not a {kind.__name__}")
        return value

    def need(self, key: str, kind: type[T]) -> T:
        """Return the value of ``key``. Raise if the file has none, or one of another type."""
        if key not in self.metadata:
            raise BadModelFile(
                f"{self.path}: the file has no {key!r}, which a conversion needs; download the file again, "
                "or give the model's folder in Hugging Face layout"
            )
        return self.get(key, kind, cast(T, self.metadata[key]))

    def read(self, name: str) -> Floats:
        """Return a tensor as float32. Values may be infinite or not a number, if the file is damaged."""
        tensor = self.tensors[name]
        stored = self._data[tensor.start : tensor.start + tensor.size].reshape(-1, tensor.encoding.size)
        values = np.empty((len(stored), tensor.encoding.values), np.float32)
        step = _CHUNK // tensor.encoding.values
        with np.errstate(all="ignore"):
            for first in range(0, len(stored), step):
                values[first : first + step] = tensor.encoding.decode(stored[first : first + step])
        return values.reshape(tensor.shape)

    def _alignment(self) -> int:
        alignment = self.get("general.alignment", int, 32)
        if alignment < 1 or alignment % 8:
            raise BadModelFile(f"{self.path}: general.alignment is {alignment}, not a multiple of 8")
        return alignment


class _Cursor:
    """Reads a mapped file from front to back, and never past its end."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self.path = path
        self.data = data
        self.at = 0

    def error(self, problem: str) -> BadModelFile:
        return BadModelFile(f"{self.path}: {problem} (at byte {self.at} of {len(self.data)})")

    def unpack(self, form: str) -> tuple[Any, ...]:
        """Return values of a little-endian :mod:`struct` format."""
        values = struct.unpack_from(f"<{form}", self.data, self._skip(struct.calcsize(f"<{form}")))
        return values

    def number(self, form: str) -> Any:
        return self.unpack(form)[0]

    def string(self) -> str:
        size = self.number("Q")
        start = self._skip(size)
        try:
            return str(self.data[start : start + size], "utf-8")
        except UnicodeDecodeError:
            raise self.error("a string is not UTF-8: the file is damaged") from None

    def value(self, kind: int) -> Any:
        """Return a metadata value of type ``kind``."""
        if kind == _STRING:
            return self.string()
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind != _ARRAY:
            raise self.error(f"a metadata value has the unknown type {kind}")
        item, count = self.unpack("IQ")
        if item == _STRING:
            self._check(8 * count)
            return [self.string() for _ in range(count)]
        if item not in _SCALARS:
            raise self.error(f"a metadata array has items of the unknown type {item}")
        self._check(count)
        return list(self.unpack(f"{count}{_SCALARS[item]}"))

    def _check(self, size: int) -> None:
        if size > len(self.data) - self.at:
            raise self.error(
                f"the file ends within a value of {size} bytes or more: it is truncated or damaged; "
                "download it again"
            )

    def _skip(self, size: int) -> int:
        """Pass over ``size`` bytes and return where they begin."""
        self._check(size)
        start = self.at
        self.at += size
        return start


def _read_counts(cursor: _Cursor) -> tuple[int, int]:
    """Read the header. Return the numbers of tensors and of metadata keys."""
    magic, version = cursor.unpack("4sI")
    if magic != MAGIC:
        raise BadModelFile(f"{cursor.path}: not a GGUF file: it begins with {magic!r}, not {MAGIC!r}")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        kind = "big-endian" if swapped else f"of GGUF version {version}"
        raise BadModelFile(
            f"{cursor.path}: the file is {kind}; versions 2 and 3, little-endian, are read. Convert the "
            "model again with a present llama.cpp"
        )
    n_tensors, n_keys = cursor.unpack("QQ")
    return n_tensors, n_keys


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.string()
        if key in found:
            raise cursor.error(f"the key {key!r} stands in the file twice")
        found[key] = cursor.value(cursor.number("I"))
    return found


def _read_tensors(cursor: _Cursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    """Read the table of tensors, and check that each lies in the file and that none overlap."""
    table: dict[str, tuple[tuple[int, ...], Encoding, int]] = {}
    for _ in range(count):
        name = cursor.string()
        dimensions = cursor.number("I")
        if name in table or not 1 <= dimensions <= 4:
            raise cursor.error(f"the table names {name!r} twice, or with {dimensions} dimensions")
        shape = tuple(reversed(cursor.unpack(f"{dimensions}Q")))
        kind, offset = cursor.unpack("IQ")
        if kind not in ENCODINGS:
            known = ", ".join(encoding.name for encoding in ENCODINGS.values())
            stored = _OTHERS.get(kind, f"type {kind}")
            raise BadModelFile(
                f"{cursor.path}: the tensor {name!r} is stored as {stored}; {known} are read. Take "
                "a file of the model in one of these, e.g. Q8_0 or F16"
            )
        table[name] = (shape, ENCODINGS[kind], offset)
    begin = math.ceil(cursor.at / alignment) * alignment
    found: dict[str, TensorInfo] = {}
    end = begin
    for name, (shape, encoding, offset) in sorted(table.items(), key=lambda item: item[1][2]):
        size = math.prod(shape) // encoding.values * encoding.size
        start = begin + offset
        if not size or shape[-1] % encoding.values or offset % alignment:
            raise cursor.error(
                f"the tensor {name!r} of shape {shape} at {offset} cannot be stored as {encoding.name}: the "
                "file is damaged"
            )
        if start < end or start + size > len(cursor.data):
            where = "overlaps another one" if start < end else "ends after the file"
            raise cursor.error(
                f"the tensor {name!r}, bytes {start} to {start + size}, {where}: the file is truncated or "
                "damaged; download it again"
            )
        found[name] = TensorInfo(shape, encoding, start, size)
        end = start + size
    return found
