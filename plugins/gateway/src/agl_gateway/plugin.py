"""Registers the APIs Responses and Messages, the edits of calls, and the budget of a run."""

from __future__ import annotations

from typing import Any

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import ApiFormatSpec, CallGuard, SectionSpec, lazily, lazy_type


@hookimpl
def agl_api_formats() -> list[ApiFormatSpec]:
    responses = lazy_type("agl_gateway.apis.stored:STORED_RESPONSES")
    messages = lazy_type("agl_gateway.apis.messages:MESSAGES")
    return [
        ApiFormatSpec("/v1/responses", responses, "OpenAI's Responses and Conversations"),
        ApiFormatSpec("/v1/messages", messages, "Anthropic's Messages"),
    ]


@hookimpl
def agl_call_edits(route: Any, client: Any, metrics: Any) -> Any:
    return lazily("agl_gateway.edits.route:RouteEdits")(route, client, metrics)


@hookimpl
def agl_call_guards(config: Any, plugins: Any) -> CallGuard | None:
    found: CallGuard | None = lazily("agl_gateway.budget.guard:budget_of")(config, plugins)
    return found


@hookimpl
def agl_sections() -> list[SectionSpec]:
    return [
        SectionSpec("budget", "", lazy_type("agl_gateway.budget.section:BudgetField")),
        SectionSpec("edits", "gateway", lazy_type("agl_gateway.edits.section:RouteSection")),
    ]
