"""Record the anthropic SDK's calls like those of the openai SDK: one code generator made both SDKs.

Without this adapter only the gateway records calls of the Messages API, under the client's own key. With it
they carry the attempt's key, the caller's tags and span, and are verified.
"""

from __future__ import annotations

from agentlightning.capture.instrument.adapter import AdapterInstrumentor
from agentlightning.capture.sdk.openai import call_methods


class AnthropicInstrumentor(AdapterInstrumentor):
    """Instruments the anthropic SDK."""

    instruments = ("anthropic >= 0.70, < 3",)

    def begin(self) -> None:
        """Patch the methods that carry its calls."""
        for owner, name, wrapper in call_methods("anthropic", *self.instruments):
            self.patch(owner, name, wrapper)
