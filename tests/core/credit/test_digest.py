"""The digest of rows: everything that is trained counts, and nothing else."""

from __future__ import annotations

import msgspec
import pytest

from agentlightning.credit import rows_digest
from agentlightning.types import Grammar, Row, Segment
from agentlightning.types.arrays import from_either, to_bytes

ROW = Row(
    row_id="r/c",
    rollout_id="r",
    policy="p",
    token_ids=[1, 2],
    mask=[0, 1],
    advantages=[0.0, 0.5],
    logprobs=[0.0, -1.0],
    weights=[0.0, 1.0],
    versions=[-1, 3],
    segments=[Segment(call_id="c", start=1, end=2, advantage=0.5)],
    temperature=1.0,
    allowed={1: [[2], [3, 4]]},
    metadata={"a": 1, "b": [0.5]},
)
CHANGES = {
    "row_id": "r/d",
    "rollout_id": "s",
    "policy": "q",
    "token_ids": [1, 3],
    "mask": [1, 1],
    "advantages": [0.0, 0.5000000000000001],
    "logprobs": [0.0, -1.1],
    "weights": [0.0, 0.9],
    "versions": [-1, 4],
    "segments": [Segment(call_id="c", start=1, end=2, advantage=0.5, trained=False)],
    "temperature": 0.9,
    "allowed": {1: [[2, 3], [4]]},
    "grammars": {1: Grammar("llguidance", "1.9.1", "start: /a/")},
    "metadata": {"a": 1, "b": [0.6]},
}


def test_every_field_of_a_row_has_a_change_here():
    assert CHANGES.keys() == {f.name for f in msgspec.structs.fields(Row)}


@pytest.mark.parametrize("field", sorted(CHANGES.keys() - {"metadata"}))
def test_every_field_that_is_trained_counts(field):
    assert rows_digest([msgspec.structs.replace(ROW, **{field: CHANGES[field]})]) != rows_digest([ROW])


def test_what_explains_or_names_an_attempt_does_not_count():
    again = [msgspec.structs.replace(ROW.segments[0], call_id="of another attempt")]
    other = msgspec.structs.replace(ROW, metadata=CHANGES["metadata"], segments=again)
    assert rows_digest([other]) == rows_digest([ROW])


@pytest.mark.parametrize("change", [{"start": 0}, {"end": 1}, {"advantage": 0.4}])
def test_every_field_of_a_segment_counts(change):
    segments = [msgspec.structs.replace(ROW.segments[0], **change)]
    assert rows_digest([msgspec.structs.replace(ROW, segments=segments)]) != rows_digest([ROW])


def test_order_and_number_of_rows_count():
    other = msgspec.structs.replace(ROW, row_id="x")
    assert len({rows_digest(rows) for rows in ([], [ROW], [ROW, ROW], [ROW, other], [other, ROW])}) == 5


def test_it_survives_the_wire():
    sent = msgspec.msgpack.decode(
        msgspec.msgpack.encode([ROW], enc_hook=to_bytes), type=list[Row], dec_hook=from_either
    )
    assert rows_digest(sent) == rows_digest([ROW])


def test_the_encoding_is_pinned():
    assert rows_digest([ROW]) == ("82447f9686757708b5c678a58c7461d4e17a6a4c2c7e2d670a3490677d438e1b")
