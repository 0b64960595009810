"""In rollouts, have the model asked, and over the openai SDK.

DSPy answers a request that it knows from a cache in memory and on disk. That is no call: its tokens are those
of older weights, and the samples of one task would be one sample. So inside an attempt the cache neither
answers requests to models nor keeps their answers. Embeddings stay cached.

DSPy 3.4 has two ways to the model: litellm, and an HTTP client of its own, which it prefers where a request
can go both ways. Only litellm uses the openai SDK, where calls are recorded with their ids. So inside an
attempt a choice that the user left to DSPy (``dspy.LM(engine="auto")``) is litellm.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from agentlightning.capture.context import current_attempt

_LOG = logging.getLogger(__name__)
Wrapped = Callable[..., Any]

MODELS: Final = "dspy.clients.lm"
"""How the cache's keys of models' answers begin; those of embeddings begin otherwise."""
_said: set[str] = set()


def say_once(text: str) -> None:
    """Log what is different in rollouts, once in a process."""
    if text not in _said:
        _said.add(text)
        _LOG.info(text)


def is_withheld(request: Any) -> bool:
    """Return whether the cache keeps out of this request: a model's, inside an attempt."""
    of_model = isinstance(request, dict) and str(request.get("_fn_identifier", "")).startswith(MODELS)
    return of_model and current_attempt() is not None


def read_cache(wrapped: Wrapped, cache: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``Cache.get``, which returns ``None`` for what it does not know."""
    if is_withheld(kwargs["request"] if "request" in kwargs else args[0]):
        say_once("DSPy's cache answers no model calls in rollouts: the policy does")
        return None
    return wrapped(*args, **kwargs)


def write_cache(wrapped: Wrapped, cache: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``Cache.put``."""
    if is_withheld(kwargs["request"] if "request" in kwargs else args[0]):
        return None
    return wrapped(*args, **kwargs)


def selecting() -> list[Any]:
    """Return the modules that choose a way to the model by ``select_backend``; none before DSPy 3.4."""
    try:
        from dspy.clients import capabilities, execution
    except ImportError:
        return []
    return [execution, capabilities]


def select(wrapped: Wrapped, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wraps ``select_backend(lm, options)``."""
    selection = wrapped(*args, **kwargs)
    lm = kwargs["lm"] if "lm" in kwargs else args[0]
    options = kwargs.get("options", args[1] if len(args) > 1 else None) or {}
    if not selection.native or current_attempt() is None or not goes_by_the_sdk(lm, options):
        return selection
    say_once("in rollouts DSPy asks OpenAI-compatible models by litellm, not by its own HTTP client")
    return replace(selection, native=False)


def goes_by_the_sdk(lm: Any, options: dict[str, Any]) -> bool:
    """Return whether litellm can take the call, and uses the openai SDK for it."""
    left_to_dspy = lm.engine == "auto" and lm.model_type == "chat" and lm.model.startswith("openai/")
    return left_to_dspy and {**lm.kwargs, **options}.get("prompt_cache") is None
