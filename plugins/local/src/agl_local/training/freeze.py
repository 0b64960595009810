"""Frozen parameters: those whose names match a pattern get no gradient and no optimizer state.

Patterns are those of the shell (``fnmatch``) over the names of the weights file, such as ``*embed_tokens*``
or ``model.layers.[0-9].*``. A tied output layer has the name of the embedding; both are frozen together.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase

from torch import nn

from agentlightning.types import UsageError
from agl_local.network.model import LanguageModel


class FreezeError(UsageError, ValueError):
    """A pattern that matches no parameter, or patterns that leave nothing to train."""


def frozen_names(model: LanguageModel, patterns: Sequence[str]) -> list[str]:
    """Return the names of the parameters that ``patterns`` freeze. Raise :class:`FreezeError`."""
    names = [name for name, _ in model.weights.named_parameters()]
    found: set[str] = set()
    for pattern in patterns:
        matching = [name for name in names if fnmatchcase(name, pattern)]
        if not matching:
            near = difflib.get_close_matches(pattern.strip("*"), names, n=3, cutoff=0.3) or names[:3]
            raise FreezeError(
                f"freeze: {pattern!r} matches no parameter; names are such as {', '.join(near)}, and * "
                "stands for any text"
            )
        found.update(matching)
    if patterns and len(found) == len(names):
        raise FreezeError(f"freeze: {', '.join(patterns)} leave no parameter to train")
    return [name for name in names if name in found]


def freeze(model: LanguageModel, patterns: Sequence[str]) -> list[str]:
    """Freeze parameters for good and return their names. Raise :class:`FreezeError`."""
    names = frozen_names(model, patterns)
    parameters = dict(model.weights.named_parameters())
    for name in names:
        parameters[name].requires_grad_(False)
    return names


@contextmanager
def frozen(model: LanguageModel, patterns: Sequence[str]) -> Iterator[int]:
    """Freeze parameters while inside. Yield the number of values that are trained; raise
    :class:`FreezeError`.
    """
    parameters = dict(model.weights.named_parameters())
    before = {name: parameter.requires_grad for name, parameter in parameters.items()}
    freeze(model, patterns)
    try:
        yield trained_values(model)
    finally:
        for name, parameter in parameters.items():
            parameter.requires_grad_(before[name])


def trained_values(model: nn.Module) -> int:
    """Return how many numbers of a model are trained."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
