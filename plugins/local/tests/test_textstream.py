from __future__ import annotations

from hypothesis import given, strategies as st
from tokenizers import Tokenizer, decoders, models

from agl_local.text.textstream import TextStream
from agl_local.text.tokenizer import ChatTokenizer
from plugins.local.tests.engine_fixtures import trained_tokenizer

TOKENIZER = trained_tokenizer()
WORDS = Tokenizer(
    models.WordLevel({w: i for i, w in enumerate(["▁the", "▁fox", "es", "<unk>"])}, unk_token="<unk>")
)
WORDS.decoder = decoders.Metaspace()


def read(stream: TextStream, ids: list[int]) -> str:
    return "".join(map(stream.push, ids)) + stream.finish()


@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=30))
def test_pieces_add_up_to_the_text_of_any_ids(ids):
    assert read(TextStream(TOKENIZER), ids) == TOKENIZER.decode(ids, skip_special_tokens=True)


@given(st.lists(st.integers(0, 2), max_size=12))
def test_pieces_add_up_where_the_decoder_looks_at_neighbours(ids):
    tokenizer = ChatTokenizer(WORDS)
    assert read(TextStream(tokenizer), ids) == tokenizer.decode(ids, skip_special_tokens=True)


@given(st.text("abé", max_size=20), st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=3))
def test_text_ends_before_the_first_stop_string(text, stop):
    stream = TextStream(TOKENIZER, stop)
    out = ""
    for token in TOKENIZER.encode(text):
        out += stream.push(token)
        if stream.stopped_by:
            break
    out += stream.finish()
    if stream.stopped_by is None:
        assert out == text and not any(s in text for s in stop)
    else:
        assert text.startswith(out + stream.stopped_by) and not any(s in out for s in stop)


def test_a_possible_stop_is_held_back_until_it_is_decided():
    stream = TextStream(TOKENIZER, ["ANSWER"])
    assert "".join(map(stream.push, TOKENIZER.encode("x AN"))) == "x "
    assert "".join(map(stream.push, TOKENIZER.encode("SW!"))) == "ANSW!"
    assert stream.stopped_by is None
