"""The methods of LangChain's classes that ``@agl.agent`` wraps."""

from __future__ import annotations

import sys
from collections.abc import Sequence

_ENTRIES = ("invoke", "ainvoke", "stream", "astream", "transform", "atransform")
_OF_MODELS = ("invoke", "ainvoke", "stream", "astream")
"""Where a model's runs begin; a batch is made of them."""


def entry_methods(cls: type) -> Sequence[str]:
    """Return the run methods that a ``Runnable`` overrides, those of a model, ``()`` for other classes."""
    if "langchain_core" not in sys.modules:
        return ()
    from langchain_core.language_models import BaseLanguageModel
    from langchain_core.runnables import Runnable

    if not issubclass(cls, Runnable):
        return ()
    if issubclass(cls, BaseLanguageModel):
        return _OF_MODELS
    return [entry for entry in _ENTRIES if getattr(cls, entry) is not getattr(Runnable, entry)]
