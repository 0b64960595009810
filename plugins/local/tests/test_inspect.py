"""A policy folder at rest says what the trainer would."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentlightning.types.tokens import TokenIds
from agl_local.inspect import LocalInspector, Unfit
from agl_local.plugin import agl_drivers
from agl_local.policy.folder import fingerprint, load_policy
from plugins.local.tests.driver_fixtures import make_row, saved_policy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_policy(tmp_path_factory.mktemp("policy"))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_the_models_own(folder: Path, temperature: float) -> None:
    model = load_policy(folder).model
    allowed = {6: [[5, 6], [7, 8]]}
    row = make_row(
        model, [1, 2, 3, 4, 5, 9, 7, 8], [(2, 4), (6, 8)], temperature=temperature, allowed=allowed
    )
    long = make_row(model, [1, 2, 3, 4, 5, 9, 7, 8, 2, 6], [(3, 10)], temperature=temperature)
    found, other = LocalInspector(folder).logprobs([row, long])
    assert other == pytest.approx(long.logprobs, abs=1e-5)
    assert found == pytest.approx(row.logprobs, abs=1e-5)
    assert [found[t] for t, on in enumerate(row.mask) if not on] == [0.0] * 4


def test_text_and_digest(folder: Path) -> None:
    (spec,) = agl_drivers()
    assert spec.inspect is not None
    found = spec.inspect(folder)
    tokenizer = LocalInspector(folder).tokenizer
    ids = tokenizer.encode("Ida é")
    assert "".join(found.decode(ids)).replace("\ufffd", "") == "Ida "
    assert found.digest() == fingerprint(load_policy(folder).model)


def test_what_is_no_policy_or_does_not_fit_is_said(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(Unfit, match="not a policy"):
        LocalInspector(tmp_path)
    model = load_policy(folder).model
    row = make_row(model, [1, 2, 3], [(1, 3)])
    row.token_ids = TokenIds([row.token_ids[0], 9_999, *row.token_ids[2:]])
    with pytest.raises(Unfit, match="outside the vocabulary of 259"):
        LocalInspector(folder).logprobs([row])
    (tmp_path / "broken").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (tmp_path / "broken" / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(Exception, match="no such weights file"):
        LocalInspector(tmp_path / "broken").digest()
