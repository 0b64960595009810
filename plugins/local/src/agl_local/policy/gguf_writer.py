"""A writer of GGUF files: metadata, and tensors as F32, F16 or Q8_0.

Invariant: ``GGUFFile`` reads the same metadata and shapes, and of F32 the same bits. One tensor is in memory
at a time. Source: the GGUF specification, version 3.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from agl_local.policy.gguf import ENCODINGS, MAGIC, BadModelFile, Encoding, Floats

Storage = Literal["f32", "f16", "q8_0"]
"""How the matrices of a file are stored; vectors, which are few, are always F32."""
Value = str | bool | int | float | list[str] | list[int]
"""A metadata value. A whole number is unsigned, one in a list is signed; both have 32 bits."""
_NUMBERS: Mapping[Storage, int] = {"f32": 0, "f16": 1, "q8_0": 8}
_ALIGNMENT = 32


def write_gguf(
    path: Path,
    metadata: Mapping[str, Value],
    shapes: Mapping[str, tuple[int, ...]],
    read: Callable[[str], Floats],
    storage: Storage,
) -> None:
    """Write a file with the tensors of ``shapes`` (rows first), each of which ``read`` returns when its turn
    has come.

    ``storage`` is that of matrices; one whose rows cannot be cut into blocks is stored as F16, as llama.cpp
    does. Raise :class:`BadModelFile` for a number that F16 cannot hold; all are finite.
    """
    encodings = {name: _encoding_of(shape, storage) for name, shape in shapes.items()}
    head = struct.pack("<4sIQQ", MAGIC, 3, len(shapes), len(metadata))
    head += b"".join(_string(key) + _typed(value) for key, value in metadata.items())
    offset = 0
    for name, shape in shapes.items():
        number, encoding = encodings[name]
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += _string(name) + dimensions + struct.pack("<IQ", number, offset)
        offset += _padded(math.prod(shape) // encoding.values * encoding.size)
    with path.open("wb") as out:
        _write_padded(out, head)
        for name, shape in shapes.items():
            values = read(name)
            if values.shape != shape:
                raise BadModelFile(f"{name} is {values.shape}, not {shape}")
            _write_padded(out, _encoded(values, encodings[name][1], name))


def _encoding_of(shape: tuple[int, ...], storage: Storage) -> tuple[int, Encoding]:
    """Return number and encoding of a tensor."""
    number = _NUMBERS["f32" if len(shape) == 1 else storage]
    if shape[-1] % ENCODINGS[number].values:
        number = _NUMBERS["f16"]
    return number, ENCODINGS[number]


def _encoded(values: Floats, encoding: Encoding, where: str) -> bytes:
    if encoding.name == "F32":
        return values.astype("<f4").tobytes()
    if encoding.name == "Q8_0":
        return _q8_0(values.reshape(-1, encoding.values), where)
    return _halves(values, where).tobytes()


def _q8_0(blocks: Floats, where: str) -> bytes:
    """Return blocks of a scale in F16 and whole numbers from -127 to 127."""
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    levels = np.rint(blocks * inverse).astype(np.int8)
    return np.concatenate([_halves(scale, where).view(np.uint8), levels.view(np.uint8)], axis=1).tobytes()


def _halves(values: Floats, where: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        halves = values.astype("<f2")
    if not np.isfinite(halves).all():
        raise BadModelFile(f"{where} holds a number beyond 65504: store it as f32")
    return halves


def _write_padded(out: BinaryIO, data: bytes) -> None:
    out.write(data)
    out.write(bytes(_padded(len(data)) - len(data)))


def _padded(size: int) -> int:
    return math.ceil(size / _ALIGNMENT) * _ALIGNMENT


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _typed(value: Value) -> bytes:
    """Return the type and the bytes of a metadata value."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    texts = [_string(item) for item in value if isinstance(item, str)]
    if texts:
        return struct.pack("<IIQ", 9, 8, len(texts)) + b"".join(texts)
    return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
