"""What an environment has, in words, for who has just made it."""

from __future__ import annotations

import pytest

pytest.importorskip("verl", reason="verl has an environment of its own: make test-verl-inside")

from agl_verl.inside import found


def test_every_part_is_named_and_the_gpu_is_wanted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(found, "devices", lambda: "")
    assert found.main([]) == 1
    said = capsys.readouterr().out
    assert "verl: 0.9.1" in said and "torch sees: no GPU" in said and "verl fits" in said
    monkeypatch.setattr(found, "devices", lambda: "a GPU; CUDA 13.0")
    assert found.main([]) == 0
    assert "torch sees: a GPU; CUDA 13.0" in capsys.readouterr().out


def test_a_missing_engine_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(found, "devices", lambda: "a GPU")
    monkeypatch.setattr(found, "DISTS", ("no-such-distribution",))
    assert found.main(["--engine", "vllm"]) == 1
    said = capsys.readouterr().out
    assert "no-such-distribution: missing" in said and "verl fits" not in said
