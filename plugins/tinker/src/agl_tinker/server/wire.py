"""The bodies of the Tinker API that are protobuf: what a training call holds, and what it and a sample
return.

Field numbers are those of the client's published messages (tinker 0.25 to 0.38). Maps are written as the
lists of pairs that they are on the wire. Invariant: numbers pass as the bytes that they came in, so that a
token's logprob is the same float32 on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from numpy.typing import NDArray

from agentlightning.types.base import RequestRefused
from agl_local.generation.request import Completion

PROTOBUF = "application/x-protobuf"
_FLOAT32, _INT64, _INT32 = 1, 2, 3
_KINDS: dict[int, np.dtype[Any]] = {
    _FLOAT32: np.dtype(np.float32),
    _INT64: np.dtype(np.int64),
    _INT32: np.dtype(np.int32),
}
_MISSING = -99999.0
"""The logprob of a place in a table of alternatives that holds none."""
_MESSAGES = {
    "Csr": "values:bytes=1 crow_indices:bytes=2 col_indices:bytes=3",
    "Tensor": "dense:bytes=1 sparse_csr:Csr=2 dtype:int32=3 shape:*int64=4",
    "NamedTensor": "key:string=1 value:Tensor=2",
    "Text": "tokens:bytes=1",
    "Chunk": "encoded_text:Text=1 image:Text=2 dmel:Text=3",
    "Datum": "model_input:*Chunk=1 loss_fn_inputs:*NamedTensor=2",
    "Number": "key:string=1 value:double=2",
    "Setting": "number:double=1 text:string=2",
    "NamedSetting": "key:string=1 value:Setting=2",
    "Request": "model_id:string=1 seq_id:int32=2 data:*Datum=3 loss_fn:string=4 loss_fn_config:*Number=5 "
    "forward_only:bool=6 loss_fn_config_v2:*NamedSetting=7",
    "Batched": "data:bytes=1 offsets:bytes=2 dtype:int32=3 trailing_shape:*int64=4",
    "NamedBatched": "key:string=1 value:Batched=2",
    "Records": "type_tag:string=1 fields:*NamedBatched=2 num_datums:int64=3",
    "Output": "loss_fn_output_type:string=1 loss_fn_outputs:*Records=2 metrics:*Number=3",
    "Topk": "token_ids:bytes=1 logprobs:bytes=2 k:uint32=3 length:uint32=4",
    "Sequence": "stop_reason:int32=1 tokens:bytes=2 logprobs:bytes=3 topk_sampled_logprobs:Topk=4",
    "Sample": "sequences:*Sequence=1 prompt_logprobs:bytes=2",
}
"""Messages by name: each field's name, type (``*``: repeated) and number."""


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="agl_tinker.proto", package="agl_tinker", syntax="proto3")
    for name, text in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for entry in text.split():
            field, _, rest = entry.partition(":")
            kind, _, number = rest.partition("=")
            made = message.field.add(name=field, number=int(number), label=3 if kind[0] == "*" else 1)
            plain = kind.lstrip("*")
            if plain in _MESSAGES:
                made.type, made.type_name = made.TYPE_MESSAGE, f".agl_tinker.{plain}"
            else:
                made.type = getattr(made, f"TYPE_{plain.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"agl_tinker.{name}")) for name in _MESSAGES}


_CLASSES = _classes()


@dataclass(frozen=True)
class Datum:
    """One sequence: ``tokens`` [N], of which position i predicts the target(s) i of ``inputs``."""

    tokens: list[int]
    inputs: dict[str, NDArray[Any]]
    """By name, of shape [N], or [N, K] for K targets at each position."""


@dataclass(frozen=True)
class TrainingCall:
    """A ``forward_backward`` as it was sent."""

    model_id: str
    seq_id: int
    data: list[Datum]
    loss_fn: str
    config: dict[str, float | str]
    forward_only: bool


def read_training_call(body: bytes) -> TrainingCall:
    """Raises RequestRefused for a body that is none, or that holds images or audio."""
    message = _CLASSES["Request"]()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise RequestRefused(400, "broken-body", f"the body is no ForwardBackwardRequest: {error}") from None
    settings = {pair.key: pair.value for pair in message.loss_fn_config}
    for pair in message.loss_fn_config_v2:
        is_text = bool(pair.value.text)
        settings[pair.key] = pair.value.text if is_text else pair.value.number
    try:
        data = [
            Datum(
                [token for chunk in datum.model_input for token in _tokens(chunk)],
                {pair.key: _array(pair.value) for pair in datum.loss_fn_inputs},
            )
            for datum in message.data
        ]
    except (ValueError, IndexError) as error:
        raise RequestRefused(400, "shape", f"the data of a tensor does not fill its shape: {error}") from None
    return TrainingCall(
        message.model_id, message.seq_id, data, message.loss_fn, settings, message.forward_only
    )


def _tokens(chunk: Any) -> list[int]:
    if not chunk.HasField("encoded_text"):
        raise RequestRefused(
            400, "not-text", "a chunk of the input is no text: this server trains on text only"
        )
    found: list[int] = np.frombuffer(chunk.encoded_text.tokens, dtype=np.int32).tolist()
    return found


def _array(tensor: Any) -> NDArray[Any]:
    """The dense array of ``tensor``: what a sparse one leaves out is 0."""
    if tensor.dtype not in _KINDS:
        raise RequestRefused(400, "dtype", f"a tensor has the unknown type {tensor.dtype}")
    shape = tuple(tensor.shape)
    if not tensor.HasField("sparse_csr"):
        flat: NDArray[Any] = np.frombuffer(tensor.dense, dtype=_KINDS[tensor.dtype])
        return flat.reshape(shape) if shape else flat
    csr, values = tensor.sparse_csr, np.frombuffer(tensor.sparse_csr.values, dtype=_KINDS[tensor.dtype])
    rows = np.frombuffer(csr.crow_indices, dtype=np.int64)
    columns = np.frombuffer(csr.col_indices, dtype=np.int64)
    dense: NDArray[Any] = np.zeros(shape, dtype=values.dtype)
    dense[np.repeat(np.arange(len(rows) - 1), np.diff(rows)), columns] = values
    return dense


def write_output(logprobs: Sequence[NDArray[np.float32]], metrics: Mapping[str, float]) -> bytes:
    """A ``ForwardBackwardOutput``: the logprobs of every datum's targets, [N] or [N, K], and the metrics."""
    message = _CLASSES["Output"](loss_fn_output_type="ArrayRecord")
    for key, value in metrics.items():
        message.metrics.add(key=key, value=value)
    for one in logprobs:  # a record each: the data of one call may have other numbers of targets
        record = message.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=1)
        batched = record.fields.add(key="logprobs").value
        data = one.astype(np.float32).tobytes()
        batched.data, batched.dtype = data, _FLOAT32
        batched.offsets = np.array([0, len(data)], dtype=np.int64).tobytes()
        batched.trailing_shape.extend(one.shape[1:])
    written: bytes = message.SerializeToString()
    return written


def write_sample(
    completions: Sequence[Completion], prompt_logprobs: Sequence[float] | None, alternatives: int
) -> bytes:
    """A ``SampleResponse``. ``alternatives``: how many were asked for at each sampled token."""
    message = _CLASSES["Sample"]()
    if prompt_logprobs is not None:
        message.prompt_logprobs = np.array(prompt_logprobs, dtype=np.float32).tobytes()
    for done in completions:
        sequence = message.sequences.add(stop_reason=0 if done.finish_reason == "stop" else 1)
        sequence.tokens = np.array(done.token_ids, dtype=np.int32).tobytes()
        sequence.logprobs = np.array(done.logprobs, dtype=np.float32).tobytes()
        if alternatives:
            _write_alternatives(sequence.topk_sampled_logprobs, done, alternatives)
    written: bytes = message.SerializeToString()
    return written


def _write_alternatives(message: Any, done: Completion, k: int) -> None:
    ids = np.zeros((len(done.token_ids), k), dtype=np.int32)
    logprobs = np.full((len(done.token_ids), k), _MISSING, dtype=np.float32)
    for i, top in enumerate(done.top_logprobs):
        for j, (token, logprob) in enumerate(top[:k]):
            ids[i, j], logprobs[i, j] = token, logprob
    message.token_ids, message.logprobs = ids.tobytes(), logprobs.tobytes()
    message.k, message.length = k, len(done.token_ids)
