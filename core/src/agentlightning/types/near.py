"""The name that was meant by one that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

_TASKS = "environment.train and environment.val of a file, or fit(agent, train, val)"
_RECIPE = "training.recipe.{} of a file, or algorithm=agl.GRPO({}=…)"
_OPTIONS = "backend.options.{} of a file, or options={{'{}': …}}"
MEANT: Mapping[str, str] = {
    "model": "policy", "model_name": "policy", "base_model": "policy",
    **dict.fromkeys(("tasks", "data", "dataset", "train_dataset", "train_data", "val_dataset"), _TASKS),
    **dict.fromkeys(("lr", "learning_rate"), _OPTIONS.format("lr", "lr")),
    **dict.fromkeys(("num_generations", "n_samples"), _RECIPE.format("group_size", "group_size")),
}  # fmt: skip
"""A word of other libraries → where it stands here."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like ``name``, ``None`` if none is. Of names that are nearly as
    like, one of the same letters is meant: ``gpro`` is ``grpo`` and not ``gspo``.
    """
    near = difflib.get_close_matches(name, list(known), n=5)
    letters = sorted(name)
    return next((one for one in near if sorted(one) == letters), near[0] if near else None)


def elsewhere(name: str, recipe: Iterable[str] = ()) -> str | None:
    """Return where the setting ``name`` stands, if it is known under another word or as a field of the
    ``recipe``; ``None``: unknown.
    """
    return MEANT.get(name) or (_RECIPE.format(name, name) if name in [*recipe] else None)
