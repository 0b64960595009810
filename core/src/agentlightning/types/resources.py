"""Resources that an agent gets: model endpoints, prompt templates, any JSON."""

from __future__ import annotations

from typing import Any, Literal

from agentlightning.types.base import LogprobsMode, Model


class LLM(Model, tag="llm", tag_field="resource_type"):
    """A model endpoint given to agents: an OpenAI-compatible base URL, a key and a model name."""

    endpoint: str
    model: str
    api_key: str | None = None
    sampling_parameters: dict[str, Any] = {}
    replicas: list[str] = []
    """Further base URLs at which the same model is served. They are for the gateway, which sends all calls
    of an attempt to one of them; an agent has one address."""
    vocabulary: int | None = None
    """Size of the model's vocabulary, if known: token ids are 0 to ``vocabulary - 1``."""
    context: int | None = None
    """Tokens of prompt and answer together that the model accepts, if known."""
    logprobs_mode: LogprobsMode | None = None
    """What its logprobs are of, if known (``Call.logprobs_mode``)."""

    def get_base_url(self, rollout_id: str | None = None, attempt_id: str | None = None) -> str:
        """The URL for an OpenAI client. The attempt travels in the key, not in the URL."""
        return self.endpoint

    def __repr__(self) -> str:  # a key must not end up in a log
        key = "***" if self.api_key else None
        return f"{type(self).__name__}(endpoint={self.endpoint!r}, model={self.model!r}, api_key={key})"


class ProxyLLM(LLM, tag="proxy_llm"):
    """The gateway as a model endpoint, with the attempt's key."""

    api_key: str | None = "agl-context"


class PromptTemplate(Model, tag="prompt_template", tag_field="resource_type"):
    """A prompt with placeholders."""

    template: str
    engine: Literal["f-string", "jinja"] = "f-string"

    def format(self, **values: Any) -> str:
        """Fill the placeholders; a missing value raises ``KeyError`` (f-string) or ``UndefinedError``
        (jinja).
        """
        if self.engine == "f-string":
            return self.template.format(**values)
        from jinja2 import StrictUndefined
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        return (
            ImmutableSandboxedEnvironment(undefined=StrictUndefined)
            .from_string(self.template)
            .render(**values)
        )


class JsonResource(Model, tag="json", tag_field="resource_type"):
    """Any other resource, as JSON."""

    value: Any = None


Resource = LLM | ProxyLLM | PromptTemplate | JsonResource


class Resources(Model):
    """A named, versioned bundle given to agents."""

    resources_id: str
    resources: dict[str, Resource] = {}
    version: int = 1
    create_time: float = 0.0
