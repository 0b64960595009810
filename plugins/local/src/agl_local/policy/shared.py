"""Weights in memory that processes share: the trainer writes them once, its engines map them and read.

Two files without a name alternate (``memfd_create``; where there is none, a temporary file that is deleted
as soon as it is open); a third holds the weights that training leaves as they are, written once. An engine
process inherits all at its start, and a request to it names one of the two: no byte of the weights travels,
and no path is opened. Invariants: a file that an engine serves from is not written; there is nothing to clean
up however a process ends, because a nameless file goes with the last process that has it open.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec
import torch
from torch import Tensor

from agentlightning.types import UsageError
from agl_local.network.layout import Layout, read_block
from agl_local.policy.folder import DTYPES
from agl_local.policy.weights import StateError

FILES = 3
"""Files that a trainer and its engines share: two that alternate, and one of constant weights."""
_CONSTANT = 2


class Handover(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which weights an engine is to take: the number of the ``file`` (0 or 1), its ``size`` in bytes, and the
    sum of its 64-bit words (modulo 2 ** 64, as a signed number). ``constant``: the same of the weights that
    training leaves as they are, if they lie in a file of their own.
    """

    file: int
    size: int
    words: int
    constant: Handover | None = None


class SharedWeights:
    """What one trainer publishes to its engines, in the engines' type ``dtype`` (a key of ``DTYPES``)."""

    def __init__(self, dtype: str = "float32") -> None:
        self._dtype = DTYPES[dtype]
        self._files = [_nameless_file() for _ in range(FILES)]
        self._next = 0
        self._constant: tuple[frozenset[str], Handover] | None = None
        self._doubt = False
        self._lock = threading.Lock()
        """Held where files are used: a number that was closed may soon be that of another file."""

    @property
    def files(self) -> tuple[int, ...]:
        """File descriptors, for an engine process to inherit. Raises StateError when closed."""
        if not self._files:
            raise StateError("these shared weights have been closed")
        return tuple(self._files)

    @contextmanager
    def publish(self, tensors: Mapping[str, Tensor], constant: Collection[str] = ()) -> Iterator[Handover]:
        """Write ``tensors`` to the file that no engine serves from; inside, hand it to every engine.

        Those named ``constant`` have the values and names of the first time: they are written then only.

        Left without an exception, all engines serve it, and the memory of the other file is freed. After an
        exception it is unknown who serves what, so neither file may be written: from then on this raises
        StateError. Raises NoRoom, too.
        """
        if self._doubt:
            raise StateError(
                "an earlier update of the weights has failed, so engines may serve from either file: "
                "start the engines anew"
            )
        with self._lock:
            beside = self._write_constant(tensors, frozenset(constant)) if constant else None
            changing = {name: tensors[name] for name in tensors if name not in constant}
            handover = _write(self.files[self._next], self._next, changing, self._dtype)
            handover = msgspec.structs.replace(handover, constant=beside)
        self._doubt = True
        yield handover
        with self._lock:
            self._next = 1 - self._next
            os.ftruncate(self.files[self._next], 0)
        self._doubt = False

    def _write_constant(self, tensors: Mapping[str, Tensor], names: frozenset[str]) -> Handover:
        if self._constant is None:
            kept = {name: tensors[name] for name in tensors if name in names}
            self._constant = names, _write(self.files[_CONSTANT], _CONSTANT, kept, self._dtype)
        written, handover = self._constant
        if written != names:
            raise StateError(f"other weights are constant than at first: {sorted(written ^ names)[:3]}")
        return handover

    def close(self) -> None:
        """Give the files up; engines that serve from one go on. Idempotent."""
        with self._lock:
            files, self._files = self._files, []
            for file in files:
                os.close(file)


class MappedWeights:
    """The weights of one trainer, as an engine sees them through ``files`` (:attr:`SharedWeights.files`)."""

    def __init__(self, files: Sequence[int]) -> None:
        self._files = tuple(files)
        self._constant: tuple[Handover, dict[str, Tensor]] | None = None

    def take(self, handover: Handover) -> dict[str, Tensor]:
        """The tensors of ``handover``, as views of the mapped files: nothing is copied, and constant weights
        stay mapped. Raises StateError where a file is not there or not the one described.
        """
        beside = handover.constant
        if beside is not None and (self._constant is None or self._constant[0] != beside):
            self._constant = beside, _map(self._files, beside)
        constant = self._constant[1] if beside is not None and self._constant is not None else {}
        return {**_map(self._files, handover), **constant}


def _map(files: Sequence[int], handover: Handover) -> dict[str, Tensor]:
    if not 0 <= handover.file < len(files):
        raise StateError(f"there is no file {handover.file}: this engine was started with {len(files)}")
    size = os.fstat(files[handover.file]).st_size
    if size != handover.size or not size:
        raise StateError(f"the file of weights has {size} bytes, not {handover.size}")
    # A private mapping: were anything to write through it, the other processes would not see it.
    block = torch.frombuffer(
        mmap.mmap(files[handover.file], size, access=mmap.ACCESS_COPY), dtype=torch.uint8
    )
    words = _words(block)
    if words != handover.words:
        raise StateError(f"the weights add up to {words}, not {handover.words}: they are not those meant")
    try:
        return read_block(block)
    except ValueError as error:
        raise StateError(str(error)) from error


def _write(file: int, number: int, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Handover:
    layout = Layout({name: tensor.shape for name, tensor in tensors.items()}, dtype)
    try:
        os.ftruncate(file, 0)
        for part in layout.parts(tensors):
            _append(file, part.numpy().data)
        mapped = mmap.mmap(file, layout.size)
    except OSError as error:
        raise NoRoom(f"no room for {layout.size / 2**20:.0f} MiB of shared weights: {error}") from error
    return Handover(number, layout.size, _words(torch.frombuffer(mapped, dtype=torch.uint8)))


def _append(file: int, data: memoryview) -> None:
    """Write all of ``data`` behind what ``file`` has. A write into memory takes half the time of a copy
    through a mapping, which faults on each page.
    """
    end = os.fstat(file).st_size
    while data:
        written = os.pwrite(file, data, end)
        data, end = data[written:], end + written


class NoRoom(UsageError, OSError):
    """The machine has no memory for weights that are to be published."""


def _words(block: Tensor) -> int:
    whole = block.numel() // 8 * 8
    return int(block[:whole].view(torch.int64).sum()) + int(block[whole:].sum())


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("agl-weights", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
