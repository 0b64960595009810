"""A mini-batch in which nothing pulls makes no optimizer step, as in the local driver."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("verl", reason="verl has an environment of its own: make test-verl-inside")

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils

from agl_verl.inside.learning.stepping import any_pull, stepping
from plugins.verl.tests.inside.test_loss import nested


def rows(values: list[list[float]]) -> torch.Tensor:
    return nested([torch.tensor(row) for row in values])


def minibatch(advantages: list[list[float]], **fields: Any) -> Any:
    """A rank's part; a token of advantage -1 is not trained."""
    masks = nested([torch.tensor([int(a != -1) for a in row]) for row in advantages])
    data = TensorDict({"advantages": rows(advantages), "response_mask": masks}, [len(advantages)])
    tensordict_utils.assign_non_tensor(data, **fields)
    return data


def test_only_advantages_kl_and_entropy_pull() -> None:
    assert not any_pull(minibatch([[0.0, 0.0], [0.0]]))
    assert not any_pull(minibatch([[0.0, -1.0], [0.0]]))
    assert not any_pull(minibatch([[-1.0], [-1.0]], calculate_entropy=True))
    assert any_pull(minibatch([[0.0, 0.0], [0.5]]))
    assert any_pull(minibatch([[0.0, 0.0], [0.0]], calculate_entropy=True))
    with_reference = minibatch([[0.0, 0.0], [0.0]])
    with_reference["ref_log_prob"] = rows([[0.0, 0.0], [0.0]])
    assert any_pull(with_reference)


def test_the_optimizer_steps_where_something_pulls() -> None:
    class Engine:
        """Stands for verl's: says what it was asked."""

        asked: list[str] = []

        def forward_backward_batch(self, data: Any) -> str:
            return "outputs"

        def optimizer_step(self) -> float:
            self.asked.append("step")
            return 3.0

        def optimizer_zero_grad(self) -> None:
            self.asked.append("zero")

    made = stepping(Engine, any_pull)()
    for advantages, norm in (([[1.0]], 3.0), ([[0.0]], 0.0), ([[0.0], [2.0]], 3.0)):
        assert made.forward_backward_batch(minibatch(advantages)) == "outputs"
        assert made.optimizer_step() == norm
    assert Engine.asked == ["step", "zero", "step"]
