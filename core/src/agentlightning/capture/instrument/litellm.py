"""Make LiteLLM ask the gateway through the openai SDK, where calls are recorded with caller and ids.

LiteLLM asks the servers of ``hosted_vllm/…`` by an HTTP client of its own, without a key of the attempt.
Inside an attempt, such a call to the run's gateway is made as ``openai/…``. Calls to other servers stay as
they are.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from agentlightning.capture.context import current_attempt
from agentlightning.capture.instrument.adapter import AdapterInstrumentor
from agentlightning.capture.sdk.call import is_gateway
from agentlightning.keys import CONTEXT_KEY

_OWN_CLIENT: Final = ("hosted_vllm/",)
_ENTRIES: Final = ("completion", "acompletion")


class LiteLLMInstrumentor(AdapterInstrumentor):
    """Instruments LiteLLM."""

    instruments = ("litellm >= 1.83.14, < 2",)

    def begin(self) -> None:
        """Patch the functions that make a call."""
        litellm = import_module("litellm")
        for name in _ENTRIES:
            self.patch(litellm, name, _through_sdk)


def _through_sdk(
    wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call with the model named as one of the openai SDK, if it is at the gateway."""
    model, *rest = args or (kwargs.get("model"),)
    attempt, place = current_attempt(), kwargs.get("base_url") or kwargs.get("api_base")
    at_gateway = attempt is not None and isinstance(place, str) and is_gateway(place, attempt.gateway)
    if not at_gateway or not isinstance(model, str) or not model.startswith(_OWN_CLIENT):
        return wrapped(*args, **kwargs)
    given = {"api_key": CONTEXT_KEY, **{name: value for name, value in kwargs.items() if value is not None}}
    given["model"] = "openai/" + model.partition("/")[2]
    if args:
        return wrapped(given.pop("model"), *rest, **given)
    return wrapped(**given)
