"""Attributes of spans by the conventions of v0.3: tags, links to other spans, nested values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from opentelemetry import trace

from agentlightning.types import Span


class LightningSpanAttributes(Enum):
    """Names and prefixes of attributes in v0.3."""

    REWARD = "agentlightning.reward"
    LINK = "agentlightning.link"
    TAG = "agentlightning.tag"
    MESSAGE_BODY = "agentlightning.message.body"
    OBJECT_TYPE = "agentlightning.object.type"
    OBJECT_LITERAL = "agentlightning.object.literal"
    OBJECT_JSON = "agentlightning.object.json"
    OPERATION_NAME = "agentlightning.operation.name"
    OPERATION_INPUT = "agentlightning.operation.input"
    OPERATION_OUTPUT = "agentlightning.operation.output"


class AttributeLink(NamedTuple):
    """A link to the spans whose attribute ``key_match`` is ``value_match``."""

    key_match: str
    value_match: str


def make_tag_attributes(tags: Sequence[str]) -> dict[str, Any]:
    """Return the attributes of these tags."""
    return flatten_attributes({LightningSpanAttributes.TAG.value: list(tags)})


def extract_tags_from_attributes(attributes: Mapping[str, Any]) -> list[str]:
    """Return the tags among these attributes."""
    return [str(tag) for tag in _listed(attributes, LightningSpanAttributes.TAG)]


def make_link_attributes(links: Mapping[str, str]) -> dict[str, Any]:
    """Return the attributes of a link for each key and value of ``links``."""
    entries = [{"key_match": key, "value_match": value} for key, value in links.items()]
    return flatten_attributes({LightningSpanAttributes.LINK.value: entries})


def extract_links_from_attributes(attributes: Mapping[str, Any]) -> list[AttributeLink]:
    """Return the links among these attributes."""
    return [
        AttributeLink(one["key_match"], one["value_match"])
        for one in _listed(attributes, LightningSpanAttributes.LINK)
    ]


def query_linked_spans(spans: Sequence[Span], links: Sequence[AttributeLink]) -> list[Span]:
    """Return the spans that every link matches; ``trace_id`` and ``span_id`` mean the span's own ids."""

    def value_of(span: Span, key: str) -> Any:
        return getattr(span, key) if key in ("trace_id", "span_id") else span.attributes.get(key)

    return [span for span in spans if all(value_of(span, key) == value for key, value in links)]


def filter_attributes(attributes: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the attributes that are ``prefix`` or lie below it."""
    return {k: v for k, v in attributes.items() if k == prefix or k.startswith(prefix.rstrip(".") + ".")}


def filter_and_unflatten_attributes(attributes: Mapping[str, Any], prefix: str) -> dict[str, Any] | list[Any]:
    """Return what lies below ``prefix`` as nested mappings and lists."""
    stem = prefix.rstrip(".") + "."
    return unflatten_attributes(
        {key.removeprefix(stem): value for key, value in attributes.items() if key.startswith(stem)}
    )


def flatten_attributes(nested: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    """Return nested mappings and lists under dotted keys; a list's items have their index as key."""
    found: dict[str, Any] = {}

    def walk(value: Any, key: str) -> None:
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, inner in pairs:
            place = f"{key}.{name}" if key else str(name)
            if isinstance(inner, Mapping | list | tuple):
                walk(inner, place)
            else:
                found[place] = inner

    walk(nested, "")
    return found


def unflatten_attributes(flat: Mapping[str, Any]) -> dict[str, Any] | list[Any]:
    """Return nested mappings for dotted keys; a mapping whose keys are 0, 1, … becomes a list."""
    root: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, last = key.split(".")
        inner = root
        for part in parents:
            child = inner.setdefault(part, {})
            inner = child if isinstance(child, dict) else inner.setdefault(part + ".", {})
        inner[last] = value
    nested: dict[str, Any] | list[Any] = _lists(root)
    return nested


def get_tracer_provider(inspect: bool = True) -> trace.TracerProvider:
    """Return OpenTelemetry's provider. Capture listens to it, whoever made it."""
    return trace.get_tracer_provider()


def get_tracer(use_active_span_processor: bool = True) -> trace.Tracer:
    """Return a tracer of OpenTelemetry's provider."""
    return get_tracer_provider().get_tracer("agentlightning")


def _listed(attributes: Mapping[str, Any], kind: LightningSpanAttributes) -> list[Any]:
    found = filter_and_unflatten_attributes(attributes, kind.value)
    return found if isinstance(found, list) else list(found.values())


def _lists(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    made = {key: _lists(value) for key, value in node.items()}
    if made and all(key.isdecimal() for key in made) and sorted(map(int, made)) == [*range(len(made))]:
        return [made[key] for key in sorted(made, key=int)]
    return made
