"""The anthropic SDK's calls, recorded as those of the openai SDK: one code generator made both SDKs.

Without this adapter calls of the Messages API are recorded at the gateway only, under the client's own key.
With it they carry the attempt's key, the caller's tags and span, and are verified.
"""

from __future__ import annotations

from typing import Final

from agentlightning.capture.instrument.adapter import AdapterInstrumentor
from agentlightning.capture.sdk.openai import patch_sdk

INSTRUMENTS: Final = ("anthropic >= 0.70, < 3",)


class AnthropicInstrumentor(AdapterInstrumentor):
    """Instruments the anthropic SDK."""

    instruments = INSTRUMENTS

    def begin(self) -> None:
        """Patch the methods that carry its calls."""
        for patch in patch_sdk("anthropic", *INSTRUMENTS):
            self.undo(patch.undo)
