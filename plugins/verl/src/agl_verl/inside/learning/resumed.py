"""A run that goes on does so with the options it is given then, as with the local driver.

verl's checkpoints hold learning rate, decay and betas beside the optimizer's state, and loading them puts
them in the place of the options', without a word.
"""

from __future__ import annotations

from typing import Any


def resumed(engine: type) -> type:
    """``engine``, a class of verl's, whose optimizer keeps its options when a checkpoint is loaded."""

    class Resumed(engine):  # type: ignore[misc]
        """Overrides the loading."""

        def load_checkpoint(self, *args: Any, **given: Any) -> None:
            asked = [dict(group, params=None) for group in self.optimizer.param_groups]
            bases = list(self.lr_scheduler.base_lrs)
            super().load_checkpoint(*args, **given)
            keep(self.optimizer, self.lr_scheduler, asked, bases)

    return Resumed


def keep(optimizer: Any, schedule: Any, asked: list[dict[str, Any]], bases: list[float]) -> None:
    """Give ``optimizer`` the settings ``asked``, and learning rates from ``bases`` at the place of the
    ``schedule`` where the checkpoint was taken.
    """
    groups = optimizer.param_groups
    for group, own, base, before in zip(groups, asked, bases, schedule.base_lrs, strict=True):
        rate = group["lr"] * base / before if before else own["lr"]
        group.update({name: value for name, value in own.items() if name != "params"}, lr=rate)
    schedule.base_lrs = bases
    schedule._last_lr = [group["lr"] for group in groups]
