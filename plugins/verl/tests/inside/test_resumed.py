"""A checkpoint brings back what the optimizer has learned, and not the settings it had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl has an environment of its own: make test-verl-inside")

import torch
from verl.utils.torch_functional import get_constant_schedule_with_warmup

from agl_verl.inside.learning.resumed import resumed


class Engine:
    """Saves and loads as verl's does; ``warmup``: steps of its schedule."""

    def __init__(self, lr: float, decay: float, warmup: int = 0) -> None:
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.optimizer = torch.optim.AdamW([self.weight], lr=lr, weight_decay=decay)
        self.lr_scheduler = get_constant_schedule_with_warmup(self.optimizer, warmup)

    def step(self) -> float:
        """One step; the learning rate that it had."""
        had = float(self.optimizer.param_groups[0]["lr"])
        self.weight.grad = torch.ones(2)
        self.optimizer.step()
        self.lr_scheduler.step()
        return had

    def save(self, place: Path) -> None:
        torch.save([self.optimizer.state_dict(), self.lr_scheduler.state_dict()], place)

    def load_checkpoint(self, local_path: Path, **given: Any) -> None:
        states = torch.load(local_path, weights_only=False)
        for part, state in zip((self.optimizer, self.lr_scheduler), states, strict=True):
            part.load_state_dict(state)


@pytest.mark.parametrize("warmup", [0, 4])
def test_rate_and_decay_are_those_of_the_run_that_goes_on(warmup: int, tmp_path: Path) -> None:
    before = Engine(0.1, 0.0, warmup)
    began = [before.step() for _ in range(2)]
    before.save(tmp_path / "state")
    after = resumed(Engine)(0.02, 0.5, warmup)
    after.load_checkpoint(tmp_path / "state", del_local_after_load=False)
    rates = [*began, *(5 * after.step() for _ in range(4))]
    assert rates == pytest.approx([0.1 * min(1, n / warmup) if warmup else 0.1 for n in range(6)])
    assert after.lr_scheduler.get_last_lr() == [pytest.approx(0.02)]
    (group,) = after.optimizer.param_groups
    assert group["weight_decay"] == 0.5 and after.optimizer.state[after.weight]["step"] == 6
