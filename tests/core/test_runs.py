"""What a run's folder says before the store is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentlightning.runs import RunError, check_known


@pytest.mark.parametrize(
    "checkpoint", ["checkpoints/step-2", "checkpoints/global_step_2", "policies/wolf/checkpoints/step-2"]
)
def test_checkpoints_that_the_store_does_not_know_are_not_trained_over(
    checkpoint: str, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints").mkdir()
    check_known(tmp_path)
    (tmp_path / checkpoint).mkdir(parents=True)
    with pytest.raises(RunError, match="its store knows no run"):
        check_known(tmp_path)
