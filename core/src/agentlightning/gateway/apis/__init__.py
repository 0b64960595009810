"""The APIs that agents speak, by path: those of engines, and those of plugins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from agentlightning.gateway.apis.base import ApiFormat
from agentlightning.gateway.apis.chat import CHAT, COMPLETIONS
from agentlightning.plugins.manager import Plugins

NATIVE: Final[Mapping[str, ApiFormat]] = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETIONS}


@dataclass(frozen=True, slots=True)
class Formats:
    """The APIs of a gateway. ``by_path``: of each route that makes a model call."""

    by_path: Mapping[str, ApiFormat]

    @classmethod
    def of_plugins(cls, plugins: Plugins) -> Formats:
        """Chat completions, completions, and the APIs of these plugins."""
        return cls({**NATIVE, **{path: spec.format() for path, spec in plugins.api_formats.items()}})

    def of(self, path: str) -> ApiFormat:
        """The format that an error of ``path`` is written in: that of its API, else the chat API's."""
        path = path if path.startswith("/v1/") else f"/v1{path}"
        for own, api in self.by_path.items():
            bases = {own, *(route.partition("/{")[0] for _, route in api.routes())}
            if any(path == base or path.startswith(f"{base}/") for base in bases):
                return api
        return CHAT
