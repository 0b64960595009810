"""Token ids as arrays, in one packing for digests, prefix tests, spans and the store.

Invariant: two id lists are equal exactly when their packed bytes are, and ``a`` is a prefix of ``b``
exactly when ``pack(a)`` is a prefix of ``pack(b)`` (every id takes 4 bytes, little-endian int32).
"""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

WIDTH = 4
"""Bytes of one packed id."""


def common_prefix(a: bytes, b: bytes, low: int = 0, limit: int | None = None) -> int:
    """Return how many leading token ids two packed lists share: at most ``limit``, and known to be at least
    ``low``. It bisects over comparisons of bytes.
    """
    high = min(len(a), len(b)) // WIDTH
    if limit is not None:
        high = min(high, limit)
    while low < high:
        middle = (low + high + 1) // 2
        if a[low * WIDTH : middle * WIDTH] == b[low * WIDTH : middle * WIDTH]:
            low = middle
        else:
            high = middle - 1
    return low


def little_endian(values: array[Any]) -> array[Any]:
    """Swap native and little-endian order; on a little-endian machine the array stays as it is."""
    if sys.byteorder == "big":
        values.byteswap()
    return values


_EMPTY = hashlib.blake2b(digest_size=16)
"""The hash of no bytes; it is copied, never updated."""


class PrefixDigests:
    """Bytes with the digests of their prefixes. Bytes are only appended."""

    __slots__ = ("_largest", "_lengths", "_states", "data")

    def __init__(self, data: bytes | bytearray | None = None) -> None:
        self.data = bytearray() if data is None else data
        self._largest = (0, -1)
        """The largest of the token ids in so many bytes from the start."""
        self._lengths = [0]
        self._states: dict[int, Any] = {0: _EMPTY}

    def digest(self, length: int) -> bytes:
        """Return the digest of the first ``length`` bytes. It continues the hash of the longest known prefix,
        so the digests of all prefixes together cost one pass.
        """
        if length not in self._states:
            at = bisect_right(self._lengths, length)
            known = self._lengths[at - 1]
            state = self._states[known].copy()
            with memoryview(self.data) as data:
                state.update(data[known:length])
            self._states[length] = state
            self._lengths.insert(at, length)
        found: bytes = self._states[length].digest()
        return found

    def digests(self, lengths: Iterable[int]) -> Iterator[bytes]:
        """Yield the digests of prefixes of ascending lengths; their hashes are not kept."""
        state, done = self._states[0], -1
        for length in lengths:
            known = self._lengths[bisect_right(self._lengths, length) - 1]
            if known > done:
                state, done = self._states[known], known
            if length > done:
                state = state.copy()
                with memoryview(self.data) as data:
                    state.update(data[done:length])
                done = length
            found: bytes = state.digest()
            yield found

    def hash_from(self, other: PrefixDigests) -> None:
        """Copy the hash of one of the last two prefixes of ``other``, the longest that this buffer begins
        with. Comparing bytes is some ten times as fast as hashing them.
        """
        for length in other._lengths[:-3:-1]:
            if (
                length
                and length not in self._states
                and self.data.startswith(memoryview(other.data)[:length])
            ):
                self._lengths.insert(bisect_right(self._lengths, length), length)
                self._states[length] = other._states[length]
                return

    def tail(self, length: int, width: int) -> bytes:
        """Return the last ``width`` of the first ``length`` bytes."""
        return bytes(self.data[max(0, length - width) : length])


class TokenIds(Sequence[int]):
    """Token ids, read-only, equal to a list or tuple of the same ids. A slice is a view of the same buffer.

    ``view()`` exports them without a copy (``numpy.frombuffer``, ``torch.frombuffer``). Calls that were read
    from a store share buffers: where a prompt begins with an earlier call's prompt and response, it is the
    same memory.
    """

    __slots__ = ("_buffer", "_start", "_stop")

    def __init__(self, ids: Iterable[int] = ()) -> None:
        """``ValueError`` for an id that is no int32: a record with such ids is broken."""
        data = bytearray(pack(ids))
        self._buffer, self._start, self._stop = PrefixDigests(data), 0, len(data) // WIDTH

    @classmethod
    def of(cls, buffer: PrefixDigests, start: int, stop: int) -> TokenIds:
        """Return the ids ``[start, stop)`` of a buffer."""
        ids = cls.__new__(cls)
        ids._buffer, ids._start, ids._stop = buffer, start, stop
        return ids

    @classmethod
    def unpacked(cls, data: bytes) -> TokenIds:
        """Undo :func:`pack`. ``ValueError``: the bytes end within an id."""
        if len(data) % WIDTH:
            raise ValueError(f"{len(data)} bytes are no token ids: each takes {WIDTH}")
        return cls.of(PrefixDigests(bytearray(data)), 0, len(data) // WIDTH)

    def packed(self) -> bytes:
        """Return the bytes of :func:`pack`."""
        return bytes(memoryview(self._buffer.data)[self._start * WIDTH : self._stop * WIDTH])

    def view(self) -> memoryview:
        """Return the ids as native int32. The buffer cannot grow while the view exists."""
        if sys.byteorder == "big":
            return memoryview(little_endian(array("i", self.packed())))
        whole = memoryview(self._buffer.data)[self._start * WIDTH : self._stop * WIDTH]
        return whole.cast("i")

    def largest(self) -> int:
        """Return the largest id, -1 without ids. In a growing buffer only the new ids are read."""
        done, known = self._buffer._largest
        stop = self._stop * WIDTH
        if self._start or done > stop:
            return max(self.tolist(), default=-1)
        found = max(known, max(self[done // WIDTH :].tolist(), default=-1))
        self._buffer._largest = stop, found
        return found

    def tolist(self) -> list[int]:
        """Return the ids as a list."""
        return self.view().tolist()

    def __len__(self) -> int:
        return self._stop - self._start

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> TokenIds: ...
    def __getitem__(self, index: int | slice) -> int | TokenIds:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return TokenIds(self.tolist()[index])
            return TokenIds.of(self._buffer, self._start + start, self._start + max(start, stop))
        found: int = self.view()[index]
        return found

    def __iter__(self) -> Iterator[int]:
        return iter(self.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TokenIds):
            if self._buffer is other._buffer and self._start == other._start:
                return self._stop == other._stop
            return len(self) == len(other) and self.packed() == other.packed()
        if isinstance(other, list | tuple):
            return len(self) == len(other) and self.tolist() == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __lt__(self, other: TokenIds) -> bool:
        return self.tolist() < other.tolist()

    def __add__(self, other: Sequence[int]) -> list[int]:
        return [*self, *other]

    def __radd__(self, other: Sequence[int]) -> list[int]:
        return [*other, *self]

    def __repr__(self) -> str:
        return repr(self.tolist())

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenIds.unpacked, (self.packed(),)


def neighbours(prompt: Sequence[int], response: Sequence[int]) -> tuple[TokenIds, TokenIds]:
    """Return prompt and response as arrays in one buffer, so that :func:`shared_buffer` copies nothing.
    ``ValueError`` for an id that is no int32.
    """
    buffer, end = PrefixDigests(bytearray(pack([*prompt, *response]))), len(prompt)
    return TokenIds.of(buffer, 0, end), TokenIds.of(buffer, end, end + len(response))


def shared_buffer(prompt: TokenIds, response: Sequence[int]) -> tuple[PrefixDigests, int, int]:
    """Return a buffer that begins with prompt + response, and the end of each in bytes: the buffer of both
    views, else a new one.
    """
    start, own = prompt._start, len(prompt) * WIDTH
    follows = isinstance(response, TokenIds) and response._buffer is prompt._buffer
    if follows and not start and response._start == prompt._stop:  # type: ignore[attr-defined]
        return prompt._buffer, own, response._stop * WIDTH  # type: ignore[attr-defined]
    data = bytearray().join((prompt.packed(), pack(response)))
    return PrefixDigests(data), own, len(data)


def concat(prompt: TokenIds, response: Sequence[int]) -> TokenIds:
    """Join prompt and response; without a copy where they are neighbours in one buffer."""
    data, _, whole = shared_buffer(prompt, response)
    return TokenIds.of(data, 0, whole // WIDTH)


def as_ids(ids: Sequence[int]) -> TokenIds:
    """Return ids as an array; an array unchanged."""
    return ids if isinstance(ids, TokenIds) else TokenIds(ids)


def pack(ids: Iterable[int]) -> bytes:
    """Pack ids as little-endian int32. ``ValueError``: an id is no int32, so its record is broken."""
    if isinstance(ids, TokenIds):
        return ids.packed()
    values = ids if isinstance(ids, list) else list(ids)
    try:  # two to three times as fast as an array made of a list
        return struct.pack(f"<{len(values)}i", *values)
    except struct.error as error:
        raise ValueError(f"token ids must be integers that fit 32 bits: {error}") from None


def tokens_digest(prompt_ids: Sequence[int], response_ids: Sequence[int]) -> str:
    """Return sha256 (hex) over the number of prompt ids and all ids, each int32.

    The number makes the border between prompt and response part of the digest.
    """
    return hashlib.sha256(pack((len(prompt_ids),)) + pack(prompt_ids) + pack(response_ids)).hexdigest()
