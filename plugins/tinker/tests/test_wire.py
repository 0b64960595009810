"""What the client writes is read as it was meant, and what is written is read by the client."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tinker.types")

from tinker import types
from tinker.proto.request_conv import forward_backward_request_to_proto
from tinker.proto.response_conv import deserialize_forward_backward_output, deserialize_sample_response

from agentlightning.types.base import RequestRefused
from agl_local.generation.request import Completion
from agl_tinker.server.wire import read_training_call, write_output, write_sample


def request(*data: types.Datum, loss: str = "ppo", config: dict[str, float | str] | None = None) -> bytes:
    given = types.ForwardBackwardInput(data=list(data), loss_fn=loss, loss_fn_config=config)  # type: ignore[arg-type]
    asked = types.ForwardBackwardRequest(forward_backward_input=given, model_id="s:train:0", seq_id=3)
    body: bytes = forward_backward_request_to_proto(asked).SerializeToString()
    return body


def datum(**inputs: object) -> types.Datum:
    chunks = [types.EncodedTextChunk(tokens=[5, 6]), types.EncodedTextChunk(tokens=[7])]
    return types.Datum(model_input=types.ModelInput(chunks=chunks), loss_fn_inputs=inputs)  # type: ignore[arg-type]


def test_a_training_call() -> None:
    one = datum(target_tokens=[6, 7, 8], logprobs=[0.0, -1.5, -2.0], advantages=[0.0, 1.0, 1.0])
    call = read_training_call(request(one, config={"clip_low_threshold": 0.9}))
    assert (call.model_id, call.seq_id, call.loss_fn, call.forward_only) == ("s:train:0", 3, "ppo", False)
    assert call.config == {"clip_low_threshold": 0.9}
    [read] = call.data
    assert read.tokens == [5, 6, 7]  # of all chunks
    assert {name: array.tolist() for name, array in read.inputs.items()} == {
        "target_tokens": [6, 7, 8],
        "logprobs": [0.0, -1.5, -2.0],
        "advantages": [0.0, 1.0, 1.0],
    }


def test_several_targets_and_sparse_weights() -> None:
    weights = types.TensorData(
        data=[0.5, 0.25],
        dtype="float32",
        shape=[3, 2],
        sparse_crow_indices=[0, 1, 1, 2],
        sparse_col_indices=[1, 0],
    )
    call = read_training_call(
        request(datum(target_tokens=[[1, 2], [3, 4], [5, 6]], weights=weights), loss="cross_entropy")
    )
    assert call.data[0].inputs["target_tokens"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert call.data[0].inputs["weights"].tolist() == [[0.0, 0.5], [0.0, 0.0], [0.25, 0.0]]


def test_an_image_is_refused() -> None:
    image = types.Datum(
        model_input=types.ModelInput(chunks=[types.ImageChunk(data=b"x", format="png")]),
        loss_fn_inputs={"target_tokens": [1]},  # type: ignore[dict-item]
    )
    with pytest.raises(RequestRefused, match="no text"):
        read_training_call(request(image))


def test_a_tensor_of_another_shape_is_refused() -> None:
    wrong = types.TensorData(data=[1.0, 2.0], dtype="float32", shape=[2])
    body = bytearray(request(datum(target_tokens=[1, 2, 3], weights=wrong), loss="cross_entropy"))
    at = body.index(b"weights")
    body[body.index(b"\x22\x01\x02", at) + 2] = 3  # the shape says 3
    with pytest.raises(RequestRefused, match="shape"):
        read_training_call(bytes(body))


def test_no_message_is_refused() -> None:
    with pytest.raises(RequestRefused, match="no ForwardBackwardRequest"):
        read_training_call(b"\xff\xff\xff")


def test_an_output() -> None:
    parts = [np.array([-1.5, -2.25], np.float32), np.array([[-1.0, -2.0], [-3.0, -4.0]], np.float32)]
    read = deserialize_forward_backward_output(write_output(parts, {"loss:sum": 2.5}))
    assert read.metrics == {"loss:sum": 2.5}
    assert [out["logprobs"].to_numpy().tolist() for out in read.loss_fn_outputs] == [
        part.tolist() for part in parts
    ]


def test_a_sample() -> None:
    done = Completion(0, [4, 2], [-0.5, -0.25], [[(4, -0.5)], []], "", "stop", None, [0, 0], 0, 1)
    read = deserialize_sample_response(write_sample([done], [float("nan"), -3.5], 2))
    [sequence] = read.sequences
    assert (sequence.stop_reason, sequence.tokens, sequence.logprobs) == ("stop", [4, 2], [-0.5, -0.25])
    assert read.prompt_logprobs == [None, -3.5]
    assert sequence.topk_logprobs is not None and sequence.topk_logprobs[0] == [(4, -0.5)]
